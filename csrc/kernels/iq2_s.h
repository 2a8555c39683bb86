/* IQ2_S: value = grid * sign * (d * (0.5 + scale) / 4), in sixteen sub-blocks of 16.
 * qs: the low eight bits of 32 indices into the grid of eights, then 32 bytes of sign bits; qh[k] tops the four
 * indices of the k-th run of 32 values with two bits each; scales as in IQ2_XS. */
#ifndef GGUFX_KERNEL_IQ2_S_H
#define GGUFX_KERNEL_IQ2_S_H


typedef struct {
    uint8_t d[2], qs[32], signs[32], qh[8], scales[8];
} block_iq2_s;

static inline void decode_iq2_s(const block_iq2_s *b, float *y) {
    float d[16]; /* of the even sub-blocks, then of the odd ones */
    quarter_scales(d, b->scales, half_at(b->d));
    for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 4 * k, *const s = b->signs + 4 * k;
        const unsigned h = b->qh[k];
        const bytes first = join8(iq2s_grid[q[0] | (h << 8 & 768)], iq2s_grid[q[1] | (h << 6 & 768)]);
        const bytes second = join8(iq2s_grid[q[2] | (h << 4 & 768)], iq2s_grid[q[3] | (h << 2 & 768)]);
        scaled(y + 32 * k, negate_where(first, u16_at(s)), every(d[k]));
        scaled(y + 32 * k + 16, negate_where(second, u16_at(s + 2)), every(d[k + 8]));
    }
}

#endif
