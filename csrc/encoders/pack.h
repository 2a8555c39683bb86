/* Writing blocks: what an encoder found, packed into the bytes of each lane's block. */
#ifndef GGUFX_ENCODERS_PACK_H
#define GGUFX_ENCODERS_PACK_H

#include "../compiler.h"

/* `size` bytes of every lane, the lowest first, at an offset of its block. */
INLINE void pack(uint8_t *const *block, size_t at, wide_int v, size_t size) {
    uint32_t lane[LANES];
    store_int_lanes(lane, v);
    UNROLL(16)
    for (int k = 0; k < LANES; k++) memcpy(block[k] + at, &lane[k], size);
}

INLINE wide_int nth_byte(wide_int v, int k) { return shift_left(int_and(v, every_int(255)), 8 * k); }

INLINE wide_int four_bytes(const wide_int *q) {
    return int_or(int_or(nth_byte(q[0], 0), nth_byte(q[1], 1)), int_or(nth_byte(q[2], 2), shift_left(q[3], 24)));
}

/* n bytes, a multiple of four, from n codes whose low bytes count. */
INLINE void pack_bytes(uint8_t *const *block, size_t at, const wide_int *q, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16)
        pack_rows(block, at + (size_t)i, four_bytes(q + i), four_bytes(q + i + 4), four_bytes(q + i + 8),
                  four_bytes(q + i + 12));
    for (; i < n; i += 4) pack(block, at + (size_t)i, four_bytes(q + i), 4);
}

/* Four bytes of `per` codes each; the codes of one byte stand `group` apart. */
INLINE wide_int word_of_codes(const wide_int *q, int group, int bits) {
    wide_int word = q[0];
    UNROLL(32)
    for (int k = 1; k < 32 / bits; k++)
        word = int_or(word, shift_left(q[k / 4 * group + k % 4], 8 * (k % 4) + bits * (k / 4)));
    return word;
}

/* Codes below 1 << bits, n of them, in n * bits / 8 bytes: `group` codes take the low bits of `group` bytes, the next
 * `group` the next bits, and so on; full bytes are followed by the next ones. */
INLINE void pack_codes(uint8_t *const *block, size_t at, const wide_int *q, int n, int group, int bits) {
    const int span = 8 / bits * group;
    for (int start = 0; start < n; start += span, at += (size_t)group) {
        int i = 0;
        const wide_int *p = q + start;
        for (; i + 16 <= group; i += 16)
            pack_rows(block, at + (size_t)i, word_of_codes(p + i, group, bits), word_of_codes(p + i + 4, group, bits),
                      word_of_codes(p + i + 8, group, bits), word_of_codes(p + i + 12, group, bits));
        for (; i < group; i += 4) pack(block, at + (size_t)i, word_of_codes(p + i, group, bits), 4);
    }
}

/* Two half-precision numbers, the first lower. */
INLINE wide_int packed_halves(wide a, wide b) { return int_or(half_of(a), shift_left(half_of(b), 16)); }

#endif
