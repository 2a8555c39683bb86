/* Plain numbers, 32 at a time: F32, F16, BF16. */
#ifndef GGUFX_KERNEL_PLAIN_H
#define GGUFX_KERNEL_PLAIN_H

typedef struct {
    uint8_t values[128];
} block_f32;

typedef struct {
    uint8_t values[64];
} block_f16, block_bf16;

/* These have no scale to ask. */
INLINE int finite_f32(const block_f32 *b) { return (void)b, 0; }
INLINE int finite_f16(const block_f16 *b) { return (void)b, 0; }
INLINE int finite_bf16(const block_bf16 *b) { return (void)b, 0; }

/* Scales are canonical as they are read; plain numbers are only where bfloats are made of them. */
INLINE void put_numbers(sink y, floats v) { put(y, 0, y.dtype == GGUFX_BF16 ? canonical_nans(v) : v); }

INLINE void decode_f32(const block_f32 *b, sink y) { put_numbers(y, load_floats(b->values)); }
INLINE void decode_f16(const block_f16 *b, sink y) { put_numbers(y, load_halves(b->values)); }
INLINE void decode_bf16(const block_bf16 *b, sink y) { put_numbers(y, load_bfloats(b->values)); }

#endif
