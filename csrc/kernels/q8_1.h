/* Q8_1: value = code * d, signed bytes; s, the scaled sum of the codes, is for dot products only. */
#ifndef GGUFX_KERNEL_Q8_1_H
#define GGUFX_KERNEL_Q8_1_H


typedef struct {
    uint8_t d[2], s[2];
    int8_t qs[32];
} block_q8_1;

static inline void decode_q8_1(const block_q8_1 *b, float *y) {
    const floats d = every(half_at(b->d));
    scaled(y, load_bytes(b->qs), d);
    scaled(y + 16, load_bytes(b->qs + 16), d);
}

#endif
