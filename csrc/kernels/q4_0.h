/* Q4_0: value = (code - 8) * d. Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_Q4_0_H
#define GGUFX_KERNEL_Q4_0_H

typedef struct {
    uint8_t d[2], qs[16];
} block_q4_0;

static const int8_t q4_0_values[32] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

INLINE int finite_q4_0(const block_q4_0 *b) { return half_is_finite(b->d); }

INLINE void decode_q4_0(const block_q4_0 *b, sink y) {
    const float d = half_at(y, b->d);
    if (y.dtype == GGUFX_F32)
        put(y, 0, multiply(subtract(floats_of_nibbles(b->qs), every(8)), every(d)));
    else
        put_scaled(y, 0, scaled_levels(y, q4_0_values, 0, d), nibbles(b->qs));
}

#endif
