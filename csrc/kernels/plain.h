/* Plain numbers, sixteen at a time: F32, F16, BF16. */
#ifndef GGUFX_KERNEL_PLAIN_H
#define GGUFX_KERNEL_PLAIN_H


typedef struct {
    uint8_t values[64];
} block_f32;

typedef struct {
    uint8_t values[32];
} block_f16, block_bf16;

static inline void decode_f32(const block_f32 *b, float *y) { memcpy(y, b->values, sizeof b->values); }
static inline void decode_f16(const block_f16 *b, float *y) { put(y, load_halves(b->values)); }
static inline void decode_bf16(const block_bf16 *b, float *y) { put(y, load_bfloats(b->values)); }

#endif
