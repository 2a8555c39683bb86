/* IQ2_XXS: value = grid * sign * (d * (0.5 + scale) / 4), in eight sub-blocks of 32.
 * A sub-block is eight bytes: four indices into the grid of eights, then a word of four 7-bit sign indices, whose
 * top four bits are the scale. */
#ifndef GGUFX_KERNEL_IQ2_XXS_H
#define GGUFX_KERNEL_IQ2_XXS_H

typedef struct {
    uint8_t d[2], qs[64];
} block_iq2_xxs;

INLINE int finite_iq2_xxs(const block_iq2_xxs *b) { return half_is_finite(b->d); }

INLINE void decode_iq2_xxs(const block_iq2_xxs *b, sink y) {
    const float d =
        half_at(y, b->d) * 0.125f; /* (0.5 + scale) / 4 is (2 * scale + 1) / 8; powers of two are exact here */
    PARTS(8) for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 8 * k;
        const uint32_t s = u32_at(q + 4);
        const bytes codes = join8(iq2xxs_codes[q[0]], iq2xxs_codes[q[1]], iq2xxs_codes[q[2]], iq2xxs_codes[q[3]]);
        const levels t = scaled_levels(y, iq2_levels, 1, d * (float)((s >> 28) * 2 + 1));
        put_scaled(y, 32 * k, t, either(codes, four_signs(iq2_sign_index, s)));
    }
}

#endif
