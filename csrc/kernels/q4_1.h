/* Q4_1: value = code * d + m. Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_Q4_1_H
#define GGUFX_KERNEL_Q4_1_H

typedef struct {
    uint8_t d[2], m[2], qs[16];
} block_q4_1;

INLINE int finite_q4_1(const block_q4_1 *b) { return two_halves_are_finite(b->d); }

INLINE void decode_q4_1(const block_q4_1 *b, sink y) {
    float d, m;
    two_halves_at(y, b->d, &d, &m);
    if (y.dtype == GGUFX_F32)
        put(y, 0, product_plus(floats_of_nibbles(b->qs), every(d), every(m)));
    else
        put_affine(y, 0, d, m, nibbles(b->qs));
}

#endif
