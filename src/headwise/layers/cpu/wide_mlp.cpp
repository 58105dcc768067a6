// What stands between the two products of a wide MLP, forward and backward; wide_mlp.py says why, and compiles this for one
// ACTIVATION, and GATED or not.
//
// sums (tokens, units) are x W₁ᵀ, without the bias; gated, (tokens, 2 units): what is activated, then what that multiplies.
// Units are in whole vectors. `made` (tokens, units) is what goes into the second product.

#include "tiles.h"

#include "activations.h"

extern "C" void forward(const REAL* sums, const REAL* bias, REAL* made, long tokens, long units) {
    for (long t = 0; t < tokens; t++, sums += (GATED ? 2 : 1) * units, made += units)
        for (long c = 0; c < units; c += LANES) {
            const vec value = activated(to_keep(at(sums + c) + at(bias + c))).value;
            at(made + c) = GATED ? value * (at(sums + units + c) + at(bias + units + c)) : value;
        }
}

// `made` again, the derivative by the sums, and what is added to that by the bias
extern "C" void backward(const REAL* sums, const REAL* bias, const REAL* by_made, REAL* made, REAL* by_sums,
                         REAL* by_bias, long tokens, long units) {
    for (long t = 0; t < tokens; t++, sums += (GATED ? 2 : 1) * units, by_sums += (GATED ? 2 : 1) * units)
        for (long c = 0; c < units; c += LANES) {
            const long place = t * units + c;
            const Activated it = activated(to_keep(at(sums + c) + at(bias + c)));
            const vec by = at(by_made + place);
            if (GATED) {
                const vec up = at(sums + units + c) + at(bias + units + c), by_up = by * it.value;
                at(made + place) = it.value * up;
                at(by_sums + units + c) = by_up;
                at(by_bias + units + c) += by_up;
                at(by_bias + c) += at(by_sums + c) = by * it.slope * up;
            } else {
                at(made + place) = it.value;
                at(by_bias + c) += at(by_sums + c) = by * it.slope;
            }
        }
}
