/* IQ2_S: value = grid * sign * (d * (0.5 + scale) / 4), in sixteen sub-blocks of 16.
 * qs: the low eight bits of 32 indices into the grid of eights, then 32 bytes of sign bits; qh[k] tops the four
 * indices of the k-th run of 32 values with two bits each; scales as in IQ2_XS. */
#ifndef GGUFX_KERNEL_IQ2_S_H
#define GGUFX_KERNEL_IQ2_S_H

typedef struct {
    uint8_t d[2], qs[32], signs[32], qh[8], scales[8];
} block_iq2_s;

INLINE int finite_iq2_s(const block_iq2_s *b) { return half_is_finite(b->d); }

INLINE void decode_iq2_s(const block_iq2_s *b, sink y) {
    float d[16]; /* of the even sub-blocks, then of the odd ones */
    store_odd_scales(d, b->scales, half_at(y, b->d));
    PARTS(8) for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 4 * k;
        const unsigned h = b->qh[k];
        const bytes codes = join8(iq2s_codes[q[0] | (h << 8 & 768)], iq2s_codes[q[1] | (h << 6 & 768)],
                                  iq2s_codes[q[2] | (h << 4 & 768)], iq2s_codes[q[3] | (h << 2 & 768)]);
        put_scaled(y, 32 * k, scaled_level_pair(y, iq2_levels, d[k], d[k + 8]),
                   either(add_where(codes, u32_at(b->signs + 4 * k), 4), bit3_in_second_half()));
    }
}

#endif
