/* MXFP4: value = table[code] * 2^(e - 128); the table holds twice the FP4 values, so that they are integers.
 * Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_MXFP4_H
#define GGUFX_KERNEL_MXFP4_H


typedef struct {
    uint8_t e, qs[16];
} block_mxfp4;

static inline void decode_mxfp4(const block_mxfp4 *b, float *y) {
    const floats d = every(float_at(&e8m0_half_bits[b->e]));
    const bytes q = load_bytes(b->qs);
    scaled(y, lookup(kvalues_mxfp4, field(q, 0, 15)), d);
    scaled(y + 16, lookup(kvalues_mxfp4, field(q, 4, 15)), d);
}

#endif
