/* MXFP4: value = table[code] * 2^(e - 128); the table holds twice the FP4 values, so that they are integers.
 * Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_MXFP4_H
#define GGUFX_KERNEL_MXFP4_H

typedef struct {
    uint8_t e, qs[16];
} block_mxfp4;

/* Scales reach to the ends of what a float holds, where rounding may not take the short way. */
INLINE int finite_mxfp4(const block_mxfp4 *b) { return (void)b, 0; }

INLINE void decode_mxfp4(const block_mxfp4 *b, sink y) {
    put_scaled(y, 0, scaled_levels(y, kvalues_mxfp4, 0, float_at(&e8m0_half_bits[b->e])), nibbles(b->qs));
}

#endif
