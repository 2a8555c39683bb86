/* IQ4_NL: value = table[code] * d. Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_IQ4_NL_H
#define GGUFX_KERNEL_IQ4_NL_H

typedef struct {
    uint8_t d[2], qs[16];
} block_iq4_nl;

INLINE int finite_iq4_nl(const block_iq4_nl *b) { return half_is_finite(b->d); }

INLINE void decode_iq4_nl(const block_iq4_nl *b, sink y) {
    put_scaled(y, 0, scaled_levels(y, kvalues_iq4nl, 0, half_at(y, b->d)), nibbles(b->qs));
}

#endif
