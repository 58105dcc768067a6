// An MLP's activation and its slope, from one exponential where both need one; for tiled_mlp.cpp and wide_mlp.cpp, after
// tiles.h. ACTIVATION says which.

#include "elementary.h"

enum Kind { RELU, RELU2, GELU, GELU_TANH, SILU };
constexpr Kind KIND = ACTIVATION;

// What is kept of a sum; NaN stays NaN
static inline vec to_keep(vec s) { return KIND == RELU || KIND == RELU2 ? (s < 0 ? vec{} : s) : s; }

struct Activated {
    vec value, slope;
};

static inline Activated activated(vec x) {
    if constexpr (KIND == RELU) return {x, x <= 0 ? vec{} : all(1)};
    else if constexpr (KIND == RELU2) return {x * x, 2 * x};
    else if constexpr (KIND == SILU) {
        const vec s = sigmoid(x);
        return {x * s, s + x * s * (1 - s)};
    } else if constexpr (KIND == GELU) {
        vec below, density;
        normal(x, below, density);
        return {x * below, below + x * density};
    } else {
        const REAL c = 1.59576912160573071;  // 2 √(2/π)
        const vec s = sigmoid(c * (x + (REAL)0.044715 * x * x * x));
        return {x * s, s + x * s * (1 - s) * (c + 3 * (REAL)0.044715 * c * x * x)};
    }
}
