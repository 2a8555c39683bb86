/* MXFP4 and NVFP4: four-bit floats (E2M1) under a scale of one byte. */
#ifndef GGUFX_ENCODERS_FP4_H
#define GGUFX_ENCODERS_FP4_H

#include "../tables.h"
#include "arithmetic.h"
#include "pack.h"

/* The positive E2M1 numbers, doubled (MXFP4_VALUES in the reference), times the scale. */
INLINE void fp4_numbers(wide *number, wide d) {
    for (int i = 1; i < 8; i++) number[i] = multiply(every((float)kvalues_mxfp4[i]), d);
}

/* Code of the number nearest to x, the lower one halfway. Numbers of the other sign are never nearer than zero is. */
INLINE wide_int fp4_code(wide x, const wide *number) {
    const wide a = magnitude(x);
    wide least = a;
    wide_int code = every_int(0);
    for (int i = 1; i < 8; i++) {
        const wide error = magnitude(subtract(number[i], a));
        code = choose_int(less(error, least), every_int(i), code);
        least = smaller(error, least);
    }
    const mask minus = mask_and(less(x, every(0)), int_less(every_int(0), code));
    return int_or(code, choose_int(minus, every_int(8), every_int(0)));
}

/* floor(log2f(v)) of positive numbers. log2f rounds numbers just below a power of two up to its exponent: with
 * v = 2^k (1 - steps / 2^24), log2 v is k - steps / 2^24 / ln 2, and rounds to k when less than half the spacing of
 * floats below |k| is missing (half as much when k itself is a positive power of two). */
INLINE wide_int floor_log2(wide v) {
    const mask tiny = less(v, every(0x1p-126f));
    const wide_int bits = as_int(choose(tiny, multiply(v, every(0x1p23f)), v));
    const wide_int k = int_subtract(int_subtract(shift_right(bits, 23), every_int(126)),
                                    choose_int(tiny, every_int(23), every_int(0)));
    const wide_int steps = int_subtract(every_int(1 << 23), int_and(bits, every_int(0x7FFFFF)));
    const wide_int size = as_int(magnitude(to_float(k)));
    const mask power = mask_and(int_same(int_and(size, every_int(0x7FFFFF)), every_int(0)), int_less(every_int(0), k));
    const wide spacing = as_float(int_and(size, every_int(0x7F800000)));
    const wide reach = multiply(spacing, choose(power, every(0.34657359f), every(0.69314718f))); /* ln 2 / 2, ln 2 */
    return int_add(k, choose_int(less(to_float(steps), reach), every_int(0), every_int(-1)));
}

static void encode_mxfp4(const columns *in, uint8_t *const *block) {
    const wide top = largest(in->x, 32);
    const mask live = more(top, every(0));
    const wide_int e = choose_int(
        live, int_and(int_add(floor_log2(choose(live, top, every(1))), every_int(125)), every_int(255)), every_int(0));
    wide number[8];
    wide_int q[32];
    fp4_numbers(number, as_float(gather((const int32_t *)e8m0_half_bits, e)));
    for (int i = 0; i < 32; i++) q[i] = fp4_code(in->x[i], number);
    pack(block, 0, e, 1);
    pack_codes(block, 1, q, 32, 16, 4);
}

/* Unsigned E4M3, rounded as ggml does: the bit below the last one is added, ties go up, the top is 448. */
INLINE wide_int to_ue4m3(wide v) {
    const wide_int bits = as_int(smaller(v, every(448)));
    const wide_int exponent = int_subtract(shift_right(bits, 23), every_int(120));
    const wide_int fraction =
        int_add(int_and(shift_right(bits, 20), every_int(7)), int_and(shift_right(bits, 19), every_int(1)));
    wide_int normal = int_add(shift_left(exponent, 3), fraction);
    normal = choose_int(int_less(normal, every_int(15 << 3)), normal, every_int(0x7E)); /* all of the top exponent */
    const wide_int small = int_smaller(to_int(add(multiply(v, every(512)), every(0.5f))), every_int(7));
    const wide_int code = choose_int(int_less(exponent, every_int(1)), int_larger(small, every_int(0)), normal);
    return choose_int(more(v, every(0)), code, every_int(0));
}

static void encode_nvfp4(const columns *in, uint8_t *const *block) {
    wide_int scales = every_int(0);
    for (int j = 0; j < 4; j++) {
        const wide *x = in->x + 16 * j;
        const wide_int scale = to_ue4m3(divide(largest(x, 16), every(6)));
        wide number[8];
        wide_int q[16];
        fp4_numbers(number, as_float(gather((const int32_t *)ue4m3_half_bits, scale)));
        for (int i = 0; i < 16; i++) q[i] = fp4_code(x[i], number);
        pack_codes(block, 4 + 8 * (size_t)j, q, 16, 8, 4);
        scales = int_or(scales, shift_left(scale, 8 * j));
    }
    pack(block, 0, scales, 4);
}

#endif
