// Attention of heads that are projected already, for sequences of any length; strips.py says why, and compiles this for
// one query/key rank R and one value rank V. Norms of queries and keys, rotary positions, learned scales, grouped keys,
// causal and padding masks are all done here, so that no tensor but queries, keys, values and outputs is ever written.
//
// BLOCK queries of a head are done at a time, with all keys that they may see: a strip of scores (keys, BLOCK) stays in
// the first or second cache, and softmax goes down it, from vector to vector. What is made of queries stands in columns,
// (rank, BLOCK); keys and values stand in rows, (keys, rank), padded to whole vectors and whole tiles with zeros. Then
// no scores need to be transposed, in either direction: each of the seven products finds its right factor's rows in order.
//
// `qkv` is (batch, tokens, heads · R + kv_heads · (R + V)), `result` (batch, tokens, heads · V); `largest` and `inverse`
// (batch, heads, tokens) are each query's largest logit, in powers of two, and what its weights are multiplied by.

#include "tiles.h"

constexpr REAL LN2 = 0.693147180559945309;
constexpr int BLOCK = 2 * LANES;
constexpr int KEYS = BYTES == 64 ? 8 : 4;  // of a tile
constexpr int padded(int rank) { return (rank + LANES - 1) / LANES * LANES; }
constexpr int RP = padded(R), VP = padded(V);

static inline long whole(long count, long size) { return (count + size - 1) / size * size; }

// ---- memory --------------------------------------------------------------------------------------------------------

// All of one thread's, for sequences of so many keys
struct Room {
    char* memory = nullptr;
    long keys = 0;
    REAL *k, *v, *by_k, *by_v, *w, *by_s;

    void fit(long wanted) {
        if (wanted > keys) {
            std::free(memory);
            memory = (char*)std::aligned_alloc(64, whole(wanted * (2 * RP + 2 * VP + 2 * BLOCK) * sizeof(REAL), 64));
            keys = wanted;
        }
        REAL** parts[] = {&k, &v, &by_k, &by_v, &w, &by_s};
        const int sizes[] = {RP, VP, RP, VP, BLOCK, BLOCK};
        REAL* place = (REAL*)memory;
        for (int i = 0; i < 6; i++) *parts[i] = place, place += wanted * sizes[i];
    }
    ~Room() { std::free(memory); }
};

static thread_local Room room;

struct Problem {
    long tokens, heads, kv_heads, causal, half;  // half of the dimensions that are rotated
    REAL eps, scale;                             // eps is negative without norms
    const REAL *cos, *sin;                       // (half, tokens padded to a multiple of 16)
    const uint8_t* allowed;                      // (batch, tokens)

    long row() const { return heads * R + kv_heads * (R + V); }
    long query(long h) const { return h * R; }
    long key(long g) const { return heads * R + g * R; }
    long value(long g) const { return (heads + kv_heads) * R + g * V; }
    long group() const { return heads / kv_heads; }
};

// ---- between rows of tokens and columns ----------------------------------------------------------------------------

// Part of a vector: by way of memory it would cost a store that the next load has to wait for
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PARTS 1
#endif
#endif

