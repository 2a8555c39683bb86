/* Q1_0: value = d where the bit is set, else -d. */
#ifndef GGUFX_KERNEL_Q1_0_H
#define GGUFX_KERNEL_Q1_0_H


typedef struct {
    uint8_t d[2], qs[16];
} block_q1_0;

static inline void decode_q1_0(const block_q1_0 *b, float *y) {
    const float d = half_at(b->d);
    for (int k = 0; k < 8; k++) put(y + 16 * k, plus_or_minus(u16_at(b->qs + 2 * k), d));
}

#endif
