/* Q2_K: value = code * (d * scale) - dmin * min, in sixteen sub-blocks of 16.
 * scales[j] belongs to sub-block j: scale in its low nibble, min in the high one. The codes stand in two halves of
 * 128 values over 32 bytes each; bits 0-1 of the 32 bytes are values 0-31 of the half, bits 2-3 are 32-63, and so on. */
#ifndef GGUFX_KERNEL_Q2_K_H
#define GGUFX_KERNEL_Q2_K_H


typedef struct {
    uint8_t scales[16], qs[64], d[2], dmin[2];
} block_q2_k;

static inline void decode_q2_k(const block_q2_k *b, float *y) {
    float d[16], m[16];
    const bytes s = load_bytes(b->scales);
    put(d, multiply(from_unsigned(field(s, 0, 15)), every(half_at(b->d))));
    put(m, multiply(from_unsigned(field(s, 4, 15)), every(half_at(b->dmin))));
    for (int part = 0; part < 4; part++) { /* sixteen bytes: every second sub-block of a half */
        const bytes q = load_bytes(b->qs + 16 * part);
        const int half = part / 2, j = 8 * half + part % 2;
        float *const out = y + 16 * j;
        affine(out, field(q, 0, 3), every(d[j]), every(m[j]));
        affine(out + 32, field(q, 2, 3), every(d[j + 2]), every(m[j + 2]));
        affine(out + 64, field(q, 4, 3), every(d[j + 4]), every(m[j + 4]));
        affine(out + 96, field(q, 6, 3), every(d[j + 6]), every(m[j + 6]));
    }
}

#endif
