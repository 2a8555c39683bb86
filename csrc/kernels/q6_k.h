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

static inline void decode_q6_k(const block_q6_k *b, float *y) {
    float d[16];
    put(d, multiply(from_signed(load_bytes(b->scales)), every(half_at(b->d))));
    for (int part = 0; part < 4; part++) { /* every second sub-block of a half */
        const int half = part / 2, side = part % 2, j = 8 * half + side;
        const bytes q = load_bytes(b->ql + 64 * half + 16 * side), r = load_bytes(b->ql + 64 * half + 16 * side + 32);
        const bytes h = load_bytes(b->qh + 16 * part);
        float *const out = y + 16 * j;
        scaled(out, minus(either(field(q, 0, 15), field(h, -4, 48)), 32), every(d[j]));
        scaled(out + 32, minus(either(field(r, 0, 15), field(h, -2, 48)), 32), every(d[j + 2]));
        scaled(out + 64, minus(either(field(q, 4, 15), field(h, 0, 48)), 32), every(d[j + 4]));
        scaled(out + 96, minus(either(field(r, 4, 15), field(h, 2, 48)), 32), every(d[j + 6]));
    }
}

#endif
