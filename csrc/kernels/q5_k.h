/* Q5_K: value = code * (d * scale) - dmin * min, in eight sub-blocks of 32.
 * Nibbles and scales as in Q4_K; the fifth bit is bit k of the 32 bytes of qh for sub-block k. */
#ifndef GGUFX_KERNEL_Q5_K_H
#define GGUFX_KERNEL_Q5_K_H


#include "q4_k.h"

typedef struct {
    uint8_t d[2], dmin[2], scales[12], qh[32], qs[128];
} block_q5_k;

/* Two sub-blocks: 32 bytes of nibbles, with their fifth bits at `bit` and `bit` + 1 of h and i. */
static inline void two_of_q5_k(const uint8_t *qs, bytes h, bytes i, int bit, const float *s, float *y) {
    const bytes q = load_bytes(qs), r = load_bytes(qs + 16);
    const floats d = every(s[0]), m = every(s[8]), e = every(s[1]), n = every(s[9]);
    affine(y, either(field(q, 0, 15), field(h, bit - 4, 16)), d, m);
    affine(y + 16, either(field(r, 0, 15), field(i, bit - 4, 16)), d, m);
    affine(y + 32, either(field(q, 4, 15), field(h, bit - 3, 16)), e, n);
    affine(y + 48, either(field(r, 4, 15), field(i, bit - 3, 16)), e, n);
}

static inline void decode_q5_k(const block_q5_k *b, float *y) {
    float s[16]; /* d * scale of the eight sub-blocks, then dmin * min */
    const bytes h = load_bytes(b->qh), i = load_bytes(b->qh + 16);
    put(s, multiply(from_unsigned(scales_and_mins(b->scales)), pair(half_at(b->d), half_at(b->dmin))));
    two_of_q5_k(b->qs, h, i, 0, s, y);
    two_of_q5_k(b->qs + 32, h, i, 2, s + 2, y + 64);
    two_of_q5_k(b->qs + 64, h, i, 4, s + 4, y + 128);
    two_of_q5_k(b->qs + 96, h, i, 6, s + 6, y + 192);
}

#endif
