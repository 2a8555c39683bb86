/* Q5_0: value = (code - 16) * d. The nibbles as in Q4_0; bit i of the word qh is the fifth bit of value i. */
#ifndef GGUFX_KERNEL_Q5_0_H
#define GGUFX_KERNEL_Q5_0_H


typedef struct {
    uint8_t d[2], qh[4], qs[16];
} block_q5_0;

static inline void decode_q5_0(const block_q5_0 *b, float *y) {
    const floats d = every(half_at(b->d));
    const bytes q = load_bytes(b->qs);
    scaled(y, minus(either(field(q, 0, 15), bits_as(u16_at(b->qh), 16)), 16), d);
    scaled(y + 16, minus(either(field(q, 4, 15), bits_as(u16_at(b->qh + 2), 16)), 16), d);
}

#endif
