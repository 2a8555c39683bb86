/* Q5_K: value = code * (d * scale) - dmin * min, in eight sub-blocks of 32.
 * Nibbles and scales as in Q4_K; the fifth bit is bit k of the 32 bytes of qh for sub-block k. */
#ifndef GGUFX_KERNEL_Q5_K_H
#define GGUFX_KERNEL_Q5_K_H

#include "q4_k.h"

typedef struct {
    uint8_t d[2], dmin[2], scales[12], qh[32], qs[128];
} block_q5_k;

/* Two sub-blocks: 32 bytes of nibbles, with their fifth bits at `bit` and `bit` + 1 of h. */
INLINE void two_of_q5_k(sink y, int at, const uint8_t *qs, bytes h, int bit, const float *s) {
    const bytes q = load_bytes(qs);
    affine(y, at, either(field(q, 0, 15), field(h, bit - 4, 16)), every(s[0]), every(s[8]));
    affine(y, at + 32, either(field(q, 4, 15), field(h, bit - 3, 16)), every(s[1]), every(s[9]));
}

INLINE int finite_q5_k(const block_q5_k *b) { return two_halves_are_finite(b->d); }

INLINE void decode_q5_k(const block_q5_k *b, sink y) {
    float s[16]; /* d * scale of the eight sub-blocks, then -dmin * min */
    const bytes h = load_bytes(b->qh);
    float d, dmin;
    two_halves_at(y, b->d, &d, &dmin);
    store_unsigned(s, scales_and_mins(b->scales), d, -dmin);
    two_of_q5_k(y, 0, b->qs, h, 0, s);
    two_of_q5_k(y, 64, b->qs + 32, h, 2, s + 2);
    two_of_q5_k(y, 128, b->qs + 64, h, 4, s + 4);
    two_of_q5_k(y, 192, b->qs + 96, h, 6, s + 6);
}

#endif
