/* Q2_K to Q6_K: super-blocks of 256 whose sub-blocks' scales and minima are quantized in turn. */
#ifndef GGUFX_ENCODERS_K_H
#define GGUFX_ENCODERS_K_H

#include "pack.h"
#include "searches.h"

/* Codes for the scale that was stored. A stored scale of zero keeps the codes of the search. */
INLINE wide_int divided_code(wide x, wide d, float low, float high, wide searched) {
    return to_int(choose(differs(d, every(0)), within(nearest(divide(x, d)), low, high), searched));
}

/* Scales or minima without importance: stored in `steps` parts of the largest; returns the half and the codes. */
INLINE wide_int parts_of_highest(const wide *v, wide_int *codes, int n, float steps) {
    const wide high = highest_positive(v, n), inverse_step = divide(every(steps), high);
    const mask live = more(high, every(0));
    for (int j = 0; j < n; j++) codes[j] = to_int(zero_where(mask_not(live), nearest(multiply(inverse_step, v[j]))));
    return half_of(divide(high, every(steps)));
}

INLINE wide_int parts_by_weight(const wide *v, const wide *sums, wide_int *codes, int n, int steps) {
    wide code[16];
    const wide_int half = half_of(search_positive_scale(v, sums, code, n, steps));
    for (int j = 0; j < n; j++) codes[j] = to_int(code[j]);
    return half;
}

static void encode_q2_k(const columns *in, uint8_t *const *block) {
    offset_fit fit[16];
    wide scales[16], mins[16], sums[16];
    const wide sigma2 = in->qw ? divide(sum_of_squares(in->x, 256), every(256)) : every(0);
    for (int j = 0; j < 16; j++) {
        const wide *x = in->x + 16 * j;
        wide w[16];
        if (in->qw) {
            sums[j] = every(0);
            for (int i = 0; i < 16; i++) sums[j] = add(sums[j], w[i] = weight(x[i], in->qw[16 * j + i], sigma2));
            fit[j] = search_min_and_scale(x, w, 16, 3, -0.9f, 0.05f, 36, 0);
        } else {
            for (int i = 0; i < 16; i++) w[i] = magnitude(x[i]);
            fit[j] = search_min_and_scale(x, w, 16, 3, -0.5f, 0.1f, 15, 1);
        }
        scales[j] = fit[j].scale;
        mins[j] = fit[j].below;
    }
    wide_int ls[16], lm[16], half_d, half_m, q[256];
    if (in->qw) {
        half_d = parts_by_weight(scales, sums, ls, 16, 15);
        half_m = parts_by_weight(mins, sums, lm, 16, 15);
    } else {
        half_d = parts_of_highest(scales, ls, 16, 15);
        half_m = parts_of_highest(mins, lm, 16, 15);
    }
    const wide d = half_value(half_d), m = half_value(half_m);
    for (int j = 0; j < 16; j++) {
        ls[j] = int_and(int_or(ls[j], shift_left(lm[j], 4)), every_int(255)); /* both, as one byte holds them */
        const wide dl = multiply(d, to_float(int_and(ls[j], every_int(15))));
        const wide ml = multiply(m, to_float(shift_right(ls[j], 4)));
        for (int i = 0; i < 16; i++) {
            const wide x = in->x[16 * j + i];
            q[16 * j + i] = divided_code(add(x, ml), dl, 0, 3, offset_code(x, fit[j].inverse, fit[j].origin, 3));
        }
    }
    pack_bytes(block, 0, ls, 16);
    pack_codes(block, 16, q, 256, 32, 2);
    pack(block, 80, int_or(half_d, shift_left(half_m, 16)), 4);
}

