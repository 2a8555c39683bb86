/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1: blocks of 32, one scale each. */
#ifndef GGUFX_ENCODERS_LEGACY_H
#define GGUFX_ENCODERS_LEGACY_H

#include "pack.h"
#include "searches.h"

/* Scale, and codes 0 to 2*nmax-1 (overflowing products give 0, like x86's conversion of the smallest integer). */
INLINE wide symmetric_codes(const columns *in, wide_int *q, int nmax) {
    if (in->qw) {
        wide w[32];
        for (int i = 0; i < 32; i++) w[i] = weight(in->x[i], in->qw[i], in->row_mean);
        const signed_fit fit = search_signed_scale(in->x, w, 32, nmax);
        for (int i = 0; i < 32; i++) q[i] = to_int(searched_code(in->x[i], &fit, nmax));
        return fit.scale;
    }
    const wide d = divide(first_peak(in->x, 32).value, every((float)-nmax)), id = inverse(d);
    UNROLL(4)
    for (int i = 0; i < 32; i++) {
        const wide_int code = to_int(add(multiply(in->x[i], id), every((float)nmax + 0.5f)));
        q[i] = int_and(int_smaller(code, every_int(2 * nmax - 1)), every_int(2 * nmax - 1));
    }
    return d;
}

typedef struct {
    wide scale, low;
} offset_scale;

INLINE offset_scale offset_codes(const columns *in, wide_int *q, int nmax) {
    if (in->qw) {
        wide w[32];
        for (int i = 0; i < 32; i++) w[i] = weight(in->x[i], in->qw[i], in->row_mean);
        const offset_fit fit = search_min_and_scale(in->x, w, 32, nmax, -0.9f, 0.05f, 36, 0);
        for (int i = 0; i < 32; i++) q[i] = to_int(offset_code(in->x[i], fit.inverse, fit.origin, nmax));
        const offset_scale r = {fit.scale, negate(fit.below)};
        return r;
    }
    wide low = in->x[0], high = in->x[0];
    UNROLL(4)
    for (int i = 1; i < 32; i++) low = smaller(in->x[i], low), high = larger(in->x[i], high);
    const offset_scale r = {divide(subtract(high, low), every((float)nmax)), low};
    const wide id = inverse(r.scale);
    UNROLL(4)
    for (int i = 0; i < 32; i++) {
        wide_int code = to_int(add(multiply(subtract(in->x[i], low), id), every(0.5f)));
        if (nmax == 15) code = int_smaller(code, every_int(15)); /* ggml doesn't limit Q5_1 */
        q[i] = int_and(code, every_int(nmax));
    }
    return r;
}

INLINE void pack_five_bits(uint8_t *const *block, size_t at, wide_int *q) {
    wide_int high = every_int(0);
    for (int i = 0; i < 32; i++) high = int_or(high, shift_left(shift_right(q[i], 4), i));
    for (int i = 0; i < 32; i++) q[i] = int_and(q[i], every_int(15));
    pack(block, at, high, 4);
    pack_codes(block, at + 4, q, 32, 16, 4);
}

static void encode_q4_0(const columns *in, uint8_t *const *block) {
    wide_int q[32];
    pack(block, 0, half_of(symmetric_codes(in, q, 8)), 2);
    pack_codes(block, 2, q, 32, 16, 4);
}

static void encode_q4_1(const columns *in, uint8_t *const *block) {
    wide_int q[32];
    const offset_scale s = offset_codes(in, q, 15);
    pack(block, 0, packed_halves(s.scale, s.low), 4);
    pack_codes(block, 4, q, 32, 16, 4);
}

static void encode_q5_0(const columns *in, uint8_t *const *block) {
    wide_int q[32];
    pack(block, 0, half_of(symmetric_codes(in, q, 16)), 2);
    pack_five_bits(block, 2, q);
}

static void encode_q5_1(const columns *in, uint8_t *const *block) {
    wide_int q[32];
    const offset_scale s = offset_codes(in, q, 31);
    pack(block, 0, packed_halves(s.scale, s.low), 4);
    pack_five_bits(block, 4, q);
}

INLINE wide eight_bit_codes(const wide *x, wide_int *q) {
    const wide d = divide(largest(x, 32), every(127)), id = inverse(d);
    UNROLL(4)
    for (int i = 0; i < 32; i++) q[i] = round_away(multiply(x[i], id));
    return d;
}

static void encode_q8_0(const columns *in, uint8_t *const *block) {
    wide_int q[32];
    pack(block, 0, half_of(eight_bit_codes(in->x, q)), 2);
    pack_bytes(block, 2, q, 32);
}

static void encode_q8_1(const columns *in, uint8_t *const *block) {
    wide_int q[32], sum = every_int(0);
    const wide d = eight_bit_codes(in->x, q);
    for (int i = 0; i < 32; i++) sum = int_add(sum, signed_byte(q[i]));
    pack(block, 0, packed_halves(d, multiply(to_float(sum), d)), 4);
    pack_bytes(block, 4, q, 32);
}

static void encode_q8_k(const columns *in, uint8_t *const *block) {
    wide_int q[256];
    const peak top = first_peak(in->x, 256);
    const mask dead = same(top.size, every(0));
    const wide iscale = divide(every(-127), top.value);
    for (int i = 0; i < 256; i++)
        q[i] = to_int(zero_where(dead, smaller(every(127), nearest(multiply(iscale, in->x[i])))));
    pack(block, 0, as_int(zero_where(dead, divide(every(1), iscale))), 4);
    pack_bytes(block, 4, q, 256);
    for (int j = 0; j < 16; j++) {
        wide_int sum = every_int(0);
        for (int i = 0; i < 16; i++) sum = int_add(sum, signed_byte(q[16 * j + i]));
        pack(block, 260 + 2 * (size_t)j, sum, 2);
    }
}

#endif
