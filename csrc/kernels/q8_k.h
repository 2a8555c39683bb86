/* Q8_K: value = code * d, signed bytes and a float scale; bsums, sums of 16 codes, are for dot products only. */
#ifndef GGUFX_KERNEL_Q8_K_H
#define GGUFX_KERNEL_Q8_K_H


typedef struct {
    uint8_t d[4];
    int8_t qs[256];
    uint8_t bsums[32];
} block_q8_k;

static inline void decode_q8_k(const block_q8_k *b, float *y) {
    const floats d = every(float_at(b->d));
    for (int i = 0; i < 256; i += 16) scaled(y + i, load_bytes(b->qs + i), d);
}

#endif
