// Attention of every head, from tokens to tokens, forward and backward; tiled.py says why, and compiles this for one size:
// N tokens per sample, W width, R query/key rank, V value rank, GROUP heads at a time, UNIT columns at a time. With MERGED,
// R and V are the width, keys and values are the tokens themselves, and their weights are not used.
//
// A unit is some whole samples. What is made of its tokens stands in rows of UNIT columns, a column for each token.
// Queries, keys and values of a group are kept for the backward pass (`made`, a `Made` for each group and unit); scores,
// weights and outputs are made again. Scores of a sample are (keys, queries): a vector is one key and LANES queries, and
// softmax goes down, from vector to vector. `x` and `outer` (the output's derivative) are (units, W, UNIT); as `tokens`
// and `outer_tokens`, (units, UNIT, W).

#include "tiles.h"

static_assert(UNIT % N == 0 && UNIT % LANES == 0 && W % LANES == 0);

constexpr int QK = GROUP * R, VO = GROUP * V;               // rows of a group
constexpr int PADDED = (N + LANES - 1) / LANES * LANES;     // a sample's tokens, in whole vectors
constexpr int REST = N % LANES;                             // lanes of its last vector, if that is not full
constexpr REAL LN2 = 0.693147180559945309;

struct Made {
    REAL q[QK * UNIT], k[MERGED ? 0 : QK * UNIT], v[MERGED ? 0 : VO * UNIT];
};

// by_o is read a vector beyond its end, for lanes that no query stands in: so it is not the last.
static thread_local struct Room {
    alignas(64) REAL o[VO * UNIT], by_o[VO * UNIT], by_q[QK * UNIT], by_k[QK * UNIT], by_v[VO * UNIT];
} room;

// Of queries from the i-th of a sample: not more than the sample has
static inline vec get(const REAL* from, int i) {
    if (REST == 0 || i + LANES <= N) return at(from);
    vec x{};
    std::memcpy(&x, from, REST * sizeof(REAL));
    return x;
}