#ifdef PARTS
template <int SIZE> struct Part {
    typedef REAL type __attribute__((vector_size(SIZE * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
};

template <int SIZE, int... I> static inline vec widened(const REAL* from, std::integer_sequence<int, I...>) {
    typedef typename Part<SIZE>::type part;
    return __builtin_shufflevector(*(const part*)from, part{}, (I < SIZE ? I : SIZE)...);
}

template <int SIZE, int... I> static inline void put_narrowed(REAL* to, vec x, std::integer_sequence<int, I...>) {
    *(typename Part<SIZE>::type*)to = __builtin_shufflevector(x, x, I...);
}
constexpr bool has_parts(int size) { return size > 1 && (size & (size - 1)) == 0; }
#else
template <int SIZE, class I> static inline vec widened(const REAL*, I) { return {}; }
template <int SIZE, class I> static inline void put_narrowed(REAL*, vec, I) {}
constexpr bool has_parts(int) { return false; }
#endif

// LANES numbers from the c-th of COUNT; beyond them 0
template <int COUNT> static inline vec some(const REAL* from, int c) {
    constexpr int rest = COUNT % LANES;
    if (c + LANES <= COUNT) return at(from + c);
    if constexpr (has_parts(rest)) return widened<rest>(from + c, std::make_integer_sequence<int, LANES>());
    vec x{};
    std::memcpy(&x, from + c, rest * sizeof(REAL));
    return x;
}

template <int COUNT> static inline void put_some(REAL* to, int c, vec x) {
    constexpr int rest = COUNT % LANES;
    if (c + LANES <= COUNT) at(to + c) = x;
    else if constexpr (has_parts(rest)) put_narrowed<rest>(to + c, x, std::make_integer_sequence<int, rest>());
    else std::memcpy(to + c, &x, rest * sizeof(REAL));
}

// to (COUNT, LANES), rows BLOCK apart, from n rows of tokens, `row` apart; 0 where no token is
template <int COUNT> static inline void columns(REAL* to, const REAL* from, long row, long n) {
    for (int c = 0; c < COUNT; c += LANES) {
        vec m[LANES];
        if (n == LANES) {
            UNROLL for (int l = 0; l < LANES; l++) m[l] = some<COUNT>(from + l * row, c);
        } else {
            UNROLL for (int l = 0; l < LANES; l++) m[l] = l < n ? some<COUNT>(from + l * row, c) : vec{};
        }
        transpose(m);
        UNROLL for (int l = 0; l < LANES; l++)
            if (c + l < COUNT) at(to + (c + l) * BLOCK) = m[l];
    }
}

// The way back; with PADDED, rows end with zeros
template <int COUNT, bool PADDED> static inline void rows(REAL* to, const REAL* from, long row, long n) {
    for (int c = 0; c < COUNT; c += LANES) {
        vec m[LANES];
        UNROLL for (int l = 0; l < LANES; l++) m[l] = c + l < COUNT ? at(from + (c + l) * BLOCK) : vec{};
        transpose(m);
        const auto put = [&](int l) {
            if (PADDED) at(to + l * row + c) = m[l];
            else put_some<COUNT>(to + l * row, c, m[l]);
        };
        if (n == LANES) {  // from registers
            UNROLL for (int l = 0; l < LANES; l++) put(l);
        } else {
            for (int l = 0; l < n; l++) put(l);
        }
    }
}

// n rows times a factor, padded with zeros
template <int COUNT> static inline void copy_rows(REAL* to, const REAL* from, long row, long n, REAL factor = 1) {
    for (long l = 0; l < n; l++)
        for (int c = 0; c < COUNT; c += LANES) at(to + l * padded(COUNT) + c) = some<COUNT>(from + l * row, c) * factor;
}

// ---- norms, scales and rotary positions, in columns ----------------------------------------------------------------

// 1 / root mean square of every column
static inline vec inverse_size(const REAL* x, REAL eps) {
    vec total{};
    for (int c = 0; c < R; c++) total += at(x + c * BLOCK) * at(x + c * BLOCK);
    total = total / R + eps;
    for (int lane = 0; lane < LANES; lane++) total[lane] = 1 / std::sqrt(total[lane]);
    return total;
}

// By angles whose sines are `sign` times those of the tokens from the t-th
static inline void turn(REAL* x, const Problem& p, long t, REAL sign) {
    const long below = whole(p.tokens, 16);
    for (long c = 0; c < p.half; c++) {
        const vec cos = at(p.cos + c * below + t), sin = at(p.sin + c * below + t) * sign;
        vec &first = at(x + c * BLOCK), &second = at(x + (c + p.half) * BLOCK);
        const vec turned = first * cos - second * sin;
        second = second * cos + first * sin;
        first = turned;
    }
}

// What logits are made of, from LANES projected queries or keys
static inline void prepare(REAL* x, const Problem& p, long t, const REAL* weight, REAL factor) {
    const bool normed = p.eps >= 0;
    const vec each = normed ? inverse_size(x, p.eps) * factor : all(factor);
    if (normed || factor != 1)
        for (int c = 0; c < R; c++) at(x + c * BLOCK) *= weight ? each * weight[c] : each;
    turn(x, p, t, 1);
}

// by_x, from the derivative of what is prepared to that of the projected x; by_weight (R vectors) and by_factor are added to
static inline void prepare_back(REAL* by_x, const REAL* x, const Problem& p, long t, const REAL* weight, REAL factor,
                                REAL* by_weight, vec* by_factor) {
    turn(by_x, p, t, -1);
    if (p.eps < 0) {
        vec along{};
        for (int c = 0; c < R; c++) {
            along += at(by_x + c * BLOCK) * at(x + c * BLOCK);
            at(by_x + c * BLOCK) *= factor;
        }
        if (by_factor) *by_factor += along;
        return;
    }
    const vec inverse = inverse_size(x, p.eps);
    vec along{};
    for (int c = 0; c < R; c++) {
        const vec normed = at(x + c * BLOCK) * inverse, by = at(by_x + c * BLOCK);
        if (weight) at(by_weight + c * LANES) += by * normed * factor;
        at(by_x + c * BLOCK) = weight ? by * weight[c] : by;
        along += at(by_x + c * BLOCK) * normed;
    }
    if (by_factor) *by_factor += along;
    const vec mean = along / R;
    for (int c = 0; c < R; c++)
        at(by_x + c * BLOCK) = (at(by_x + c * BLOCK) - at(x + c * BLOCK) * inverse * mean) * (inverse * factor);
}

// ---- BLOCK queries of one head, or as many as VECTORS hold ---------------------------------------------------------

// Which keys some queries may see: all before `open`, then by place, none from `end`; tiles need `count`
struct Seen {
    long open, end, count;
    const uint8_t* allowed;
};

static inline Seen seen(const Problem& p, const uint8_t* allowed, long first, long n) {
    long end = p.tokens;
    while (allowed && end && !allowed[end - 1]) end--;
    if (p.causal && end > first + n) end = first + n;
    const long open = allowed ? 0 : p.causal && first + 1 < end ? first + 1 : end;
    return {open, end, whole(end, KEYS), allowed};
}

// Whether lanes of queries from the i-th may see the j-th key, for keys that are not open to all
typedef std::conditional_t<sizeof(REAL) == 4, int32_t, int64_t> integer;
typedef integer integers __attribute__((vector_size(BYTES)));

static inline vec only_seen(vec x, const Problem& p, const Seen& s, long i, long j, REAL otherwise) {
    if (j >= s.end || (s.allowed && !s.allowed[j])) return all(otherwise);
    if (!p.causal || j <= i) return x;
    integers place;
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    return place + (integer)i >= (integers{} + (integer)j) ? x : all(otherwise);
}

// w (keys, VECTORS) = keys · queries
template <int VECTORS> static inline auto scores(const REAL* k, const REAL* q) {
    Tile<KEYS, VECTORS> tile;
    tile.each([](int, int, vec& s) { s = vec{}; });
    tile.template add<RP, 1, BLOCK>(k, q, R);
    return tile;
}

template <int VECTORS>
static APART void attend(const Problem& p, const Seen& s, long first, const REAL* q, REAL* o, vec* top, vec* inverse) {
    REAL* w = room.w;
    vec total[VECTORS];
    UNROLL for (int c = 0; c < VECTORS; c++) top[c] = all(-INFINITY), total[c] = vec{};
    for (long j = 0; j < s.count; j += KEYS) {
        auto tile = scores<VECTORS>(room.k + j * RP, q);
        if (j + KEYS > s.open) tile.each([&](int r, int c, vec& x) {
            if (j + r >= s.open) x = only_seen(x, p, s, first + c, j + r, -INFINITY);
        });
        tile.each([&](int r, int c, vec& x) {
            top[c / LANES] = top[c / LANES] < x ? x : top[c / LANES];
            at(w + (j + r) * BLOCK + c) = x;
        });
    }
    UNROLL for (int c = 0; c < VECTORS; c++) top[c] = top[c] == -INFINITY ? vec{} : top[c];
    for (long j = 0; j < s.count; j += KEYS) {
        vec part[VECTORS] = {};
        UNROLL for (int r = 0; r < KEYS; r++)
            UNROLL for (int c = 0; c < VECTORS; c++) {
                vec& x = at(w + (j + r) * BLOCK + c * LANES);
                x = power_of_two(x - top[c]);
                part[c] += x;
            }
        UNROLL for (int c = 0; c < VECTORS; c++) total[c] += part[c];
    }
    UNROLL for (int c = 0; c < VECTORS; c++) inverse[c] = total[c] == 0 ? vec{} : 1 / total[c];
    tiles<V, VECTORS>([&](auto& tile, int i) {
        tile.each([](int, int, vec& s) { s = vec{}; });
        tile.template add<1, VP, BLOCK>(room.v + i, w, s.end);
        tile.each([&](int r, int c, vec& s) { at(o + (i + r) * BLOCK + c) = s * inverse[c / LANES]; });
    });
}

// to (keys, PADDED) += weights (keys, queries) · from (queries, PADDED)
template <int PADDED, int QUERIES> static inline void add_to_keys(REAL* to, const REAL* weights, const REAL* from, long count) {
    const auto with = [&](auto tile, int column) {
        for (long j = 0; j < count; j += KEYS) {
            REAL* place = to + j * PADDED + column;
            tile.each([&](int r, int c, vec& s) { s = at(place + r * PADDED + c); });
            tile.template add<BLOCK, 1, PADDED>(weights + j * BLOCK, from + column, QUERIES);
            tile.each([&](int r, int c, vec& s) { at(place + r * PADDED + c) = s; });
        }
    };
    int column = 0;
    for (; column + 2 * LANES <= PADDED; column += 2 * LANES) with(Tile<KEYS, 2>(), column);
    if (column < PADDED) with(Tile<KEYS, 1>(), column);
}

// by_q in columns; by_k (still to be multiplied by ln 2) and by_v are added to. `along` is o · by_o of every query.
template <int VECTORS>
static APART void attend_back(const Problem& p, const Seen& s, long first, const REAL* q, const REAL* q_rows,
                              const REAL* by_o, const REAL* by_o_rows, const vec* along, const vec* top,
                              const vec* inverse, REAL* by_q) {
    REAL *w = room.w, *by_s = room.by_s;
    for (long j = 0; j < s.count; j += KEYS) {
        {
            auto tile = scores<VECTORS>(room.k + j * RP, q);
            tile.each([&](int r, int c, vec& x) {
                x = power_of_two(x - top[c / LANES]) * inverse[c / LANES];
                if (j + r >= s.open) x = only_seen(x, p, s, first + c, j + r, 0);
                at(w + (j + r) * BLOCK + c) = x;
            });
        }
        Tile<KEYS, VECTORS> tile;
        tile.each([](int, int, vec& s) { s = vec{}; });
        tile.template add<VP, 1, BLOCK>(room.v + j * VP, by_o, V);
        tile.each([&](int r, int c, vec& x) {
            at(by_s + (j + r) * BLOCK + c) = at(w + (j + r) * BLOCK + c) * (x - along[c / LANES]);
        });
    }
    tiles<R, VECTORS>([&](auto& tile, int i) {
        tile.each([](int, int, vec& s) { s = vec{}; });
        tile.template add<1, RP, BLOCK>(room.k + i, by_s, s.end);
        tile.each([&](int r, int c, vec& s) { at(by_q + (i + r) * BLOCK + c) = s * p.scale; });
    });
    add_to_keys<VP, VECTORS * LANES>(room.by_v, w, by_o_rows, s.count);
    add_to_keys<RP, VECTORS * LANES>(room.by_k, by_s, q_rows, s.count);
}

// ---- all heads of all samples --------------------------------------------------------------------------------------

// Keys and values of one sample and one of its kv heads, prepared, in rows
static void take_keys(const Problem& p, const REAL* qkv, long g, const REAL* weight) {
    const long row = p.row(), n = p.tokens, count = whole(n, KEYS);
    if (p.eps < 0 && !p.half) copy_rows<R>(room.k, qkv + p.key(g), row, n);
    else
        for (long t = 0; t < n; t += LANES) {
            alignas(64) REAL x[R * BLOCK];
            const long some = n - t < LANES ? n - t : LANES;
            columns<R>(x, qkv + t * row + p.key(g), row, some);
            prepare(x, p, t, weight, 1);
            rows<R, true>(room.k + t * RP, x, RP, some);
        }
    copy_rows<V>(room.v, qkv + p.value(g), row, n);
    std::memset(room.k + n * RP, 0, (count - n) * RP * sizeof(REAL));
    std::memset(room.v + n * VP, 0, (count - n) * VP * sizeof(REAL));
}

static inline vec of_queries(const REAL* from, long n) {
    vec x{};
    std::memcpy(&x, from, (n < LANES ? n : LANES) * sizeof(REAL));
    return x;
}

// f(first token of LANES, how many there are, where their column stands), for n queries
template <class F> static inline void halves(long first, long n, F f) {
    for (int c = 0; c < n; c += LANES) f(first + c, n - c < LANES ? n - c : LANES, c);
}

extern "C" void forward(const REAL* qkv, const REAL* cos, const REAL* sin, const REAL* query_weight,
                        const REAL* key_weight, const REAL* logit_scale, const uint8_t* allowed, REAL* result,
                        REAL* largest, REAL* inverse, long batch, long tokens, long heads, long kv_heads, long causal,
                        long half, double eps, double scale) {
    const Problem p{tokens, heads, kv_heads, causal, half, (REAL)eps, (REAL)scale, cos, sin, allowed};
    room.fit(whole(tokens, KEYS));
    alignas(64) REAL q[R * BLOCK], o[V * BLOCK];
    const long row = p.row(), out = heads * V;
    for (long b = 0; b < batch; b++, qkv += tokens * row, result += tokens * out)
        for (long h = 0; h < heads; h++, largest += tokens, inverse += tokens) {
            if (h % p.group() == 0) take_keys(p, qkv, h / p.group(), key_weight);
            const REAL factor = p.scale / LN2 * (logit_scale ? logit_scale[h] : 1);
            for (long i = 0; i < tokens; i += BLOCK) {
                const long n = tokens - i < BLOCK ? tokens - i : BLOCK;
                halves(i, n, [&](long t, long some, int c) {
                    columns<R>(q + c, qkv + t * row + p.query(h), row, some);
                    prepare(q + c, p, t, query_weight, factor);
                });
                const Seen s = seen(p, allowed ? allowed + b * tokens : nullptr, i, n);
                vec top[2], one_over[2];
                if (n > LANES) attend<2>(p, s, i, q, o, top, one_over);
                else attend<1>(p, s, i, q, o, top, one_over);
                halves(i, n, [&](long t, long some, int c) {
                    rows<V, false>(result + t * out + h * V, o + c, out, some);
                    std::memcpy(largest + t, &top[c / LANES], some * sizeof(REAL));
                    std::memcpy(inverse + t, &one_over[c / LANES], some * sizeof(REAL));
                });
            }
        }
}

// Sums over lanes
static void add_lanes(REAL* to, const REAL* from, int count) {
    for (int c = 0; c < count; c++)
        for (int lane = 0; lane < LANES; lane++) to[c] += from[c * LANES + lane];
}

extern "C" void backward(const REAL* qkv, const REAL* cos, const REAL* sin, const REAL* query_weight,
                         const REAL* key_weight, const REAL* logit_scale, const uint8_t* allowed, const REAL* result,
                         const REAL* largest, const REAL* inverse, const REAL* by_result, REAL* by_qkv,
                         REAL* by_query_weight, REAL* by_key_weight, REAL* by_logit_scale, long batch, long tokens,
                         long heads, long kv_heads, long causal, long half, double eps, double scale) {
    const Problem p{tokens, heads, kv_heads, causal, half, (REAL)eps, (REAL)scale, cos, sin, allowed};
    const long row = p.row(), out = heads * V, count = whole(tokens, KEYS);
    room.fit(count);
    alignas(64) REAL raw[R * BLOCK], q[R * BLOCK], by_q[R * BLOCK], o[V * BLOCK], by_o[V * BLOCK];
    alignas(64) REAL q_rows[BLOCK * RP] = {}, by_o_rows[BLOCK * VP] = {};
    alignas(64) REAL by_qw[R * LANES] = {}, by_kw[R * LANES] = {};
    for (long b = 0; b < batch; b++) {
        for (long h = 0; h < heads; h++, largest += tokens, inverse += tokens) {
            const long g = h / p.group();
            if (h % p.group() == 0) {
                take_keys(p, qkv, g, key_weight);
                std::memset(room.by_k, 0, count * RP * sizeof(REAL));
                std::memset(room.by_v, 0, count * VP * sizeof(REAL));
            }
            const REAL own = logit_scale ? logit_scale[h] : 1, factor = p.scale / LN2 * own;
            vec by_own{};
            for (long i = 0; i < tokens; i += BLOCK) {
                const long n = tokens - i < BLOCK ? tokens - i : BLOCK, some_rows = n > LANES ? BLOCK : LANES;
                vec top[2] = {}, one_over[2] = {}, along[2] = {};
                std::memset(q_rows + n * RP, 0, (some_rows - n) * RP * sizeof(REAL));
                std::memset(by_o_rows + n * VP, 0, (some_rows - n) * VP * sizeof(REAL));
                halves(i, n, [&](long t, long some, int c) {
                    columns<R>(raw + c, qkv + t * row + p.query(h), row, some);
                    for (int r = 0; r < R; r++) at(q + r * BLOCK + c) = at(raw + r * BLOCK + c);
                    prepare(q + c, p, t, query_weight, factor);
                    REAL* place = q_rows + c * RP;
                    if (p.eps < 0 && !p.half) copy_rows<R>(place, qkv + t * row + p.query(h), row, some, factor);
                    else rows<R, true>(place, q + c, RP, some);
                    columns<V>(o + c, result + t * out + h * V, out, some);
                    columns<V>(by_o + c, by_result + t * out + h * V, out, some);
                    copy_rows<V>(by_o_rows + c * VP, by_result + t * out + h * V, out, some);
                    for (int r = 0; r < V; r++) along[c / LANES] += at(o + r * BLOCK + c) * at(by_o + r * BLOCK + c);
                    top[c / LANES] = of_queries(largest + t, some);
                    one_over[c / LANES] = of_queries(inverse + t, some);
                });
                const Seen s = seen(p, allowed ? allowed + b * tokens : nullptr, i, n);
                if (n > LANES) attend_back<2>(p, s, i, q, q_rows, by_o, by_o_rows, along, top, one_over, by_q);
                else attend_back<1>(p, s, i, q, q_rows, by_o, by_o_rows, along, top, one_over, by_q);
                halves(i, n, [&](long t, long some, int c) {
                    prepare_back(by_q + c, raw + c, p, t, query_weight, own, by_qw, &by_own);
                    rows<R, false>(by_qkv + t * row + p.query(h), by_q + c, row, some);
                });
            }
            if (by_logit_scale)
                for (int lane = 0; lane < LANES; lane++) by_logit_scale[h] += by_own[lane];
            if ((h + 1) % p.group()) continue;
            for (long t = 0; t < tokens; t += LANES) {
                const long some = tokens - t < LANES ? tokens - t : LANES;
                columns<R>(by_q, room.by_k + t * RP, RP, some);
                for (int r = 0; r < R; r++) at(by_q + r * BLOCK) *= LN2;
                columns<R>(raw, qkv + t * row + p.key(g), row, some);
                prepare_back(by_q, raw, p, t, key_weight, 1, by_kw, nullptr);
                rows<R, false>(by_qkv + t * row + p.key(g), by_q, row, some);
                for (long l = 0; l < some; l++)
                    std::memcpy(by_qkv + (t + l) * row + p.value(g), room.by_v + (t + l) * VP, V * sizeof(REAL));
            }
        }
        qkv += tokens * row, by_qkv += tokens * row, result += tokens * out, by_result += tokens * out;
    }
    if (query_weight) add_lanes(by_query_weight, by_qw, R);
    if (key_weight) add_lanes(by_key_weight, by_kw, R);
}
