// softmax(scale · QKᵀ) V of many heads of small rank, forward and backward; small_rank.py says why, and compiles this
// for one size: REAL is float or double, N tokens, R query/key rank, V value rank.
//
// A vector holds the same number of LANES samples, so no rank is too small to fill it. One head of LANES samples is
// worked on at a time, in the first cache, and scores live in registers, TILE at a time. Tensors are (heads, rank,
// tokens, batch).
// Letters: q, k, v and o as usual; s scores to base 2; w weights that are not yet normalised; d before a derivative.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

#define UNROLL _Pragma("GCC unroll 16")  // or sums are not kept in registers
#define APART __attribute__((noinline))         // or one function of everything runs out of registers

typedef REAL vec __attribute__((vector_size(BYTES)));
constexpr long LANES = BYTES / sizeof(REAL);
constexpr int TILE = BYTES == 64 ? 16 : 8;  // half of the registers
constexpr int REST = N % TILE;
constexpr REAL LN2 = 0.693147180559945309;

static inline vec all(REAL value) { return vec{} + value; }

static inline vec load(const REAL* from, long count) {
    vec x{};
    if (count >= LANES) std::memcpy(&x, from, BYTES);
    else std::memcpy(&x, from, count * sizeof(REAL));
    return x;
}

static inline void store(REAL* to, vec x, long count) {
    if (count >= LANES) std::memcpy(to, &x, BYTES);
    else std::memcpy(to, &x, count * sizeof(REAL));
}

static inline REAL sum(vec x, long count) {
    REAL total = 0;
    for (long lane = 0; lane < LANES && lane < count; lane++) total += x[lane];
    return total;
}

// 2 to the x, for x not above 0 but by rounding.
static inline vec power_of_two(vec x) {
    if constexpr (sizeof(REAL) == 8) {
        for (long lane = 0; lane < LANES; lane++) x[lane] = std::exp2(x[lane]);
        return x;
    } else {
        typedef int32_t integers __attribute__((vector_size(BYTES)));
        const REAL shift = 12582912 + 127;  // 1.5 · 2²³ rounds to an integer, 127 is what exponents are stored with
        x = x < -126 ? all(-126) : x;
        vec shifted = x + shift;
        vec f = x - (shifted - shift);  // -½ to ½; the polynomial is within 8e-8 of 2 to the f
        vec p = 0.00132764725f * f + 0.00967554096f;
        p = p * f + 0.0555071309f;
        p = p * f + 0.240221202f;
        p = p * f + 0.693146944f;
        p = p * f + 1.00000012f;
        return p * (vec)((integers)shifted << 23);  // the integer's bits, moved to where an exponent stands
    }
}

template <int RANK> static APART void load_head(vec (&to)[RANK][N], const REAL* from, long batch, long count) {
    for (int c = 0; c < RANK; c++)
        for (int i = 0; i < N; i++) to[c][i] = load(from + (c * N + i) * batch, count);
}

template <int RANK>
static APART void store_head(REAL* to, const vec (&from)[RANK][N], REAL factor, long batch, long count) {
    for (int c = 0; c < RANK; c++)
        for (int i = 0; i < N; i++) store(to + (c * N + i) * batch, from[c][i] * factor, count);
}

static APART void scale_queries(vec (&q)[R][N], const REAL* bias, double scale) {
    for (int c = 0; c < R; c++)
        for (int i = 0; i < N; i++) q[c][i] = (q[c][i] + bias[c]) * (REAL)(scale / LN2);
}

// to[b] = start + left[.][i] · right[.][j + b]: a query's products with some keys
template <int J, int RANK>
static inline void products(const vec (&left)[RANK][N], int i, const vec (&right)[RANK][N], int j, vec start, vec* to) {
    vec total[J];
    UNROLL for (int b = 0; b < J; b++) total[b] = left[0][i] * right[0][j + b] + start;
    for (int c = 1; c < RANK; c++) {
        const vec one = left[c][i];
        UNROLL for (int b = 0; b < J; b++) total[b] += one * right[c][j + b];
    }
    UNROLL for (int b = 0; b < J; b++) to[b] = total[b];
}

// A function of all keys, joined, in four chains: one would wait for each of its steps.
template <class Get, class Join> static inline vec folded(Get get, Join join) {
    constexpr int ways = N < 4 ? N : 4;
    vec way[ways];
    UNROLL for (int j = 0; j < ways; j++) way[j] = get(j);
    UNROLL for (int j = ways; j < N; j++) way[j % ways] = join(way[j % ways], get(j));
    vec whole = way[0];
    for (int j = 1; j < ways; j++) whole = join(whole, way[j]);
    return whole;
}

// ---- forward -------------------------------------------------------------------------------------------------------

struct Forward {
    vec q[R][N], k[R][N], v[V][N], o[V][N];
    vec most[N], part[N];  // part: 1 / normaliser

    APART void query(int i) {
        vec s[N];
        for (int j = 0; j + TILE <= N; j += TILE) products<TILE>(q, i, k, j, vec{}, s + j);
        if constexpr (REST) products<REST>(q, i, k, N - REST, vec{}, s + N - REST);
        vec largest = folded([&](int j) { return s[j]; }, [](vec x, vec y) { return x > y ? x : y; });
        UNROLL for (int j = 0; j < N; j++) s[j] = power_of_two(s[j] - largest);
        const auto add = [](vec x, vec y) { return x + y; };
        most[i] = largest;
        part[i] = 1 / folded([&](int j) { return s[j]; }, add);
        for (int c = 0; c < V; c++) o[c][i] = part[i] * folded([&](int j) { return s[j] * v[c][j]; }, add);
    }
};