static inline void put(REAL* to, vec x, int i) {
    if (REST == 0 || i + LANES <= N) at(to) = x;
    else std::memcpy(to, &x, REST * sizeof(REAL));
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

// ---- products with weights -----------------------------------------------------------------------------------------

// to (ROWS, UNIT) = factor · (weight (ROWS, W) from (W, UNIT) + bias)
template <int ROWS>
static APART void project(REAL* to, const REAL* weight, const REAL* bias, const REAL* from, REAL factor) {
    product<ROWS, UNIT, W, 1, UNIT>(
        weight, from, W, [&](int r, int) { return bias ? all(bias[r]) : vec{}; },
        [&](int r, int c, vec s) { at(to + r * UNIT + c) = s * factor; });
}

// to (W, UNIT) += weightᵀ (W, ROWS) from (ROWS, UNIT)
template <int ROWS> static APART void project_back(REAL* to, const REAL* weight, const REAL* from) {
    product<W, UNIT, 1, W, UNIT>(
        weight, from, ROWS, [&](int r, int c) { return at(to + r * UNIT + c); },
        [&](int r, int c, vec s) { at(to + r * UNIT + c) = s; });
}

// weight (ROWS, W) += left (ROWS, UNIT) right (UNIT, W), and bias, if there is one, += left's sums
template <int ROWS> static APART void add_derivatives(REAL* weight, REAL* bias, const REAL* left, const REAL* right) {
    product<ROWS, W, UNIT, 1, W>(
        left, right, UNIT, [&](int r, int c) { return at(weight + r * W + c); },
        [&](int r, int c, vec s) { at(weight + r * W + c) = s; });
    for (int r = 0; bias && r < ROWS; r++) {
        vec total{};
        for (int c = 0; c < UNIT; c += LANES) total += at(left + r * UNIT + c);
        for (int lane = 0; lane < LANES; lane++) bias[r] += total[lane];
    }
}

// ---- one head of one sample ----------------------------------------------------------------------------------------

// to (N, LANES) = leftᵀ (N, RANK) right (RANK, LANES): every key's products with some queries
template <int RANK> static inline void products(REAL* to, const REAL* left, const REAL* right) {
    tiles<N, 1>([&](auto& tile, int j) {
        tile.each([](int, int, vec& s) { s = vec{}; });
        tile.template add<1, UNIT, UNIT>(left + j, right, RANK);
        tile.each([&](int r, int, vec& s) { at(to + (j + r) * LANES) = s; });
    });
}

// end(row, from (RANK, N) weights (N, LANES)); the rows of weights are BELOW apart
template <int RANK, int BELOW, class End> static inline void mixed(const REAL* from, const REAL* weights, End end) {
    tiles<RANK, 1>([&](auto& tile, int i) {
        tile.each([](int, int, vec& s) { s = vec{}; });
        tile.template add<UNIT, 1, BELOW>(from + i * UNIT, weights, N);
        tile.each([&](int r, int, vec& s) { end(i + r, s); });
    });
}

static APART void attend(const REAL* q, const REAL* k, const REAL* v, REAL* o, REAL* largest, REAL* inverse) {
    alignas(64) REAL w[N * LANES];
    for (int i = 0; i < N; i += LANES) {
        products<R>(w, k, q + i);
        const vec top = folded([&](int j) { return at(w + j * LANES); }, [](vec a, vec b) { return a < b ? b : a; });
        const auto weight = [&](int j) { return at(w + j * LANES) = power_of_two(at(w + j * LANES) - top); };
        const vec one_over = 1 / folded(weight, [](vec a, vec b) { return a + b; });
        mixed<V, LANES>(v, w, [&](int c, vec s) { put(o + c * UNIT + i, s * one_over, i); });
        put(largest + i, top, i);
        put(inverse + i, one_over, i);
    }
}

// to (LANES queries, PADDED keys) = from (N keys, LANES queries), and 0 where no key is
static inline void transposed(REAL* to, const REAL* from) {
    for (int j = 0; j < N; j += LANES) {
        vec m[LANES];
        UNROLL for (int i = 0; i < LANES; i++) m[i] = j + i < N ? at(from + (j + i) * LANES) : vec{};
        transpose(m);
        UNROLL for (int i = 0; i < LANES; i++) at(to + i * PADDED + j) = m[i];
    }
}

// A head of rank 1 has its sums over queries with fewer exchanges than all weights need to be transposed.
template <int RANK> constexpr bool summed = RANK == 1 && REST == 0;

// to (N), from 0 if this is the `first`, += factor · weights (N, LANES) row (LANES)
static inline void add_sums(REAL* to, const REAL* weights, const REAL* row, REAL factor, bool first) {
    for (int j = 0; j < N; j += LANES) {
        vec m[LANES];
        UNROLL for (int l = 0; l < LANES; l++) m[l] = at(weights + (j + l) * LANES) * at(row);
        at(to + j) = (first ? vec{} : at(to + j)) + sums(m) * factor;
    }
}

// Derivatives of queries, keys and values, and the outputs again; q is what `project` made of it with scale / ln 2.
// With MERGED, by_k and by_v are added to; without them, only queries are asked for.
static APART void attend_back(const REAL* q, const REAL* k, const REAL* v, REAL* o, const REAL* by_o, REAL* by_q,
                              REAL* by_k, REAL* by_v, const REAL* largest, const REAL* inverse, REAL scale) {
    alignas(64) REAL w[N * LANES], by_s[N * LANES];
    static thread_local REAL w_rows[PADDED * PADDED], by_s_rows[PADDED * PADDED];
    for (int i = 0; i < N; i += LANES) {
        products<R>(w, k, q + i);
        products<V>(by_s, v, by_o + i);
        const vec top = get(largest + i, i), one_over = get(inverse + i, i);
        const auto weighted = [&](int j) {
            at(w + j * LANES) = power_of_two(at(w + j * LANES) - top) * one_over;
            return at(w + j * LANES) * at(by_s + j * LANES);
        };
        const vec mean = folded(weighted, [](vec a, vec b) { return a + b; });
        UNROLL for (int j = 0; j < N; j++)
            at(by_s + j * LANES) = at(w + j * LANES) * (at(by_s + j * LANES) - mean);
        mixed<V, LANES>(v, w, [&](int c, vec s) { put(o + c * UNIT + i, s, i); });
        mixed<R, LANES>(k, by_s, [&](int c, vec s) { put(by_q + c * UNIT + i, s * scale, i); });
        if (summed<V>) add_sums(by_v, w, by_o + i, 1, i == 0);
        else if (by_k) transposed(w_rows + i * PADDED, w);
        if (summed<R>) add_sums(by_k, by_s, q + i, LN2, i == 0);
        else if (by_k) transposed(by_s_rows + i * PADDED, by_s);
    }
    const auto end = [&](REAL* to, REAL factor, int j) {
        return [=](int c, vec s) {
            REAL* place = to + c * UNIT + j;
            put(place, MERGED ? get(place, j) + s * factor : s * factor, j);
        };
    };
    for (int j = 0; by_k && j < N; j += LANES) {
        if (!summed<V>) mixed<V, PADDED>(by_o, w_rows + j, end(by_v, 1, j));
        if (!summed<R>) mixed<R, PADDED>(q, by_s_rows + j, end(by_k, LN2, j));
    }
}

// ---- all heads of all samples --------------------------------------------------------------------------------------

extern "C" void forward(const REAL* x, const REAL* wq, const REAL* bq, const REAL* wk, const REAL* wv, const REAL* bv,
                        const REAL* wo, Made* made, REAL* result, REAL* largest, REAL* inverse, long heads, long units,
                        double scale) {
    for (long head = 0; head < heads; head += GROUP)
        for (long u = 0; u < units; u++, made++) {
            const REAL* xu = x + u * W * UNIT;
            project<QK>(made->q, wq + head * R * W, bq + head * R, xu, scale / LN2);
            if (!MERGED) project<QK>(made->k, wk + head * R * W, nullptr, xu, 1);
            if (!MERGED) project<VO>(made->v, wv + head * V * W, bv + head * V, xu, 1);
            for (int g = 0; g < GROUP; g++)
                for (int s = 0; s < UNIT; s += N) {
                    const int qk = g * R * UNIT + s, vo = g * V * UNIT + s;
                    const long place = ((head + g) * units + u) * UNIT + s;
                    attend(made->q + qk, MERGED ? xu + s : made->k + qk, MERGED ? xu + s : made->v + vo, room.o + vo,
                           largest + place, inverse + place);
                }
            project_back<VO>(result + u * W * UNIT, wo + head * V * W, room.o);
        }
}

extern "C" void backward(const REAL* x, const REAL* tokens, const REAL* outer, const REAL* outer_tokens, const REAL* wq,
                         const REAL* wk, const REAL* wv, const REAL* wo, const Made* made, const REAL* largest,
                         const REAL* inverse, REAL* by_x, REAL* by_wq, REAL* by_bq, REAL* by_wk, REAL* by_wv,
                         REAL* by_bv, REAL* by_wo, long heads, long units, double scale) {
    for (long head = 0; head < heads; head += GROUP)
        for (long u = 0; u < units; u++, made++) {
            const long unit = u * W * UNIT;
            const REAL* xu = x + unit;
            REAL* to = by_x ? by_x + unit : nullptr;
            project<VO>(room.by_o, wo + head * V * W, nullptr, outer + unit, 1);
            for (int g = 0; g < GROUP; g++)
                for (int s = 0; s < UNIT; s += N) {
                    const int qk = g * R * UNIT + s, vo = g * V * UNIT + s;
                    const long place = ((head + g) * units + u) * UNIT + s;
                    REAL* by_k = !MERGED ? room.by_k + qk : to ? to + s : nullptr;
                    attend_back(made->q + qk, MERGED ? xu + s : made->k + qk, MERGED ? xu + s : made->v + vo,
                                room.o + vo, room.by_o + vo, room.by_q + qk, by_k, MERGED ? by_k : room.by_v + vo,
                                largest + place, inverse + place, scale);
                }
            add_derivatives<VO>(by_wo + head * V * W, nullptr, room.o, outer_tokens + unit);
            add_derivatives<QK>(by_wq + head * R * W, by_bq + head * R, room.by_q, tokens + unit);
            if (to) project_back<QK>(to, wq + head * R * W, room.by_q);
            if (MERGED) continue;
            add_derivatives<QK>(by_wk + head * R * W, nullptr, room.by_k, tokens + unit);
            add_derivatives<VO>(by_wv + head * V * W, by_bv + head * V, room.by_v, tokens + unit);
            if (to) project_back<QK>(to, wk + head * R * W, room.by_k), project_back<VO>(to, wv + head * V * W, room.by_v);
        }
}
