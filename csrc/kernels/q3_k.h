/* Q3_K: value = (code - 4) * (d * (scale - 32)), in sixteen sub-blocks of 16.
 * The low two bits stand as in Q2_K; the third is bit k of the 32 bytes of hmask for the k-th run of 32 values.
 * Scales have six bits: low four in the nibbles of bytes 0-7 (low nibbles first), high two in bytes 8-11, for
 * sub-block j in bits 2 * (j / 4) of byte 8 + j % 4. */
#ifndef GGUFX_KERNEL_Q3_K_H
#define GGUFX_KERNEL_Q3_K_H


typedef struct {
    uint8_t hmask[32], qs[64], scales[12], d[2];
} block_q3_k;

static inline void decode_q3_k(const block_q3_k *b, float *y) {
    float d[16];
    const uint64_t top = u32_at(b->scales + 8), two = 0x30303030;
    const bytes high = from_words((top << 4 & two) | (top << 2 & two) << 32, (top & two) | (top >> 2 & two) << 32);
    put(d, multiply(from_signed(minus(either(nibbles8(b->scales), high), 32)), every(half_at(b->d))));
    for (int side = 0; side < 2; side++) { /* the first or the last 16 of each run of 32 */
        const bytes h = load_bytes(b->hmask + 16 * side);
        const bytes q = load_bytes(b->qs + 16 * side), r = load_bytes(b->qs + 32 + 16 * side);
        float *const out = y + 16 * side;
        const float *const s = d + side;
        scaled(out, minus(either(field(q, 0, 3), field(h, -2, 4)), 4), every(s[0]));
        scaled(out + 32, minus(either(field(q, 2, 3), field(h, -1, 4)), 4), every(s[2]));
        scaled(out + 64, minus(either(field(q, 4, 3), field(h, 0, 4)), 4), every(s[4]));
        scaled(out + 96, minus(either(field(q, 6, 3), field(h, 1, 4)), 4), every(s[6]));
        scaled(out + 128, minus(either(field(r, 0, 3), field(h, 2, 4)), 4), every(s[8]));
        scaled(out + 160, minus(either(field(r, 2, 3), field(h, 3, 4)), 4), every(s[10]));
        scaled(out + 192, minus(either(field(r, 4, 3), field(h, 4, 4)), 4), every(s[12]));
        scaled(out + 224, minus(either(field(r, 6, 3), field(h, 5, 4)), 4), every(s[14]));
    }
}

#endif
