/* TQ1_0: value = (digit - 1) * d, base-3 digits, five to a byte in qs and four in qh.
 * A byte is the fraction 0.abcde in base 3 scaled to 256: digit n is the integer part of 3 * (byte * 3^n mod 256) /
 * 256. The first 32 bytes give 5 * 32 values, digit by digit, the next 16 give 5 * 16, the 4 of qh 4 * 4. */
#ifndef GGUFX_KERNEL_TQ1_0_H
#define GGUFX_KERNEL_TQ1_0_H

typedef struct {
    uint8_t qs[48], qh[4], d[2];
} block_tq1_0;

/* Multiplying by three modulo 256 keeps an offset of 128, so the offset that makes signed comparisons work is added
 * once, in advance. Digit 1 starts at 86 (86 * 3 > 255), digit 2 at 171: none, one or both comparisons hold, and the
 * low two bits of their sum are the code 0, 3 or 2. */
static const int8_t tq1_0_values[32] = {-1, 0, 1, 0};

INLINE bytes digit(bytes v) { return field(plus(greater(v, 85 - 128), greater(v, 170 - 128)), 0, 3); }
INLINE bytes thrice(bytes v) { return plus(plus(v, v), v); }

/* Four bytes, each times three modulo 256. */
INLINE uint32_t four_thrice(uint32_t v) {
    const uint32_t even = 0x00FF00FF;
    return ((v & even) * 3 & even) | ((v >> 8 & even) * 3 & even) << 8;
}

INLINE int finite_tq1_0(const block_tq1_0 *b) { return half_is_finite(b->d); }

INLINE void decode_tq1_0(const block_tq1_0 *b, sink y) {
    const levels t = scaled_levels(y, tq1_0_values, 1, half_at(y, b->d));
    bytes v = minus(load_bytes(b->qs), 128);
    PARTS(5) for (int n = 0; n < 5; n++, v = thrice(v)) put_scaled(y, 32 * n, t, digit(v));

    /* The other sixteen bytes give five runs of sixteen, the four of qh the last sixteen values. */
    sixteen w[5] = {load_sixteen(b->qs + 32)};
    for (int n = 1; n < 5; n++) w[n] = thrice_of_sixteen(w[n - 1]);
    const uint64_t h = u32_at(b->qh), h3 = four_thrice((uint32_t)h), h9 = four_thrice((uint32_t)h3);
    const sixteen last = from_words(h | h3 << 32, h9 | (uint64_t)four_thrice((uint32_t)h9) << 32);
    put_scaled(y, 160, t, digit(minus(join16(w[0], w[1]), 128)));
    put_scaled(y, 192, t, digit(minus(join16(w[2], w[3]), 128)));
    put_scaled(y, 224, t, digit(minus(join16(w[4], last), 128)));
}

#endif
