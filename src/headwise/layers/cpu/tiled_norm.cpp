// Norms of tokens, forward and backward, each token in one visit; norm.py says why, and compiles this for one width W and
// one KIND: UNIT is scale · x / max(|x|, eps), RMS is weight · x / √(mean x² + eps), LAYER the same of x less its mean,
// + bias. RMS and LAYER may be without weight and bias (null).
//
// x, result, outer (the result's derivative) and by_x are (tokens, W); mean (LAYER) and inverse (1 / what a token is
// divided by) are (tokens). With `added`, x is first replaced by x + added, which is written to `sum`; with `by_sum`, the
// derivative by x has that added to it.

#include "tiles.h"

enum Kind { UNIT, RMS, LAYER };
constexpr Kind OF = KIND;
constexpr int CHUNK = 64;  // tokens whose derivatives are summed before they go to the total: many small terms are not lost

static_assert(W % LANES == 0);

static inline REAL summed(vec x) {
    REAL total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

template <class F> static inline REAL over(F f) {
    constexpr int ways = W % (4 * LANES) ? 1 : 4;
    vec way[ways] = {};
    for (int c = 0; c < W; c += ways * LANES) {
        UNROLL for (int w = 0; w < ways; w++) way[w] += f(c + w * LANES);
    }
    for (int w = 1; w < ways; w++) way[0] += way[w];
    return summed(way[0]);
}

static inline vec scaled(const REAL* weight, int c) { return OF == UNIT ? all(*weight) : weight ? at(weight + c) : all(1); }

extern "C" void forward(const REAL* x, const REAL* added, const REAL* weight, const REAL* bias, REAL* sum, REAL* result,
                        REAL* mean, REAL* inverse, long tokens, double eps) {
    for (long t = 0; t < tokens; t++, x += W, result += W) {
        if (added) {
            for (int c = 0; c < W; c += LANES) at(sum + t * W + c) = at(x + c) + at(added + t * W + c);
        }
        const REAL* from = added ? sum + t * W : x;
        const REAL middle = OF == LAYER ? over([&](int c) { return at(from + c); }) / W : 0;
        const REAL squares = over([&](int c) {
            const vec one = at(from + c) - middle;
            return one * one;
        });
        if (OF == LAYER) mean[t] = middle;
        const REAL length = std::sqrt(OF == UNIT ? squares : squares / W + (REAL)eps);
        const REAL factor = inverse[t] = 1 / (OF == UNIT && length < (REAL)eps ? (REAL)eps : length);
        for (int c = 0; c < W; c += LANES) {
            const vec one = (at(from + c) - middle) * factor * scaled(weight, c);
            at(result + c) = bias ? one + at(bias + c) : one;
        }
    }
}

extern "C" void backward(const REAL* x, const REAL* outer, const REAL* by_sum, const REAL* weight, const REAL* mean,
                         const REAL* inverse, REAL* by_x, REAL* by_weight, REAL* by_bias, long tokens, double eps) {
    alignas(64) REAL weights[W], biases[W];
    double scale = 0;
    for (long t = 0; t < tokens; t++, x += W, outer += W, by_x += W) {
        const REAL middle = OF == LAYER ? mean[t] : 0, factor = inverse[t];
        const auto normal = [&](int c) { return (at(x + c) - middle) * factor; };
        const auto by_normal = [&](int c) { return at(outer + c) * scaled(weight, c); };
        const bool shorter = OF == UNIT && factor >= 1 / (REAL)eps;  // its length is not what it was divided by
        const REAL part = OF == UNIT ? 1 : (REAL)1 / W;
        const REAL along = over([&](int c) { return by_normal(c) * normal(c); });
        const REAL less = shorter ? 0 : along * part, shift = OF == LAYER ? over(by_normal) * part : 0;
        for (int c = 0; c < W; c += LANES) {
            const vec one = (by_normal(c) - shift - normal(c) * less) * factor;
            at(by_x + c) = by_sum ? one + at(by_sum + t * W + c) : one;
        }
        if (OF == UNIT) scale += over([&](int c) { return at(outer + c) * normal(c); });
        else if (by_weight) {
            for (int c = 0; c < W; c += LANES) {
                at(weights + c) = (t % CHUNK ? at(weights + c) : vec{}) + at(outer + c) * normal(c);
                if (by_bias) at(biases + c) = (t % CHUNK ? at(biases + c) : vec{}) + at(outer + c);
            }
            if ((t + 1) % CHUNK && t + 1 < tokens) continue;
            for (int c = 0; c < W; c += LANES) {
                at(by_weight + c) += at(weights + c);
                if (by_bias) at(by_bias + c) += at(biases + c);
            }
        }
    }
    if (OF == UNIT) *by_weight += scale;
}
