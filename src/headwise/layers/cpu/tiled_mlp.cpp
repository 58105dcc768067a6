// relu(x W₁ᵀ + b₁) W₂ᵀ + b₂, forward and backward; tiled.py says why, and compiles this for one width W.
//
// Hidden units go in panels of PANEL, some panels at a time, and what is made of them is used while a cache holds it.
// x, result, outer (the result's derivative) and by_x are (tokens, W); hidden is (panels, tokens, PANEL). The weights are
// wanted in both orders: w1 and w2t are (panels · PANEL, W), w1_panels and w2_panels (panels, W, PANEL).

#include "tiles.h"

constexpr int PANEL = 32, PANELS = 4;  // units, and panels at a time
constexpr int CHUNK = 128;             // tokens at a time in the backward pass: a panel of their units is in the first cache

static_assert(W % LANES == 0 && PANEL % (2 * LANES) == 0);

static thread_local REAL inner[PANELS][CHUNK][PANEL];

static inline long least(long a, long b) { return a < b ? a : b; }

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

// to (count, W) = start, a row, or without it += units (count, PANEL) weight (PANEL, W), for panels that stand apart
static APART void to_tokens(REAL* to, const REAL* start, const REAL* units, long apart, const REAL* weight, long panels,
                            long count) {
    const auto with = [&](int column) {
        return [=](auto& tile, long i) {
            tile.each([&](int r, int c, vec& s) { s = at(start ? start + column + c : to + (i + r) * W + column + c); });
            for (long p = 0; p < panels; p++)
                tile.template add<PANEL, 1, W>(units + p * apart + i * PANEL, weight + p * PANEL * W + column, PANEL);
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

extern "C" void forward(const REAL* x, const REAL* w1_panels, const REAL* b1, const REAL* w2t, const REAL* b2,
                        REAL* hidden, REAL* result, long tokens, long panels) {
    for (long first = 0; first < panels; first += PANELS) {
        const long some = least(PANELS, panels - first);
        for (long p = first; p < first + some; p++) {
            REAL* to = hidden + p * tokens * PANEL;
            to_units(x, w1_panels + p * W * PANEL, tokens, [&](int c) { return at(b1 + p * PANEL + c); },
                     [&](long i, int c, vec s) { at(to + i * PANEL + c) = s < 0 ? vec{} : s; });  // NaN stays NaN
        }
        to_tokens(result, first ? nullptr : b2, hidden + first * tokens * PANEL, tokens * PANEL, w2t + first * PANEL * W,
                  some, tokens);
    }
}

extern "C" void backward(const REAL* x, const REAL* outer, const REAL* hidden, const REAL* w1, const REAL* w2_panels,
                         REAL* by_x, REAL* by_w1_panels, REAL* by_b1, REAL* by_w2_panels, long tokens, long panels) {
    for (long first = 0; first < panels; first += PANELS)
        for (long t = 0; t < tokens; t += CHUNK) {
            const long some = least(PANELS, panels - first), count = least(CHUNK, tokens - t);
            for (long p = first; p < first + some; p++) {
                REAL* to = inner[p - first][0];
                const REAL* seen = hidden + (p * tokens + t) * PANEL;
                to_units(outer + t * W, w2_panels + p * W * PANEL, count, [](int) { return vec{}; },
                         [&](long i, int c, vec s) {
                             s = at(seen + i * PANEL + c) <= 0 ? vec{} : s;
                             at(to + i * PANEL + c) = s;
                             at(by_b1 + p * PANEL + c) += s;
                         });
                add_derivatives(by_w1_panels + p * W * PANEL, x + t * W, to, count);
                add_derivatives(by_w2_panels + p * W * PANEL, outer + t * W, seen, count);
            }
            to_tokens(by_x + t * W, nullptr, inner[0][0], CHUNK * PANEL, w1 + first * PANEL * W, some, count);
        }
}
