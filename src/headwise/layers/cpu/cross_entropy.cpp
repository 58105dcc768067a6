// Softmax, cross-entropy and its derivative of some tokens' logits, in place; cross_entropy.py says why.
//
// logits (tokens, vocab) become weight · (softmax - one at the label), times the softcap's slope: the derivative of the
// weighted sum of cross-entropies, which is what `loss` is increased by. CAPPED: logits are cap · tanh(logit / cap).

#include "tiles.h"

#include "elementary.h"

// f(place, how many) for all columns; the last ones may be less than a vector
template <class F> static inline void each(long columns, F f) {
    long c = 0;
    for (; c + LANES <= columns; c += LANES) f(c, LANES);
    if (c < columns) f(c, columns - c);
}

// With numbers behind the last column whose exponential is nothing
static inline vec get(const REAL* from, long count) {
    if (count == LANES) return at(from);
    vec x = all(-1e30);
    std::memcpy(&x, from, count * sizeof(REAL));
    return x;
}

static inline void put(REAL* to, vec x, long count) {
    if (count == LANES) at(to) = x;
    else std::memcpy(to, &x, count * sizeof(REAL));
}

extern "C" void cross_entropy(REAL* logits, const int64_t* labels, const REAL* weights, double* loss, long tokens,
                              long vocab, double cap) {
    double total = 0;
    for (long t = 0; t < tokens; t++, logits += vocab) {
        vec tops = all(-INFINITY);
        each(vocab, [&](long c, long count) {
            vec x = get(logits + c, count);
            if (CAPPED) put(logits + c, x = hyperbolic_tangent(x / (REAL)cap), count);
            tops = x > tops ? x : tops;
        });
        REAL top = tops[0];
        for (int lane = 1; lane < LANES; lane++) top = tops[lane] > top ? tops[lane] : top;
        const REAL factor = CAPPED ? (REAL)cap : 1;
        const REAL chosen = (logits[labels[t]] - top) * factor, slope = 1 - logits[labels[t]] * logits[labels[t]];
        vec sums{};
        each(vocab, [&](long c, long count) {
            const vec one = exponential((get(logits + c, count) - top) * factor);
            sums += one;
            if (!CAPPED) put(logits + c, one, count);
        });
        REAL sum = 0;
        for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
        total += weights[t] * (std::log(sum) - chosen);
        const REAL part = weights[t] / sum;
        each(vocab, [&](long c, long count) {
            const vec x = get(logits + c, count);
            put(logits + c, CAPPED ? exponential((x - top) * factor) * part * (1 - x * x) : x * part, count);
        });
        logits[labels[t]] -= weights[t] * (CAPPED ? slope : 1);
    }
    *loss += total;
}
