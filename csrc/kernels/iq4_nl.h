/* IQ4_NL: value = table[code] * d. Low nibbles are values 0-15, high nibbles 16-31. */
#ifndef GGUFX_KERNEL_IQ4_NL_H
#define GGUFX_KERNEL_IQ4_NL_H


typedef struct {
    uint8_t d[2], qs[16];
} block_iq4_nl;

static inline void decode_iq4_nl(const block_iq4_nl *b, float *y) {
    const floats d = every(half_at(b->d));
    const bytes q = load_bytes(b->qs);
    scaled(y, lookup(kvalues_iq4nl, field(q, 0, 15)), d);
    scaled(y + 16, lookup(kvalues_iq4nl, field(q, 4, 15)), d);
}

#endif
