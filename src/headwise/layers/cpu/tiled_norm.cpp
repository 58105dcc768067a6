// scale · x / max(|x|, eps) of every token, forward and backward; tiled.py says why, and compiles this for one width W.
//
// x, result, outer (the result's derivative) and by_x are (tokens, W); inverse is 1 / max(|x|, eps) of every token.

#include "tiles.h"

static_assert(W % LANES == 0);

static inline REAL dot(const REAL* a, const REAL* b) {
    vec products{};
    for (int c = 0; c < W; c += LANES) products += at(a + c) * at(b + c);
    REAL total = 0;
    for (int lane = 0; lane < LANES; lane++) total += products[lane];
    return total;
}

extern "C" void forward(const REAL* x, const REAL* scale, REAL* result, REAL* inverse, long tokens, double eps) {
    for (long t = 0; t < tokens; t++, x += W, result += W) {
        const REAL length = std::sqrt(dot(x, x));
        inverse[t] = 1 / (length < (REAL)eps ? (REAL)eps : length);
        for (int c = 0; c < W; c += LANES) at(result + c) = at(x + c) * (inverse[t] * *scale);
    }
}

extern "C" void backward(const REAL* x, const REAL* outer, const REAL* scale, const REAL* inverse, REAL* by_x,
                         REAL* by_scale, long tokens, double eps) {
    double total = 0;
    for (long t = 0; t < tokens; t++, x += W, outer += W, by_x += W) {
        const REAL along = dot(x, outer) * inverse[t];
        const bool shorter = inverse[t] >= 1 / (REAL)eps;  // its length is not what it was divided by
        const REAL factor = inverse[t] * *scale, less = shorter ? 0 : along * inverse[t] * factor;
        for (int c = 0; c < W; c += LANES) at(by_x + c) = at(outer + c) * factor - at(x + c) * less;
        total += along;
    }
    *by_scale = total;
}
