/* Q1_0, Q2_0, TQ1_0, TQ2_0: one scale, and one or two bits or a trit for each value. */
#ifndef GGUFX_ENCODERS_FEW_BITS_H
#define GGUFX_ENCODERS_FEW_BITS_H

#include "arithmetic.h"
#include "pack.h"

static void encode_q1_0(const columns *in, uint8_t *const *block) {
    wide sum = every(0);
    for (int i = 0; i < 128; i++) sum = add(sum, magnitude(in->x[i]));
    pack(block, 0, half_of(divide(sum, every(128))), 2);
    for (int i = 0; i < 128; i += 32) {
        wide_int bits = every_int(0);
        for (int j = 0; j < 32; j++)
            bits =
                int_or(bits, choose_int(at_least(in->x[i + j], every(0)), shift_left(every_int(1), j), every_int(0)));
        pack(block, 2 + (size_t)i / 8, bits, 4);
    }
}

static void encode_q2_0(const columns *in, uint8_t *const *block) {
    const wide d = largest(in->x, 64), id = zero_where(mask_not(more(d, every(0))), divide(every(1), d));
    pack(block, 0, half_of(d), 2);
    for (int i = 0; i < 64; i += 16) {
        wide_int word = every_int(0);
        for (int j = 0; j < 16; j++) {
            const wide_int q = round_away(multiply(in->x[i + j], id));
            const wide_int code = int_add(int_larger(every_int(-1), int_smaller(every_int(2), q)), every_int(1));
            word = int_or(word, shift_left(code, 2 * j));
        }
        pack(block, 2 + (size_t)i / 4, word, 4);
    }
}

/* -1, 0, 1 as 0, 1, 2. What overflowed counts as zero: x86 converts it to the smallest long, and its low word is 0. */
INLINE wide trits(const wide *x, wide_int *q) {
    const wide d = largest(x, 256), id = inverse(d);
    for (int i = 0; i < 256; i++) {
        const wide v = multiply(x[i], id);
        q[i] = int_add(round_away(zero_where(mask_not(less(magnitude(v), every(2))), v)), every_int(1));
    }
    return d;
}

/* `count` bytes of five trits each (or four, and a zero), the first the most significant, scaled from 3^5 to 2^8 and
 * rounded up, so that decoding finds each trit by multiplying. */
INLINE void pack_trits(uint8_t *const *block, size_t at, const wide_int *q, int count, int per_byte) {
    for (int i = 0; i < count; i += 4) {
        wide_int byte[4];
        for (int b = 0; b < 4; b++) {
            wide_int v = q[i + b];
            for (int k = 1; k < 5; k++) {
                v = int_add(v, shift_left(v, 1));
                if (k < per_byte) v = int_add(v, q[k * count + i + b]);
            }
            /* (v * 256 + 242) / 243 by a reciprocal: exact for v up to 242, as test_quantize checks through the bytes.
             */
            byte[b] = shift_right(int_multiply(int_add(shift_left(v, 8), every_int(242)), every_int(17261)), 22);
        }
        pack_bytes(block, at + (size_t)i, byte, 4);
    }
}

static void encode_tq1_0(const columns *in, uint8_t *const *block) {
    wide_int q[256];
    pack(block, 52, half_of(trits(in->x, q)), 2);
    pack_trits(block, 0, q, 32, 5);
    pack_trits(block, 32, q + 160, 16, 5);
    pack_trits(block, 48, q + 240, 4, 4);
}

static void encode_tq2_0(const columns *in, uint8_t *const *block) {
    wide_int q[256];
    pack(block, 64, half_of(trits(in->x, q)), 2);
    pack_codes(block, 0, q, 256, 32, 2);
}

#endif
