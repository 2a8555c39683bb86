/* IQ4_XS: value = table[code] * (d * (scale - 32)), in eight sub-blocks of 32, nibbles as in IQ4_NL.
 * Six-bit scales: the low four bits in the nibbles of scales_l, low nibble first, the high two in scales_h. */
#ifndef GGUFX_KERNEL_IQ4_XS_H
#define GGUFX_KERNEL_IQ4_XS_H

typedef struct {
    uint8_t d[2], scales_h[2], scales_l[4], qs[128];
} block_iq4_xs;

INLINE int finite_iq4_xs(const block_iq4_xs *b) { return half_is_finite(b->d); }

INLINE void decode_iq4_xs(const block_iq4_xs *b, sink y) {
    const float d = half_at(y, b->d);
    const uint32_t low = u32_at(b->scales_l), high = u16_at(b->scales_h);
    PARTS(8) for (int k = 0; k < 8; k++) {
        const int scale = (int)((low >> 4 * k & 15) | (high >> 2 * k & 3) << 4);
        put_scaled(y, 32 * k, scaled_levels(y, kvalues_iq4nl, 0, d * (float)(scale - 32)), nibbles(b->qs + 16 * k));
    }
}

#endif
