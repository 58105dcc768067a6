// act(x W₁ᵀ + b₁) W₂ᵀ + b₂, forward and backward, or gated, (act(x Wgᵀ + bg) · (x Wuᵀ + bu)) W₂ᵀ + b₂; mlp.py says why,
// and compiles this for one width W, one ACTIVATION, and GATED or not.
//
// Hidden units go in panels of PANEL, some panels at a time, and what is made of them is used while a cache holds it.
// x, residual (null, or added to the result), result, outer (its derivative) and by_x are (tokens, W); kept, what the
// backward pass makes the units again from, is (panels, tokens, PANEL), null where there is none to come. The weights are
// wanted in both orders: w1 and w2t are (panels · PANEL, W), w1_panels and w2_panels (panels, W, PANEL). Gated, as many
// panels of u follow those of g.

#include "tiles.h"

#include "activations.h"

constexpr int PANEL = 32, PANELS = 4;  // units, and panels at a time
constexpr int CHUNK = 128;             // tokens at a time: a panel of their units is in the first cache

static_assert(W % LANES == 0 && PANEL % (2 * LANES) == 0);

static thread_local struct Room {
    alignas(64) REAL units[PANELS][CHUNK][PANEL], by_gate[PANELS][CHUNK][PANEL], by_up[PANELS][CHUNK][PANEL];
} room;

static inline long least(long a, long b) { return a < b ? a : b; }

// ---- products --------------------------------------------------------------------------------------------------------

// end(token, unit, start(unit) + tokens (count, W) weight (W, PANEL))
template <class Start, class End>
static inline void to_units(const REAL* tokens, const REAL* weight, long count, Start start, End end) {
    for (int column = 0; column < PANEL; column += 2 * LANES)
        tiles_of<2>(count, [&](auto& tile, long i) {
            tile.each([&](int, int c, vec& s) { s = start(column + c); });
            tile.template add<W, 1, PANEL>(tokens + i * W, weight + column, W);
            tile.each([&](int r, int c, vec& s) { end(i + r, column + c, s); });
        });
}

// to (count, W) = start, a row, + from (count, W) + units (count, PANEL) weight (PANEL, W), for panels that stand apart
static APART void to_tokens(REAL* to, const REAL* start, const REAL* from, const REAL* units, const REAL* weight,
                            long panels, long count) {
    const auto with = [&](int column) {
        return [=](auto& tile, long i) {
            tile.each([&](int r, int c, vec& s) {
                s = start ? at(start + column + c) : vec{};
                if (from) s += at(from + (i + r) * W + column + c);
            });
            for (long p = 0; p < panels; p++)
                tile.template add<PANEL, 1, W>(units + (p * CHUNK + i) * PANEL, weight + p * PANEL * W + column, PANEL);
            tile.each([&](int r, int c, vec& s) { at(to + (i + r) * W + column + c) = s; });
        };
    };
    constexpr int pairs = W / (2 * LANES) * 2 * LANES;
    for (int column = 0; column < pairs; column += 2 * LANES) tiles_of<2>(count, with(column));
    if constexpr (pairs < W) tiles_of<1>(count, with(pairs));
}

// weight (W, PANEL) += tokensᵀ (W, count) units (count, PANEL)
static APART void add_derivatives(REAL* weight, const REAL* tokens, const REAL* units, long count) {
    product<W, PANEL, 1, W, PANEL>(
        tokens, units, count, [&](int r, int c) { return at(weight + r * PANEL + c); },
        [&](int r, int c, vec s) { at(weight + r * PANEL + c) = s; });
}

// to (columns) += the sums of rows (count, columns)
template <int COLUMNS> static inline void add_rows(REAL* to, const REAL* rows, long count) {
    for (int c = 0; c < COLUMNS; c += LANES) {
        vec total = at(to + c);
        for (long i = 0; i < count; i++) total += at(rows + i * COLUMNS + c);
        at(to + c) = total;
    }
}

// ---- the two passes --------------------------------------------------------------------------------------------------

