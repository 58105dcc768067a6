// Functions of single numbers, a vector at a time, for the activations of tiled_mlp.cpp and the softmax of
// cross_entropy.cpp; include it after tiles.h. In double precision the C library's, number by number: that is for tests.

template <class F> static inline vec by_lane(vec x, F f) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = f(x[lane]);
    return x;
}

static inline vec between(vec x, REAL least, REAL most) {  // NaN stays NaN
    x = x < least ? all(least) : x;
    return x > most ? all(most) : x;
}

// e to the x; beyond ±87, where float ends, as at ±87
static inline vec exponential(vec x) {
    if constexpr (sizeof(REAL) == 8) return by_lane(x, [](REAL one) { return std::exp(one); });
    else {
        typedef int32_t integers __attribute__((vector_size(BYTES)));
        const REAL shift = 12582912 + 127;  // 1.5 · 2²³ rounds to an integer, 127 is what exponents are stored with
        x = between(x, -87, 87);
        vec shifted = x * 1.44269504f + shift;
        const vec whole = shifted - shift;
        vec f = x - whole * 0.693359375f;  // ln 2 in two parts: the first times an integer is exact
        f = f + whole * 2.12194440e-4f;
        vec p = 1.9875691500e-4f * f + 1.3981999507e-3f;
        p = p * f + 8.3334519073e-3f;
        p = p * f + 4.1665795894e-2f;
        p = p * f + 1.6666665459e-1f;
        p = p * f + 5.0000001201e-1f;
        p = p * f * f + f + 1;
        return p * (vec)((integers)shifted << 23);  // the integer's bits, moved to where an exponent stands
    }
}

static inline vec sigmoid(vec x) { return 1 / (1 + exponential(-x)); }

static inline vec hyperbolic_tangent(vec x) {
    if constexpr (sizeof(REAL) == 8) return by_lane(x, [](REAL one) { return std::tanh(one); });
    else return 2 * sigmoid(2 * x) - 1;
}

// The normal distribution: the chance to be below x, and its density
static inline void normal(vec x, vec& below, vec& density) {
    density = exponential(x * x * (REAL)-0.5);
    if constexpr (sizeof(REAL) == 8) below = by_lane(x, [](REAL one) { return std::erfc(-one * std::sqrt(0.5)) / 2; });
    else {  // Abramowitz and Stegun 7.1.26: within 1e-7
        const vec size = x < 0 ? -x : x;
        const vec t = 1 / (1 + size * (0.3275911f * 0.707106781f));
        vec p = 1.061405429f * t - 1.453152027f;
        p = p * t + 1.421413741f;
        p = p * t - 0.284496736f;
        p = p * t + 0.254829592f;
        const vec tail = p * t * density * 0.5f;
        below = x < 0 ? tail : 1 - tail;
    }
    density *= (REAL)0.398942280401432678;
}
