/* IQ1_M: value = (grid + delta) * (d * (2 * scale + 1)), in sixteen sub-blocks of 16; grid values are -1, 0, 1.
 * Each nibble of qh belongs to one index of eight values: three more bits of the index, then the sign of delta.
 * Four 16-bit words hold four 3-bit scales each and, in their top nibbles, the half d, lowest nibble first. */
#ifndef GGUFX_KERNEL_IQ1_M_H
#define GGUFX_KERNEL_IQ1_M_H


typedef struct {
    uint8_t qs[32], qh[16], scales[8];
} block_iq1_m;

static inline void decode_iq1_m(const block_iq1_m *b, float *y) {
    const uint64_t s = u64_at(b->scales);
    const float d = half((uint16_t)((s >> 12 & 0x000F) | (s >> 24 & 0x00F0) | (s >> 36 & 0x0F00) | (s >> 48 & 0xF000)));
    for (int k = 0; k < 16; k++) {
        const uint8_t *const q = b->qs + 2 * k;
        const unsigned h = b->qh[k], scale = s >> (k / 4 * 16 + k % 4 * 3) & 7;
        const bytes grid = join8(iq1s_grid[q[0] | (h << 8 & 1792)], iq1s_grid[q[1] | (h << 4 & 1792)]);
        shifted(y + 16 * k, grid, pair(iq1_delta(h >> 3 & 1), iq1_delta(h >> 7)), every(d * (float)(2 * scale + 1)));
    }
}

#endif
