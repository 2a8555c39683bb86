/* TQ1_0: value = (digit - 1) * d, base-3 digits, five to a byte in qs and four in qh.
 * A byte is the fraction 0.abcde in base 3 scaled to 256: digit n is the integer part of 3 * (byte * 3^n mod 256) / 256.
 * The first 32 bytes give 5 * 32 values, digit by digit, the next 16 give 5 * 16, the 4 of qh 4 * 4. */
#ifndef GGUFX_KERNEL_TQ1_0_H
#define GGUFX_KERNEL_TQ1_0_H


typedef struct {
    uint8_t qs[48], qh[4], d[2];
} block_tq1_0;

/* Multiplying by three modulo 256 keeps an offset of 128, so the offset that makes signed comparisons work is added
 * once, in advance. Digit 1 starts at 86 (86 * 3 > 255), digit 2 at 171. */
static inline bytes digit_less_one(bytes v) { return complement(plus(greater(v, 85 - 128), greater(v, 170 - 128))); }
static inline bytes thrice(bytes v) { return plus(plus(v, v), v); }

static inline void five_digits(bytes v, floats d, float *y, int stride) {
    scaled(y, digit_less_one(v), d);
    scaled(y + stride, digit_less_one(v = thrice(v)), d);
    scaled(y + 2 * stride, digit_less_one(v = thrice(v)), d);
    scaled(y + 3 * stride, digit_less_one(v = thrice(v)), d);
    scaled(y + 4 * stride, digit_less_one(thrice(v)), d);
}

/* Four bytes, each times three modulo 256. */
static inline uint32_t four_thrice(uint32_t v) {
    const uint32_t even = 0x00FF00FF;
    return ((v & even) * 3 & even) | ((v >> 8 & even) * 3 & even) << 8;
}

static inline void decode_tq1_0(const block_tq1_0 *b, float *y) {
    const floats d = every(half_at(b->d));
    five_digits(minus(load_bytes(b->qs), 128), d, y, 32);
    five_digits(minus(load_bytes(b->qs + 16), 128), d, y + 16, 32);
    five_digits(minus(load_bytes(b->qs + 32), 128), d, y + 160, 16);
    const uint64_t h = u32_at(b->qh), h3 = four_thrice((uint32_t)h), h9 = four_thrice((uint32_t)h3);
    const uint64_t h27 = four_thrice((uint32_t)h9);
    scaled(y + 240, digit_less_one(minus(from_words(h | h3 << 32, h9 | h27 << 32), 128)), d);
}

#endif
