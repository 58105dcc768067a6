// Products of small matrices in registers, and functions of vectors, for the kernels beside this file.
//
// A tile is some rows and one or two vectors of columns of a product. Each step of its sum loads the vectors of the right
// factor's row and multiplies them by one number of the left factor for each row, from wherever that stands: DOWN is how
// far apart numbers of one column of the left factor are, ALONG those of one row, BELOW those of one column of the right
// factor. So the left factor may be transposed for nothing, and the right one must have its rows in order.
//
// REAL is float or double.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

#define UNROLL _Pragma("GCC unroll 16")  // or sums are not kept in registers
#define APART __attribute__((noinline))  // or one function of everything runs out of registers

typedef REAL vec __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
constexpr int LANES = BYTES / sizeof(REAL);
constexpr int MOST_OF_TWO = BYTES == 64 ? 14 : 6;  // rows of a tile: with what they are multiplied by, all registers
constexpr int MOST_OF_ONE = BYTES == 64 ? 16 : 8;
constexpr int CHAINS = 8;  // additions that do not wait for each other: two at a time, each takes four cycles

static inline vec& at(REAL* place) { return *(vec*)place; }
static inline const vec& at(const REAL* place) { return *(const vec*)place; }
static inline vec all(REAL value) { return vec{} + value; }

template <int ROWS, int VECTORS> struct Tile {
    vec sum[ROWS][VECTORS];

    // f(row, column, sum)
    template <class F> inline void each(F f) {
        UNROLL for (int i = 0; i < ROWS; i++) {
            UNROLL for (int c = 0; c < VECTORS; c++) f(i, c * LANES, sum[i][c]);
        }
    }

    template <int DOWN> inline void add_one(const REAL* left, const REAL* right) {
        vec row[VECTORS];
        UNROLL for (int c = 0; c < VECTORS; c++) row[c] = at(right + c * LANES);
        UNROLL for (int i = 0; i < ROWS; i++) {
            UNROLL for (int c = 0; c < VECTORS; c++) sum[i][c] += left[i * DOWN] * row[c];
        }
    }

    template <int DOWN, int ALONG, int BELOW> inline void add(const REAL* left, const REAL* right, long count) {
        constexpr int WAYS = ROWS * VECTORS >= CHAINS ? 1 : ROWS * VECTORS >= CHAINS / 2 ? 2 : 4;
        long k = 0;
        if constexpr (WAYS > 1) {
            Tile way[WAYS] = {};
            for (; k + WAYS <= count; k += WAYS) {
                UNROLL for (int w = 0; w < WAYS; w++)
                    way[w].template add_one<DOWN>(left + (k + w) * ALONG, right + (k + w) * BELOW);
            }
            UNROLL for (int w = 0; w < WAYS; w++) each([&](int i, int c, vec& s) { s += way[w].sum[i][c / LANES]; });
        }
        for (; k < count; k++) add_one<DOWN>(left + k * ALONG, right + k * BELOW);
    }
};

// f(tile, first row) for so many rows, in as few tiles as hold them, of sizes that differ by one at most
template <int ROWS, int VECTORS, class F> static inline void tiles(F f) {
    constexpr int most = VECTORS == 2 ? MOST_OF_TWO : MOST_OF_ONE;
    constexpr int count = (ROWS + most - 1) / most, fewer = ROWS / count, larger = ROWS % count;
    for (int n = 0; n < count; n++) {
        const int i = n * fewer + (n < larger ? n : larger);
        if constexpr (larger > 0) {
            Tile<fewer + 1, VECTORS> tile;
            if (n < larger) f(tile, i);
        }
        Tile<fewer, VECTORS> tile;
        if (n >= larger) f(tile, i);
    }
}

// The same where the number of rows is only known now
template <int VECTORS, int ROWS, class F> static inline void one_tile(int rows, long i, F& f) {
    if (rows == ROWS) {
        Tile<ROWS, VECTORS> tile;
        f(tile, i);
    } else if constexpr (ROWS > 1) one_tile<VECTORS, ROWS - 1>(rows, i, f);
}

