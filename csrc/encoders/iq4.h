/* IQ4_NL and IQ4_XS: sixteen unevenly spaced levels. */
#ifndef GGUFX_ENCODERS_IQ4_H
#define GGUFX_ENCODERS_IQ4_H

#include "../tables.h"
#include "pack.h"
#include "searches.h"

/* Halfway between neighbours, in the order of a bisection: first the one between levels 7 and 8, then those of the
 * quarters, eighths and sixteenths. Close to them ggml's differences are exact, so comparing with them is the same. */
static const float iq4_halfway[16] = {-4.5f,   -57, 45.5f, 0,   -93.5f, -28.5f, 19, 79,
                                      -115.5f, -74, -42,   -16, 7,      31.5f,  61, 101};

/* Number of the nearest level, the higher one halfway; NaN counts as high. */
INLINE wide_int iq4_code(wide v) {
    const wide_int one = every_int(1), none = every_int(0);
    wide_int at = choose_int(less(v, every(iq4_halfway[0])), none, one);
    at = int_add(
        int_add(at, at),
        choose_int(less(v, choose(int_same(at, none), every(iq4_halfway[1]), every(iq4_halfway[2]))), none, one));
    at = int_add(int_add(at, at), choose_int(less(v, table16(iq4_halfway, int_add(at, every_int(4)))), none, one));
    return int_add(int_add(at, at), choose_int(less(v, table16(iq4_halfway, int_add(at, every_int(8)))), none, one));
}

INLINE wide iq4_scale(const wide *x, const wide *w) {
    float levels[16];
    for (int i = 0; i < 16; i++) levels[i] = kvalues_iq4nl[i];
    const peak top = first_peak(x, 32);
    wide d = every(0), best = every(0);
    for (int step = -8; step <= 7; step++) {
        /* The first candidate isn't a step: -127 / max by another route, kept even where it has no weight. */
        const wide id = step == -8 ? divide(every(1), divide(negate(top.value), every(levels[0])))
                                   : divide(every((float)step + levels[0]), top.value);
        wide sumqx = every(0), sumq2 = every(0);
        for (int i = 0; i < 32; i++) {
            const wide q = table16(levels, iq4_code(multiply(id, x[i]))), wq = multiply(w[i], q);
            sumqx = add(sumqx, multiply(wq, x[i]));
            sumq2 = add(sumq2, multiply(wq, q));
        }
        mask better = more(sumq2, every(0));
        if (step > -8) better = mask_and(better, more(multiply(sumqx, sumqx), multiply(best, sumq2)));
        d = choose(better, divide(sumqx, sumq2), d);
        best = choose(better, multiply(d, sumqx), best);
    }
    return zero_where(less(top.size, every(TINY)), d);
}

/* sigma2: twice the mean square of the block that qw belongs to. */
INLINE void iq4_weights(const columns *in, wide *w, int start, wide sigma2) {
    for (int i = 0; i < 32; i++) {
        const wide x = in->x[start + i];
        w[i] = in->qw ? weight(x, in->qw[start + i], sigma2) : multiply(x, x);
    }
}

static void encode_iq4_nl(const columns *in, uint8_t *const *block) {
    wide w[32];
    wide_int q[32];
    iq4_weights(in, w, 0, multiply(sum_of_squares(in->x, 32), every(2.0f / 32)));
    const wide d = iq4_scale(in->x, w), id = inverse(d);
    for (int i = 0; i < 32; i++) q[i] = iq4_code(multiply(id, in->x[i]));
    pack(block, 0, half_of(d), 2);
    pack_codes(block, 2, q, 32, 16, 4);
}

static void encode_iq4_xs(const columns *in, uint8_t *const *block) {
    wide scales[8];
    const wide sigma2 = multiply(sum_of_squares(in->x, 256), every(2.0f / 256));
    for (int j = 0; j < 8; j++) {
        wide w[32];
        iq4_weights(in, w, 32 * j, sigma2);
        scales[j] = iq4_scale(in->x + 32 * j, w);
    }
    const wide d = divide(negate(first_peak(scales, 8).value), every(32)), id = inverse(d);
    wide_int low = every_int(0), high = every_int(0), q[256];
    for (int j = 0; j < 8; j++) {
        const wide l = within(nearest(multiply(id, scales[j])), -32, 31), idl = inverse(multiply(d, l));
        for (int i = 32 * j; i < 32 * j + 32; i++) q[i] = iq4_code(multiply(idl, in->x[i]));
        const wide_int six = int_add(to_int(l), every_int(32));
        low = int_or(low, shift_left(int_and(six, every_int(15)), 4 * j));
        high = int_or(high, shift_left(shift_right(six, 4), 2 * j));
    }
    pack(block, 0, int_or(half_of(d), shift_left(high, 16)), 4);
    pack(block, 4, low, 4);
    pack_codes(block, 8, q, 256, 16, 4);
}

#endif
