/* IQ3_XXS: value = grid * sign * (d * (0.5 + scale) / 2), in eight sub-blocks of 32.
 * 64 indices into the grid of fours, then a word for each sub-block: four 7-bit sign indices, and the scale in the
 * top four bits. */
#ifndef GGUFX_KERNEL_IQ3_XXS_H
#define GGUFX_KERNEL_IQ3_XXS_H


typedef struct {
    uint8_t d[2], qs[64], signs[32];
} block_iq3_xxs;

static inline void decode_iq3_xxs(const block_iq3_xxs *b, float *y) {
    const float d = half_at(b->d);
    for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 8 * k;
        const uint32_t s = u32_at(b->signs + 4 * k);
        const floats dl = every(d * (0.5f + (float)(s >> 28)) * 0.5f);
        const bytes first = join4(iq3xxs_grid[q[0]], iq3xxs_grid[q[1]], iq3xxs_grid[q[2]], iq3xxs_grid[q[3]]);
        const bytes second = join4(iq3xxs_grid[q[4]], iq3xxs_grid[q[5]], iq3xxs_grid[q[6]], iq3xxs_grid[q[7]]);
        scaled(y + 32 * k, negate_where(first, signs16(s)), dl);
        scaled(y + 32 * k + 16, negate_where(second, signs16(s >> 14)), dl);
    }
}

#endif
