/* Q3_K: value = (code - 4) * (d * (scale - 32)), in sixteen sub-blocks of 16.
 * The low two bits stand as in Q2_K; the third is bit k of the 32 bytes of hmask for the k-th run of 32 values.
 * Scales have six bits: low four in the nibbles of bytes 0-7 (low nibbles first), high two in bytes 8-11, for
 * sub-block j in bits 2 * (j / 4) of byte 8 + j % 4. */
#ifndef GGUFX_KERNEL_Q3_K_H
#define GGUFX_KERNEL_Q3_K_H

typedef struct {
    uint8_t hmask[32], qs[64], scales[12], d[2];
} block_q3_k;

static const int8_t q3_k_values[32] = {-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3};

/* Two sub-blocks: their low bits, and their high bit where the code has it. */
INLINE void two_of_q3_k(sink y, int at, bytes low, bytes high, const float *d) {
    const bytes codes = either(either(low, high), bit3_in_second_half());
    put_scaled(y, at, scaled_level_pair(y, q3_k_values, d[0], d[1]), codes);
}

INLINE int finite_q3_k(const block_q3_k *b) { return half_is_finite(b->d); }

INLINE void decode_q3_k(const block_q3_k *b, sink y) {
    float d[16];
    const uint64_t top = u32_at(b->scales + 8), two = 0x30303030;
    const sixteen high = from_words((top << 4 & two) | (top << 2 & two) << 32, (top & two) | (top >> 2 & two) << 32);
    store_signed(d, combine(nibbles8(b->scales), high, 32), half_at(y, b->d));
    const bytes h = load_bytes(b->hmask), q = load_bytes(b->qs), r = load_bytes(b->qs + 32);
    two_of_q3_k(y, 0, field(q, 0, 3), field(h, -2, 4), d);
    two_of_q3_k(y, 32, field(q, 2, 3), field(h, -1, 4), d + 2);
    two_of_q3_k(y, 64, field(q, 4, 3), field(h, 0, 4), d + 4);
    two_of_q3_k(y, 96, field(q, 6, 3), field(h, 1, 4), d + 6);
    two_of_q3_k(y, 128, field(r, 0, 3), field(h, 2, 4), d + 8);
    two_of_q3_k(y, 160, field(r, 2, 3), field(h, 3, 4), d + 10);
    two_of_q3_k(y, 192, field(r, 4, 3), field(h, 4, 4), d + 12);
    two_of_q3_k(y, 224, field(r, 6, 3), field(h, 5, 4), d + 14);
}

#endif
