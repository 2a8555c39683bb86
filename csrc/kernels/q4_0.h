/* Q4_0: value = (code - 8) * d. Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_Q4_0_H
#define GGUFX_KERNEL_Q4_0_H


typedef struct {
    uint8_t d[2], qs[16];
} block_q4_0;

static inline void decode_q4_0(const block_q4_0 *b, float *y) {
    const floats d = every(half_at(b->d));
    const bytes q = load_bytes(b->qs);
    scaled(y, minus(field(q, 0, 15), 8), d);
    scaled(y + 16, minus(field(q, 4, 15), 8), d);
}

#endif
