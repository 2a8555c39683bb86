/* NVFP4: value = table[code] * scale / 2, in four sub-blocks of 16 with an unsigned E4M3 scale each.
 * Of a sub-block's eight bytes the low nibbles are values 0-7, the high nibbles 8-15. */
#ifndef GGUFX_KERNEL_NVFP4_H
#define GGUFX_KERNEL_NVFP4_H


typedef struct {
    uint8_t d[4], qs[32];
} block_nvfp4;

static inline void decode_nvfp4(const block_nvfp4 *b, float *y) {
    for (int k = 0; k < 4; k++)
        scaled(y + 16 * k, lookup(kvalues_mxfp4, nibbles8(b->qs + 8 * k)), every(float_at(&ue4m3_half_bits[b->d[k]])));
}

#endif