extern "C" void forward(const REAL* q, const REAL* k, const REAL* v, const REAL* q_bias, const REAL* v_bias, REAL* o,
                        REAL* largest, REAL* inverse, long heads, long batch, double scale) {
    Forward at;
    for (long h = 0; h < heads; h++, q += R * N * batch, k += R * N * batch, v += V * N * batch, o += V * N * batch)
        for (long b = 0; b < batch; b += LANES) {
            const long count = batch - b;
            load_head(at.q, q + b, batch, count);
            load_head(at.k, k + b, batch, count);
            load_head(at.v, v + b, batch, count);
            scale_queries(at.q, q_bias + h * R, scale);
            for (int i = 0; i < N; i++) at.query(i);
            for (int c = 0; c < V; c++)
                for (int i = 0; i < N; i++) at.o[c][i] += v_bias[h * V + c];
            store_head(o + b, at.o, 1, batch, count);
            for (int i = 0; i < N; i++) store(largest + (h * N + i) * batch + b, at.most[i], count);
            for (int i = 0; i < N; i++) store(inverse + (h * N + i) * batch + b, at.part[i], count);
        }
}

// ---- backward ------------------------------------------------------------------------------------------------------

struct Backward {
    vec q[R][N], k[R][N], v[V][N], g[V][N];  // g: the output's derivative, times 1 / normaliser
    vec most[N], level[N];                   // level: the weighted mean of g·v
    vec dq[R][N], dk[R][N], dv[V][N];

    // What the output's derivative becomes, and its sum for the bias of the values.
    APART void take(const REAL* o, const REAL* largest, const REAL* inverse, const REAL* bias, REAL* by_bias,
                    long batch, long count) {
        for (int i = 0; i < N; i++) most[i] = load(largest + i * batch, count);
        for (int i = 0; i < N; i++) level[i] = vec{};
        for (int c = 0; c < V; c++) {
            vec total{};
            for (int i = 0; i < N; i++) {
                total += g[c][i];
                g[c][i] *= load(inverse + i * batch, count);
                level[i] += g[c][i] * (load(o + (c * N + i) * batch, count) - bias[c]);
            }
            by_bias[c] += sum(total, count);
        }
    }

    template <int I, int J> APART void tile(int i0, int j0) {
        vec w[I][J], ds[I][J];
        for (int a = 0; a < I; a++) {
            products<J>(q, i0 + a, k, j0, -most[i0 + a], w[a]);
            products<J>(g, i0 + a, v, j0, -level[i0 + a], ds[a]);
            UNROLL for (int b = 0; b < J; b++) ds[a][b] *= w[a][b] = power_of_two(w[a][b]);
            for (int c = 0; c < R; c++) {
                vec total{};
                UNROLL for (int b = 0; b < J; b++) total += ds[a][b] * k[c][j0 + b];
                dq[c][i0 + a] += total;
            }
        }
        add_by_key<I, J>(ds, q, i0, dk, j0);
        add_by_key<I, J>(w, g, i0, dv, j0);
    }

    template <int I, int J, int RANK>
    static inline void add_by_key(const vec (&left)[I][J], const vec (&right)[RANK][N], int i, vec (&to)[RANK][N],
                                  int j) {
        for (int c = 0; c < RANK; c++) {
            vec total[J];
            UNROLL for (int b = 0; b < J; b++) total[b] = to[c][j + b];
            for (int a = 0; a < I; a++) {
                const vec one = right[c][i + a];
                UNROLL for (int b = 0; b < J; b++) total[b] += left[a][b] * one;
            }
            UNROLL for (int b = 0; b < J; b++) to[c][j + b] = total[b];
        }
    }

    template <int I> void tiles(int i) {
        for (int j = 0; j + TILE <= N; j += TILE) tile<I, TILE>(i, j);
        if constexpr (REST) tile<I, REST>(i, N - REST);
    }
};

extern "C" void backward(const REAL* q, const REAL* k, const REAL* v, const REAL* q_bias, const REAL* v_bias,
                         const REAL* o, const REAL* largest, const REAL* inverse, const REAL* d_o, REAL* dq, REAL* dk,
                         REAL* dv, REAL* dq_bias, REAL* dv_bias, long heads, long batch, double scale) {
    Backward at;
    const long by_rank = R * N * batch, by_value = V * N * batch;
    for (long h = 0; h < heads; h++, q += by_rank, k += by_rank, v += by_value, o += by_value, d_o += by_value,
              dq += by_rank, dk += by_rank, dv += by_value, largest += N * batch, inverse += N * batch)
        for (long b = 0; b < batch; b += LANES) {
            const long count = batch - b;
            load_head(at.q, q + b, batch, count);
            load_head(at.k, k + b, batch, count);
            load_head(at.v, v + b, batch, count);
            load_head(at.g, d_o + b, batch, count);
            scale_queries(at.q, q_bias + h * R, scale);
            at.take(o + b, largest + b, inverse + b, v_bias + h * V, dv_bias + h * V, batch, count);
            std::memset(at.dq, 0, sizeof at.dq + sizeof at.dk + sizeof at.dv);
            for (int i = 0; i + TILE <= N; i += TILE) at.tiles<TILE>(i);
            if constexpr (REST) at.tiles<REST>(N - REST);
            for (int c = 0; c < R; c++) {
                vec total{};
                for (int i = 0; i < N; i++) total += at.dq[c][i];
                dq_bias[h * R + c] += sum(total, count) * (REAL)scale;
            }
            store_head(dq + b, at.dq, scale, batch, count);
            store_head(dk + b, at.dk, LN2, batch, count);
            store_head(dv + b, at.dv, 1, batch, count);
        }
}
