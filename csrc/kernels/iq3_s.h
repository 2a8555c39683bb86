/* IQ3_S: value = grid * sign * (d * (1 + 2 * scale)), in eight sub-blocks of 32.
 * qs: the low eight bits of 64 indices into the grid of fours; bit i of qh[k] tops index i of sub-block k; signs one
 * bit a value; scales[k] holds the 4-bit scales of sub-blocks 2k (low nibble) and 2k + 1. */
#ifndef GGUFX_KERNEL_IQ3_S_H
#define GGUFX_KERNEL_IQ3_S_H

typedef struct {
    uint8_t d[2], qs[64], qh[8], signs[32], scales[4];
} block_iq3_s;

INLINE int finite_iq3_s(const block_iq3_s *b) { return half_is_finite(b->d); }

INLINE void decode_iq3_s(const block_iq3_s *b, sink y) {
    float d[16]; /* of the even sub-blocks, from the fifth of the odd ones */
    const uint32_t s = u32_at(b->scales), nibble = 0x0F0F0F0F;
    const sixteen odd =
        combine(from_words((uint64_t)(s << 1 & 2 * nibble) | (uint64_t)(s >> 3 & 2 * nibble) << 32, 0), every_one(), 0);
    store_unsigned(d, odd, half_at(y, b->d), 0);
    PARTS(8) for (int k = 0; k < 8; k++) {
        const uint64_t i = four_of_nine_bits(u32_at(b->qs + 8 * k), b->qh[k]);
        const uint64_t j = four_of_nine_bits(u32_at(b->qs + 8 * k + 4), b->qh[k] >> 4);
        const bytes codes =
            join4(iq3s_codes[(uint16_t)i], iq3s_codes[(uint16_t)(i >> 16)], iq3s_codes[(uint16_t)(i >> 32)],
                  iq3s_codes[i >> 48], iq3s_codes[(uint16_t)j], iq3s_codes[(uint16_t)(j >> 16)],
                  iq3s_codes[(uint16_t)(j >> 32)], iq3s_codes[j >> 48]);
        put_scaled(y, 32 * k, scaled_levels(y, iq3s_levels, 0, d[k / 2 + k % 2 * 4]),
                   add_where(codes, u32_at(b->signs + 4 * k), 8));
    }
}

#endif
