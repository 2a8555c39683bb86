/* Q6_K: value = (code - 32) * (d * scale), in sixteen sub-blocks of 16 with signed byte scales.
 * Two halves of 128 values: 64 bytes of ql hold the low nibbles of values 0-63 and, in their high nibbles, of
 * 64-127; bits 0-1 of 32 bytes of qh top values 0-31, bits 2-3 values 32-63, and so on. */
#ifndef GGUFX_KERNEL_Q6_K_H
#define GGUFX_KERNEL_Q6_K_H

typedef struct {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint8_t d[2];
} block_q6_k;

INLINE int finite_q6_k(const block_q6_k *b) { return half_is_finite(b->d); }

INLINE void decode_q6_k(const block_q6_k *b, sink y) {
    float d[16];
    store_signed(d, load_sixteen(b->scales), half_at(y, b->d));
    PARTS(2) for (int half = 0; half < 2; half++) {
        const bytes q = load_bytes(b->ql + 64 * half), r = load_bytes(b->ql + 64 * half + 32);
        const bytes h = load_bytes(b->qh + 32 * half);
        const float *const s = d + 8 * half;
        const int at = 128 * half;
        scaled(y, at, minus(either(field(q, 0, 15), field(h, -4, 48)), 32), pair(s[0], s[1]));
        scaled(y, at + 32, minus(either(field(r, 0, 15), field(h, -2, 48)), 32), pair(s[2], s[3]));
        scaled(y, at + 64, minus(either(field(q, 4, 15), field(h, 0, 48)), 32), pair(s[4], s[5]));
        scaled(y, at + 96, minus(either(field(r, 4, 15), field(h, 2, 48)), 32), pair(s[6], s[7]));
    }
}

#endif
