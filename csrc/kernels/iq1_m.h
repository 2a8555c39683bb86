/* IQ1_M: value = (grid + delta) * (d * (2 * scale + 1)), in sixteen sub-blocks of 16; grid values are -1, 0, 1.
 * Each nibble of qh belongs to one index of eight values: three more bits of the index, then the sign of delta.
 * Four 16-bit words hold four 3-bit scales each and, in their top nibbles, the half d, lowest nibble first. */
#ifndef GGUFX_KERNEL_IQ1_M_H
#define GGUFX_KERNEL_IQ1_M_H

typedef struct {
    uint8_t qs[32], qh[16], scales[8];
} block_iq1_m;

INLINE uint16_t d_of_iq1_m(uint64_t s) {
    return (uint16_t)((s >> 12 & 0x000F) | (s >> 24 & 0x00F0) | (s >> 36 & 0x0F00) | (s >> 48 & 0xF000));
}
INLINE int finite_iq1_m(const block_iq1_m *b) { return (b->scales[7] & 0x70) != 0x70 || (b->scales[5] & 0xC0) != 0xC0; }

INLINE void decode_iq1_m(const block_iq1_m *b, sink y) {
    const uint64_t s = u64_at(b->scales);
    const float d =
        half(half_bits_for(y, d_of_iq1_m(s))) * 0.125f; /* levels are in eighths; powers of two are exact here */
    uint16_t i[32];
    uint8_t offsets[32];
    for (int side = 0; side < 2; side++) {
        const sixteen n = nibbles_in_order(b->qh + 8 * side);
        store_wide(i + 16 * side, load_sixteen(b->qs + 16 * side), field_of_sixteen(n, 0, 7));
        store_bytes(offsets + 16 * side, field_of_sixteen(n, 1, 4));
    }
    PARTS(8) for (int k = 0; k < 8; k++) {
        const unsigned scales = s >> (k / 2 * 16 + k % 2 * 6) & 63;
        const bytes codes =
            join8(iq1s_codes[i[4 * k]], iq1s_codes[i[4 * k + 1]], iq1s_codes[i[4 * k + 2]], iq1s_codes[i[4 * k + 3]]);
        const levels t =
            scaled_level_pair(y, iq1_levels, d * (float)(2 * (scales & 7) + 1), d * (float)(2 * (scales >> 3) + 1));
        put_scaled(y, 32 * k, t, either(either(codes, eight_of_each(offsets + 4 * k)), bit3_in_second_half()));
    }
}

#endif
