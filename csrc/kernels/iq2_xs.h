/* IQ2_XS: value = grid * sign * (d * (0.5 + scale) / 4), in sixteen sub-blocks of 16.
 * Each 16-bit code holds a 9-bit index into the grid of eights and a 7-bit sign index; scales[k] holds the 4-bit
 * scales of sub-blocks 2k (low nibble) and 2k + 1. */
#ifndef GGUFX_KERNEL_IQ2_XS_H
#define GGUFX_KERNEL_IQ2_XS_H


typedef struct {
    uint8_t d[2], qs[64], scales[8];
} block_iq2_xs;

static inline void decode_iq2_xs(const block_iq2_xs *b, float *y) {
    float d[16]; /* of the even sub-blocks, then of the odd ones */
    quarter_scales(d, b->scales, half_at(b->d));
    for (int k = 0; k < 16; k++) {
        const unsigned p = u16_at(b->qs + 4 * k), q = u16_at(b->qs + 4 * k + 2);
        const unsigned signs = ksigns[p >> 9] | (unsigned)ksigns[q >> 9] << 8;
        scaled(y + 16 * k, negate_where(join8(iq2xs_grid[p & 511], iq2xs_grid[q & 511]), signs),
               every(d[k / 2 + k % 2 * 8]));
    }
}

#endif