/* Q4_K and Q5_K up to their codes: d, dmin and the twelve bytes of scales. */
INLINE void encode_six_bit_offsets(const columns *in, uint8_t *const *block, wide_int *q, int nmax, float rmin,
                                   int steps) {
    offset_fit fit[8];
    wide scales[8], mins[8], sums[8];
    const wide sigma2 = in->qw ? divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256)) : every(0);
    for (int j = 0; j < 8; j++) {
        const wide *x = in->x + 32 * j;
        wide w[32];
        if (in->qw) {
            sums[j] = every(0);
            for (int i = 0; i < 32; i++) sums[j] = add(sums[j], w[i] = weight(x[i], in->qw[32 * j + i], sigma2));
            fit[j] = search_min_and_scale(x, w, 32, nmax, -0.9f, 0.05f, 36, 0);
        } else {
            const wide rms = root(divide(sum_of_squares(x, 32), every(32)));
            for (int i = 0; i < 32; i++) w[i] = add(rms, magnitude(x[i]));
            fit[j] = search_min_and_scale(x, w, 32, nmax, rmin, 0.1f, steps, 0);
        }
        scales[j] = fit[j].scale;
        mins[j] = fit[j].below;
    }
    wide_int ls[8], lm[8], half_d, half_m;
    if (in->qw) {
        half_d = parts_by_weight(scales, sums, ls, 8, 63);
        half_m = parts_by_weight(mins, sums, lm, 8, 63);
    } else {
        half_d = parts_of_highest(scales, ls, 8, 63);
        half_m = parts_of_highest(mins, lm, 8, 63);
    }
    /* ggml limits the bytes except for Q4_K with importance; there, too, only six bits of the first four are stored. */
    const int limit = !in->qw || nmax == 31;
    for (int j = 0; j < 8; j++) {
        ls[j] = int_and(ls[j], every_int(255));
        lm[j] = int_and(lm[j], every_int(255));
        if (limit) ls[j] = int_smaller(ls[j], every_int(63)), lm[j] = int_smaller(lm[j], every_int(63));
    }
    wide_int packed[12];
    const wide_int six = every_int(63), four = every_int(15);
    for (int j = 0; j < 4; j++) {
        packed[j] = int_or(int_and(ls[j], six), shift_left(shift_right(ls[j + 4], 4), 6));
        packed[j + 4] = int_or(int_and(lm[j], six), shift_left(shift_right(lm[j + 4], 4), 6));
        packed[j + 8] = int_or(int_and(ls[j + 4], four), shift_left(int_and(lm[j + 4], four), 4));
    }
    pack(block, 0, int_or(half_d, shift_left(half_m, 16)), 4);
    pack_bytes(block, 4, packed, 12);
    const wide d = half_value(half_d), m = half_value(half_m);
    for (int j = 0; j < 8; j++) {
        const wide dl = multiply(d, to_float(int_and(ls[j], six))), ml = multiply(m, to_float(int_and(lm[j], six)));
        for (int i = 0; i < 32; i++) {
            const wide x = in->x[32 * j + i];
            const wide searched = offset_code(x, fit[j].inverse, fit[j].origin, nmax);
            q[32 * j + i] = divided_code(add(x, ml), dl, 0, (float)nmax, searched);
        }
    }
}

static void encode_q4_k(const columns *in, uint8_t *const *block) {
    wide_int q[256];
    encode_six_bit_offsets(in, block, q, 15, -1, 20);
    pack_codes(block, 16, q, 256, 32, 4);
}

static void encode_q5_k(const columns *in, uint8_t *const *block) {
    wide_int q[256], high[256];
    encode_six_bit_offsets(in, block, q, 31, -0.5f, 15);
    for (int i = 0; i < 256; i++) {
        high[i] = shift_right(q[i], 4);
        q[i] = int_and(q[i], every_int(15));
    }
    pack_codes(block, 16, high, 256, 32, 1);
    pack_codes(block, 48, q, 256, 32, 4);
}

