/* TQ2_0: value = (code - 1) * d. Two halves of 128 values over 32 bytes each, bit pairs as in Q2_K. */
#ifndef GGUFX_KERNEL_TQ2_0_H
#define GGUFX_KERNEL_TQ2_0_H


typedef struct {
    uint8_t qs[64], d[2];
} block_tq2_0;

static inline void decode_tq2_0(const block_tq2_0 *b, float *y) {
    const floats d = every(half_at(b->d));
    for (int part = 0; part < 4; part++) {
        const bytes q = load_bytes(b->qs + 16 * part);
        float *const out = y + part / 2 * 128 + part % 2 * 16;
        scaled(out, minus(field(q, 0, 3), 1), d);
        scaled(out + 32, minus(field(q, 2, 3), 1), d);
        scaled(out + 64, minus(field(q, 4, 3), 1), d);
        scaled(out + 96, minus(field(q, 6, 3), 1), d);
    }
}

#endif
