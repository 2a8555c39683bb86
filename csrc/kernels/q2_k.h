/* Q2_K: value = code * (d * scale) - dmin * min, in sixteen sub-blocks of 16.
 * scales[j] belongs to sub-block j: scale in its low nibble, min in the high one. The codes stand in two halves of
 * 128 values over 32 bytes each; bits 0-1 of the 32 bytes are values 0-31 of the half, bits 2-3 are 32-63, and so on.
 */
#ifndef GGUFX_KERNEL_Q2_K_H
#define GGUFX_KERNEL_Q2_K_H

typedef struct {
    uint8_t scales[16], qs[64], d[2], dmin[2];
} block_q2_k;

/* The levels of four sub-blocks, four each: the codes of the k-th have 4k added for the halves' table. */
INLINE void four_of_q2_k(sink y, int at, bytes first, bytes second, const float *d, const float *m) {
    if (!takes_halves(y)) {
        affine(y, at, first, pair(d[0], d[1]), pair(m[0], m[1]));
        affine(y, at + 32, second, pair(d[2], d[3]), pair(m[2], m[3]));
    } else {
        static const uint8_t each_four_times[32] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
        const floats v = product_plus(load_signed(each_four_times), quads(d), quads(m));
        const words table = table_of(y, v);
        put_words(y, at, table, either(first, pair_of_bytes(0, 4)));
        put_words(y, at + 32, table, either(second, pair_of_bytes(8, 12)));
    }
}

INLINE int finite_q2_k(const block_q2_k *b) { return two_halves_are_finite(b->d); }

INLINE void decode_q2_k(const block_q2_k *b, sink y) {
    float d[16], m[16];
    const sixteen s = load_sixteen(b->scales);
    float scale, min;
    two_halves_at(y, b->d, &scale, &min);
    store_unsigned(d, field_of_sixteen(s, 0, 15), scale, scale);
    store_unsigned(m, field_of_sixteen(s, 4, 15), -min, -min);
    PARTS(2) for (int half = 0; half < 2; half++) {
        const bytes q = load_bytes(b->qs + 32 * half);
        const int j = 8 * half;
        four_of_q2_k(y, 16 * j, field(q, 0, 3), field(q, 2, 3), d + j, m + j);
        four_of_q2_k(y, 16 * j + 64, field(q, 4, 3), field(q, 6, 3), d + j + 4, m + j + 4);
    }
}

#endif
