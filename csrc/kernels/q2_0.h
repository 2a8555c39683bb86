/* Q2_0: value = (code - 1) * d, four neighbouring codes to a byte, lowest bits first. */
#ifndef GGUFX_KERNEL_Q2_0_H
#define GGUFX_KERNEL_Q2_0_H

typedef struct {
    uint8_t d[2], qs[16];
} block_q2_0;

/* crumbs() may give the codes at odd places times four: both forms of a code lead to its level. */
static const int8_t crumb_levels[32] = {-1, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0};

INLINE int finite_q2_0(const block_q2_0 *b) { return half_is_finite(b->d); }

INLINE void decode_q2_0(const block_q2_0 *b, sink y) {
    const levels t = scaled_levels(y, crumb_levels, 0, half_at(y, b->d));
    put_scaled(y, 0, t, crumbs(b->qs));
    put_scaled(y, 32, t, crumbs(b->qs + 8));
}

#endif
