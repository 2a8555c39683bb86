/* Q8_0: value = code * d, signed bytes. */
#ifndef GGUFX_KERNEL_Q8_0_H
#define GGUFX_KERNEL_Q8_0_H


typedef struct {
    uint8_t d[2];
    int8_t qs[32];
} block_q8_0;

static inline void decode_q8_0(const block_q8_0 *b, float *y) {
    const floats d = every(half_at(b->d));
    scaled(y, load_bytes(b->qs), d);
    scaled(y + 16, load_bytes(b->qs + 16), d);
}

#endif
