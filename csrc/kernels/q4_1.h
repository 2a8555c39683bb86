/* Q4_1: value = code * d + m. Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_Q4_1_H
#define GGUFX_KERNEL_Q4_1_H


typedef struct {
    uint8_t d[2], m[2], qs[16];
} block_q4_1;

static inline void decode_q4_1(const block_q4_1 *b, float *y) {
    const floats d = every(half_at(b->d)), m = every(-half_at(b->m));
    const bytes q = load_bytes(b->qs);
    affine(y, field(q, 0, 15), d, m);
    affine(y + 16, field(q, 4, 15), d, m);
}

#endif
