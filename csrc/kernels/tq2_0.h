/* TQ2_0: value = (code - 1) * d. Two halves of 128 values over 32 bytes each, bit pairs as in Q2_K. */
#ifndef GGUFX_KERNEL_TQ2_0_H
#define GGUFX_KERNEL_TQ2_0_H

typedef struct {
    uint8_t qs[64], d[2];
} block_tq2_0;

static const int8_t tq2_0_values[32] = {-1, 0, 1, 2};

INLINE int finite_tq2_0(const block_tq2_0 *b) { return half_is_finite(b->d); }

INLINE void decode_tq2_0(const block_tq2_0 *b, sink y) {
    const levels t = scaled_levels(y, tq2_0_values, 1, half_at(y, b->d));
    PARTS(2) for (int half = 0; half < 2; half++) {
        const bytes q = load_bytes(b->qs + 32 * half);
        put_scaled(y, 128 * half, t, field(q, 0, 3));
        put_scaled(y, 128 * half + 32, t, field(q, 2, 3));
        put_scaled(y, 128 * half + 64, t, field(q, 4, 3));
        put_scaled(y, 128 * half + 96, t, field(q, 6, 3));
    }
}

#endif
