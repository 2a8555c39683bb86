/* Q8_K: value = code * d, signed bytes and a float scale; bsums, sums of 16 codes, are for dot products only. */
#ifndef GGUFX_KERNEL_Q8_K_H
#define GGUFX_KERNEL_Q8_K_H

typedef struct {
    uint8_t d[4];
    int8_t qs[256];
    uint8_t bsums[32];
} block_q8_k;

/* The scale is any float. */
INLINE int finite_q8_k(const block_q8_k *b) { return (void)b, 0; }

INLINE void decode_q8_k(const block_q8_k *b, sink y) {
    const floats d = every(y.dtype == GGUFX_BF16 ? canonical(float_at(b->d)) : float_at(b->d));
    PARTS(8) for (int i = 0; i < 256; i += 32) scaled_bytes(y, i, b->qs + i, d);
}

#endif
