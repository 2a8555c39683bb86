/* IQ3_S: value = grid * sign * (d * (1 + 2 * scale)), in eight sub-blocks of 32.
 * qs: the low eight bits of 64 indices into the grid of fours; bit i of qh[k] tops index i of sub-block k; signs one
 * bit a value; scales[k] holds the 4-bit scales of sub-blocks 2k (low nibble) and 2k + 1. */
#ifndef GGUFX_KERNEL_IQ3_S_H
#define GGUFX_KERNEL_IQ3_S_H


typedef struct {
    uint8_t d[2], qs[64], qh[8], signs[32], scales[4];
} block_iq3_s;

static inline bytes four_of_iq3_s(const uint8_t *q, unsigned h) {
    return join4(iq3s_grid[q[0] | (h << 8 & 256)], iq3s_grid[q[1] | (h << 7 & 256)],
                 iq3s_grid[q[2] | (h << 6 & 256)], iq3s_grid[q[3] | (h << 5 & 256)]);
}

static inline void decode_iq3_s(const block_iq3_s *b, float *y) {
    const float d = half_at(b->d);
    for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 8 * k, *const s = b->signs + 4 * k;
        const unsigned h = b->qh[k], scale = b->scales[k / 2] >> k % 2 * 4 & 15;
        const floats dl = every(d * (float)(1 + 2 * scale));
        scaled(y + 32 * k, negate_where(four_of_iq3_s(q, h), u16_at(s)), dl);
        scaled(y + 32 * k + 16, negate_where(four_of_iq3_s(q + 4, h >> 4), u16_at(s + 2)), dl);
    }
}

#endif
