/* IQ1_S: value = (grid + delta) * (d * (2 * scale + 1)), in eight sub-blocks of 32; grid values are -1, 0, 1.
 * qs: the low eight bits of 32 indices into the grid of eights; the 16-bit word qh of a sub-block holds three more
 * bits for each of its four indices, then the 3-bit scale, then the sign of delta. */
#ifndef GGUFX_KERNEL_IQ1_S_H
#define GGUFX_KERNEL_IQ1_S_H

typedef struct {
    uint8_t d[2], qs[32], qh[16];
} block_iq1_s;

INLINE int finite_iq1_s(const block_iq1_s *b) { return half_is_finite(b->d); }

INLINE void decode_iq1_s(const block_iq1_s *b, sink y) {
    const float d = half_at(y, b->d) * 0.125f; /* levels are in eighths; powers of two are exact here */
    PARTS(8) for (int k = 0; k < 8; k++) {
        const uint8_t *const q = b->qs + 4 * k;
        const unsigned h = u16_at(b->qh + 2 * k);
        const bytes codes = join8(iq1s_codes[q[0] | (h << 8 & 1792)], iq1s_codes[q[1] | (h << 5 & 1792)],
                                  iq1s_codes[q[2] | (h << 2 & 1792)], iq1s_codes[q[3] | (h >> 1 & 1792)]);
        const levels t = scaled_levels(y, iq1_levels, 1, d * (float)(2 * (h >> 12 & 7) + 1));
        put_scaled(y, 32 * k, t, either(codes, every_byte(h >> 15 << 2)));
    }
}

#endif
