/* IQ4_XS: value = table[code] * (d * (scale - 32)), in eight sub-blocks of 32, nibbles as in IQ4_NL.
 * Six-bit scales: the low four bits in the nibbles of scales_l, low nibble first, the high two in scales_h. */
#ifndef GGUFX_KERNEL_IQ4_XS_H
#define GGUFX_KERNEL_IQ4_XS_H


typedef struct {
    uint8_t d[2], scales_h[2], scales_l[4], qs[128];
} block_iq4_xs;

static inline void decode_iq4_xs(const block_iq4_xs *b, float *y) {
    const float d = half_at(b->d);
    const uint32_t low = u32_at(b->scales_l), high = u16_at(b->scales_h);
    for (int k = 0; k < 8; k++) {
        const int scale = (int)((low >> 4 * k & 15) | (high >> 2 * k & 3) << 4);
        const floats dl = every(d * (float)(scale - 32));
        const bytes q = load_bytes(b->qs + 16 * k);
        scaled(y + 32 * k, lookup(kvalues_iq4nl, field(q, 0, 15)), dl);
        scaled(y + 32 * k + 16, lookup(kvalues_iq4nl, field(q, 4, 15)), dl);
    }
}

#endif
