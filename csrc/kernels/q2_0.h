/* Q2_0: value = (code - 1) * d, four neighbouring codes to a byte, lowest bits first. */
#ifndef GGUFX_KERNEL_Q2_0_H
#define GGUFX_KERNEL_Q2_0_H


typedef struct {
    uint8_t d[2], qs[16];
} block_q2_0;

static inline void decode_q2_0(const block_q2_0 *b, float *y) {
    const floats d = every(half_at(b->d)), one = every(1);
    for (int k = 0; k < 4; k++)
        put(y + 16 * k, multiply(subtract(from_crumbs(u32_at(b->qs + 4 * k)), one), d));
}

#endif