static void encode_q3_k(const columns *in, uint8_t *const *block) {
    wide codes[256], scales[16];
    wide_int six[16], half_d, q[256], high[256];
    if (in->qw) {
        const wide sigma2 = divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256));
        wide sums[16];
        for (int j = 0; j < 16; j++) {
            const wide *x = in->x + 16 * j;
            wide w[16];
            sums[j] = every(0);
            for (int i = 0; i < 16; i++) sums[j] = add(sums[j], w[i] = weight(x[i], in->qw[16 * j + i], sigma2));
            const signed_fit fit = search_signed_scale(x, w, 16, 4);
            scales[j] = fit.scale;
            for (int i = 0; i < 16; i++) codes[16 * j + i] = subtract(searched_code(x[i], &fit, 4), every(4));
        }
        const signed_fit fit = search_signed_scale(scales, sums, 16, 32);
        half_d = half_of(fit.scale);
        for (int j = 0; j < 16; j++) six[j] = to_int(searched_code(scales[j], &fit, 32));
    } else {
        for (int j = 0; j < 16; j += REFINED) search_refined_scales(in->x + 16 * j, codes + 16 * j, scales + j, 4);
        const wide top = first_peak(scales, 16).value, iscale = divide(every(-32), top);
        const mask dead = same(top, every(0));
        half_d = half_of(zero_where(dead, divide(every(1), iscale)));
        for (int j = 0; j < 16; j++) {
            const wide_int byte = signed_byte(to_int(nearest(multiply(iscale, scales[j]))));
            const wide_int code = int_add(int_larger(every_int(-32), int_smaller(every_int(31), byte)), every_int(32));
            six[j] = choose_int(dead, every_int(0), code);
        }
    }
    wide_int packed[12];
    for (int j = 0; j < 8; j++)
        packed[j] = int_or(int_and(six[j], every_int(15)), shift_left(int_and(six[j + 8], every_int(15)), 4));
    for (int j = 0; j < 4; j++) {
        packed[8 + j] = every_int(0);
        for (int k = 0; k < 4; k++)
            packed[8 + j] = int_or(packed[8 + j], shift_left(shift_right(six[j + 4 * k], 4), 2 * k));
    }
    const wide d = half_value(half_d);
    for (int j = 0; j < 16; j++) {
        const wide dl = multiply(d, to_float(int_subtract(six[j], every_int(32))));
        for (int i = 16 * j; i < 16 * j + 16; i++) {
            const wide_int code = int_add(divided_code(in->x[i], dl, -4, 3, codes[i]), every_int(4));
            high[i] = shift_right(code, 2);
            q[i] = int_and(code, every_int(3));
        }
    }
    pack_codes(block, 0, high, 256, 32, 1);
    pack_codes(block, 32, q, 256, 32, 2);
    pack_bytes(block, 96, packed, 12);
    pack(block, 108, half_d, 2);
}

static void encode_q6_k(const columns *in, uint8_t *const *block) {
    signed_fit fit[16];
    wide scales[16];
    for (int j = 0; j < 16; j++) {
        const wide *x = in->x + 16 * j;
        wide w[16];
        if (!in->qw)
            for (int i = 0; i < 16; i++) w[i] = multiply(x[i], x[i]);
        fit[j] = search_signed_scale(x, in->qw ? in->qw + 16 * j : w, 16, 32);
        scales[j] = fit[j].scale;
    }
    const peak top = first_peak(scales, 16);
    const mask dead = less(top.size, every(TINY));
    const wide_int live = choose_int(dead, every_int(0), every_int(-1));
    const wide iscale = divide(every(-128), top.value);
    const wide_int half_d = int_and(live, half_of(divide(every(1), iscale)));
    const wide d = half_value(half_d);
    wide_int eight[16], low[256], high[256];
    for (int j = 0; j < 16; j++) {
        eight[j] = int_and(live, signed_byte(to_int(smaller(every(127), nearest(multiply(iscale, scales[j]))))));
        const wide dl = multiply(d, to_float(eight[j]));
        for (int i = 16 * j; i < 16 * j + 16; i++) {
            const wide searched = subtract(searched_code(in->x[i], &fit[j], 32), every(32));
            const wide_int code = int_and(live, int_add(divided_code(in->x[i], dl, -32, 31, searched), every_int(32)));
            low[i] = int_and(code, every_int(15));
            high[i] = shift_right(code, 4);
        }
    }
    pack_codes(block, 0, low, 256, 64, 4);
    pack_codes(block, 128, high, 256, 32, 2);
    pack_bytes(block, 192, eight, 16);
    pack(block, 208, half_d, 2);
}

#endif