template <int VECTORS, class F> static inline void tiles_of(long rows, F f) {
    const long count = (rows + MOST_OF_TWO - 1) / MOST_OF_TWO;
    for (long n = 0; n < count; n++) {
        const long first = n * rows / count, end = (n + 1) * rows / count;
        one_tile<VECTORS, MOST_OF_TWO>(end - first, first, f);
    }
}

// end(row, column, start(row, column) + left right) for ROWS × COLUMNS, a multiple of LANES
template <int ROWS, int COLUMNS, int DOWN, int ALONG, int BELOW, class Start, class End>
static inline void product(const REAL* left, const REAL* right, int count, Start start, End end) {
    constexpr int pairs = COLUMNS / (2 * LANES) * 2 * LANES;
    const auto with = [&](int column) {
        return [&, column](auto& tile, int i) {
            tile.each([&](int r, int c, vec& s) { s = start(i + r, column + c); });
            tile.template add<DOWN, ALONG, BELOW>(left + i * DOWN, right + column, count);
            tile.each([&](int r, int c, vec& s) { end(i + r, column + c, s); });
        };
    };
    for (int column = 0; column < pairs; column += 2 * LANES) tiles<ROWS, 2>(with(column));
    if constexpr (pairs < COLUMNS) tiles<ROWS, 1>(with(pairs));
}

// ---- functions of vectors -------------------------------------------------------------------------------------------

// 2 to the x, for x not above 0 but by rounding; 0 where no float is so small.
static inline vec power_of_two(vec x) {
    if constexpr (sizeof(REAL) == 8) {
        for (int lane = 0; lane < LANES; lane++) x[lane] = std::exp2(x[lane]);
        return x;
    } else {
        typedef int32_t integers __attribute__((vector_size(BYTES)));
        const REAL shift = 12582912 + 127;  // 1.5 · 2²³ rounds to an integer, 127 is what exponents are stored with
        vec shifted = x + shift;
        vec f = x - (shifted - shift);  // -½ to ½; the polynomial is within 8e-8 of 2 to the f
        vec p = 0.00132764725f * f + 0.00967554096f;
        p = p * f + 0.0555071309f;
        p = p * f + 0.240221202f;
        p = p * f + 0.693146944f;
        p = p * f + 1.00000012f;
        p *= (vec)((integers)shifted << 23);  // the integer's bits, moved to where an exponent stands
        return x < -126 ? vec{} : p;
    }
}

// Lanes of two vectors, the second's counted on from the first's
template <int... LANE> static inline vec picked(vec a, vec b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANE...);
#else
    typedef std::conditional_t<sizeof(REAL) == 4, int32_t, int64_t> integer;
    typedef integer integers __attribute__((vector_size(BYTES)));
    return __builtin_shuffle(a, b, integers{LANE...});
#endif
}

// Of two rows, every second STEP columns of the one and of the other, from the first and from the second such columns
template <int STEP, int... I> static inline void exchange(vec& a, vec& b, std::integer_sequence<int, I...>) {
    const vec first = picked<(I & STEP ? LANES + I - STEP : I)...>(a, b);
    b = picked<(I & STEP ? LANES + I : I + STEP)...>(a, b);
    a = first;
}

template <int STEP> static inline void exchange(vec& a, vec& b) {
    exchange<STEP>(a, b, std::make_integer_sequence<int, LANES>());
}

// m = mᵀ: halves are exchanged, then quarters, and so on
template <int STEP = LANES / 2> static inline void transpose(vec (&m)[LANES]) {
    UNROLL for (int i = 0; i < LANES; i++)
        if (!(i & STEP)) exchange<STEP>(m[i], m[i + STEP]);
    if constexpr (STEP > 1) transpose<STEP / 2>(m);
}

// The sums of the rows of m, in order
template <int STEP = LANES / 2> static inline vec sums(vec (&m)[LANES]) {
    UNROLL for (int i = 0; i < STEP; i++) {
        exchange<STEP>(m[i], m[i + STEP]);
        m[i] += m[i + STEP];
    }
    if constexpr (STEP > 1) return sums<STEP / 2>(m);
    return m[0];
}