extern "C" void forward(const REAL* x, const REAL* residual, const REAL* w1_panels, const REAL* b1, const REAL* w2t,
                        const REAL* b2, REAL* kept, REAL* result, long tokens, long panels) {
    const long half = panels * PANEL;
    for (long first = 0; first < panels; first += PANELS)
        for (long t = 0; t < tokens; t += CHUNK) {
            const long some = least(PANELS, panels - first), count = least(CHUNK, tokens - t);
            for (long p = first; p < first + some; p++) {
                REAL *to = room.units[p - first][0], *keep = kept ? kept + (p * tokens + t) * PANEL : nullptr;
                REAL* keep_up = kept ? keep + half * tokens : nullptr;
                to_units(x + t * W, w1_panels + p * W * PANEL, count, [&](int c) { return at(b1 + p * PANEL + c); },
                         [&](long i, int c, vec s) {
                             s = to_keep(s);
                             if (keep) at(keep + i * PANEL + c) = s;
                             at(to + i * PANEL + c) = activated(s).value;
                         });
                if (!GATED) continue;
                to_units(x + t * W, w1_panels + (panels + p) * W * PANEL, count,
                         [&](int c) { return at(b1 + half + p * PANEL + c); },
                         [&](long i, int c, vec s) {
                             if (keep) at(keep_up + i * PANEL + c) = s;
                             at(to + i * PANEL + c) *= s;
                         });
            }
            const REAL* from = first ? result : residual;
            to_tokens(result + t * W, first ? nullptr : b2, from ? from + t * W : nullptr, room.units[0][0],
                      w2t + first * PANEL * W, some, count);
        }
}

extern "C" void backward(const REAL* x, const REAL* outer, const REAL* kept, const REAL* w1, const REAL* w2_panels,
                         REAL* by_x, REAL* by_w1_panels, REAL* by_b1, REAL* by_w2_panels, REAL* by_b2, long tokens,
                         long panels) {
    const long half = panels * PANEL;
    for (long first = 0; first < panels; first += PANELS)
        for (long t = 0; t < tokens; t += CHUNK) {
            const long some = least(PANELS, panels - first), count = least(CHUNK, tokens - t);
            if (first == 0) add_rows<W>(by_b2, outer + t * W, count);
            for (long p = first; p < first + some; p++) {
                REAL *units = room.units[p - first][0], *by_gate = room.by_gate[p - first][0];
                REAL* by_up = room.by_up[p - first][0];
                const REAL *seen = kept + (p * tokens + t) * PANEL, *up = seen + half * tokens;
                to_units(outer + t * W, w2_panels + p * W * PANEL, count, [](int) { return vec{}; },
                         [&](long i, int c, vec s) {
                             const long place = i * PANEL + c;
                             const Activated it = activated(at(seen + place));
                             if (GATED) {
                                 at(units + place) = it.value * at(up + place);
                                 at(by_gate + place) = s * it.slope * at(up + place);
                                 at(by_up + place) = s * it.value;
                             } else {
                                 at(units + place) = it.value;
                                 at(by_gate + place) = s * it.slope;
                             }
                         });
                add_rows<PANEL>(by_b1 + p * PANEL, by_gate, count);
                add_derivatives(by_w1_panels + p * W * PANEL, x + t * W, by_gate, count);
                add_derivatives(by_w2_panels + p * W * PANEL, outer + t * W, units, count);
                if (!GATED) continue;
                add_rows<PANEL>(by_b1 + half + p * PANEL, by_up, count);
                add_derivatives(by_w1_panels + (panels + p) * W * PANEL, x + t * W, by_up, count);
            }
            REAL* to = by_x + t * W;
            to_tokens(to, nullptr, first ? to : nullptr, room.by_gate[0][0], w1 + first * PANEL * W, some, count);
            if (GATED) to_tokens(to, nullptr, to, room.by_up[0][0], w1 + (half + first * PANEL) * W, some, count);
        }
}
