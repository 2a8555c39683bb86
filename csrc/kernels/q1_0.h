/* Q1_0: value = d where the bit is set, else -d. */
#ifndef GGUFX_KERNEL_Q1_0_H
#define GGUFX_KERNEL_Q1_0_H

typedef struct {
    uint8_t d[2], qs[16];
} block_q1_0;

static const int8_t q1_0_values[32] = {-1, 1};

INLINE int finite_q1_0(const block_q1_0 *b) { return half_is_finite(b->d); }

INLINE void decode_q1_0(const block_q1_0 *b, sink y) {
    const levels t = scaled_levels(y, q1_0_values, 1, half_at(y, b->d));
    PARTS(4) for (int k = 0; k < 4; k++) put_scaled(y, 32 * k, t, add_where(every_byte(0), u32_at(b->qs + 4 * k), 1));
}

#endif
