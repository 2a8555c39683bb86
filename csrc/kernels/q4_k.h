/* Q4_K: value = code * (d * scale) - dmin * min, in eight sub-blocks of 32.
 * Sub-blocks 2k and 2k + 1 are the low and the high nibbles of the same 32 bytes. */
#ifndef GGUFX_KERNEL_Q4_K_H
#define GGUFX_KERNEL_Q4_K_H

typedef struct {
    uint8_t d[2], dmin[2], scales[12], qs[128];
} block_q4_k;

/* The eight scales and eight mins, six bits each, that Q4_K and Q5_K keep in twelve bytes. Bytes 0-3 hold scales 0-3
 * in their low six bits, bytes 4-7 mins 0-3; bytes 8-11 hold the low four bits of scales 4-7 and, in the high
 * nibbles, of mins 4-7, whose top two bits fill the first eight bytes. */
INLINE sixteen scales_and_mins(const uint8_t *p) {
    const uint64_t s = u32_at(p), m = u32_at(p + 4), rest = u32_at(p + 8);
    const uint64_t six = 0x3F3F3F3F, four = 0x0F0F0F0F, two = 0x30303030;
    return from_words((s & six) | ((rest & four) | (s >> 2 & two)) << 32,
                      (m & six) | ((rest >> 4 & four) | (m >> 2 & two)) << 32);
}

INLINE int finite_q4_k(const block_q4_k *b) { return two_halves_are_finite(b->d); }

INLINE void decode_q4_k(const block_q4_k *b, sink y) {
    float s[16]; /* d * scale of the eight sub-blocks, then -dmin * min */
    float d, dmin;
    two_halves_at(y, b->d, &d, &dmin);
    store_unsigned(s, scales_and_mins(b->scales), d, -dmin);
    PARTS(4) for (int k = 0; k < 4; k++) {
        const uint8_t *const q = b->qs + 32 * k;
        const float *const t = s + 2 * k;
        if (y.dtype == GGUFX_F32) {
            const floats first = floats_of_nibbles(q), second = floats_of_nibbles(q + 16);
            put(y, 64 * k, product_plus(first_halves(first, second), every(t[0]), every(t[8])));
            put(y, 64 * k + 32, product_plus(second_halves(first, second), every(t[1]), every(t[9])));
        } else {
            put_affine(y, 64 * k, t[0], t[8], field(load_bytes(q), 0, 15));
            put_affine(y, 64 * k + 32, t[1], t[9], field(load_bytes(q), 4, 15));
        }
    }
}

#endif
