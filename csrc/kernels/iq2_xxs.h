/* IQ2_XXS: value = grid * sign * (d * (0.5 + scale) / 4), in eight sub-blocks of 32.
 * A sub-block is eight bytes: four indices into the grid of eights, then a word of four 7-bit sign indices, whose
 * top four bits are the scale. */
#ifndef GGUFX_KERNEL_IQ2_XXS_H
#define GGUFX_KERNEL_IQ2_XXS_H


typedef struct {
    uint8_t d[2], qs[64];
} block_iq2_xxs;

static inline void decode_iq2_xxs(const block_iq2_xxs *b, float *y) {
    const float d = half_at(b->d);
    for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 8 * k;
        const uint32_t s = u32_at(q + 4);
        const floats dl = every(d * (0.5f + (float)(s >> 28)) * 0.25f);
        scaled(y + 32 * k, negate_where(join8(iq2xxs_grid[q[0]], iq2xxs_grid[q[1]]), signs16(s)), dl);
        scaled(y + 32 * k + 16, negate_where(join8(iq2xxs_grid[q[2]], iq2xxs_grid[q[3]]), signs16(s >> 14)), dl);
    }
}

#endif
