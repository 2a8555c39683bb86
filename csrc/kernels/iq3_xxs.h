/* IQ3_XXS: value = grid * sign * (d * (0.5 + scale) / 2), in eight sub-blocks of 32.
 * 64 indices into the grid of fours, then a word for each sub-block: four 7-bit sign indices, and the scale in the
 * top four bits. */
#ifndef GGUFX_KERNEL_IQ3_XXS_H
#define GGUFX_KERNEL_IQ3_XXS_H

typedef struct {
    uint8_t d[2], qs[64], signs[32];
} block_iq3_xxs;

INLINE int finite_iq3_xxs(const block_iq3_xxs *b) { return half_is_finite(b->d); }

INLINE void decode_iq3_xxs(const block_iq3_xxs *b, sink y) {
    const float d =
        half_at(y, b->d) * 0.25f; /* (0.5 + scale) / 2 is (2 * scale + 1) / 4; powers of two are exact here */
    PARTS(8) for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 8 * k;
        const uint32_t s = u32_at(b->signs + 4 * k);
        const bytes codes = join4(iq3xxs_codes[q[0]], iq3xxs_codes[q[1]], iq3xxs_codes[q[2]], iq3xxs_codes[q[3]],
                                  iq3xxs_codes[q[4]], iq3xxs_codes[q[5]], iq3xxs_codes[q[6]], iq3xxs_codes[q[7]]);
        const levels t = scaled_levels(y, iq3xxs_levels, 0, d * (float)((s >> 28) * 2 + 1));
        put_scaled(y, 32 * k, t, either(codes, four_signs(iq3_sign_index, s)));
    }
}

#endif
