/* IQ2_XS: value = grid * sign * (d * (0.5 + scale) / 4), in sixteen sub-blocks of 16.
 * Each 16-bit code holds a 9-bit index into the grid of eights and a 7-bit sign index; scales[k] holds the 4-bit
 * scales of sub-blocks 2k (low nibble) and 2k + 1. */
#ifndef GGUFX_KERNEL_IQ2_XS_H
#define GGUFX_KERNEL_IQ2_XS_H

typedef struct {
    uint8_t d[2], qs[64], scales[8];
} block_iq2_xs;

INLINE int finite_iq2_xs(const block_iq2_xs *b) { return half_is_finite(b->d); }

INLINE void decode_iq2_xs(const block_iq2_xs *b, sink y) {
    float d[16]; /* of the even sub-blocks, then of the odd ones */
    store_odd_scales(d, b->scales, half_at(y, b->d));
    PARTS(8) for (int k = 0; k < 8; k++) {
        const uint64_t q = u64_at(b->qs + 8 * k);
        const unsigned s = q & 0xFFFF, t = q >> 16 & 0xFFFF, u = q >> 32 & 0xFFFF, v = (unsigned)(q >> 48);
        const bytes codes =
            join8(iq2xs_codes[s & 511], iq2xs_codes[t & 511], iq2xs_codes[u & 511], iq2xs_codes[v & 511]);
        const bytes signs =
            join8(iq2_sign_index[s >> 9], iq2_sign_index[t >> 9], iq2_sign_index[u >> 9], iq2_sign_index[v >> 9]);
        put_scaled(y, 32 * k, scaled_level_pair(y, iq2_levels, d[k], d[k + 8]),
                   either(either(codes, signs), bit3_in_second_half()));
    }
}

#endif
