/* NVFP4: value = table[code] * scale / 2, in four sub-blocks of 16 with an unsigned E4M3 scale each.
 * Of a sub-block's eight bytes the low nibbles are values 0-7, the high nibbles 8-15. */
#ifndef GGUFX_KERNEL_NVFP4_H
#define GGUFX_KERNEL_NVFP4_H

typedef struct {
    uint8_t d[4], qs[32];
} block_nvfp4;

/* Every scale in the table is finite. */
INLINE int finite_nvfp4(const block_nvfp4 *b) { return (void)b, 1; }

INLINE void decode_nvfp4(const block_nvfp4 *b, sink y) {
    PARTS(2) for (int k = 0; k < 2; k++) {
        const float d = float_at(&ue4m3_half_bits[b->d[2 * k]]), e = float_at(&ue4m3_half_bits[b->d[2 * k + 1]]);
        scaled(y, 32 * k, lookup(kvalues_mxfp4, nibbles_by_eight(b->qs + 16 * k)), pair(d, e));
    }
}

#endif
