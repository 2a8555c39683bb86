/* What the kernels say in the words of whichever lanes header came before: reading a block's fields, and the few
 * forms in which decoded values leave. Every operation rounds once, in ggml's order. */
#ifndef GGUFX_LANES_EMIT_H
#define GGUFX_LANES_EMIT_H

#include "../tables.h"

/* ---- little-endian fields at any alignment ---- */

static inline uint16_t u16_at(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t u32_at(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t u64_at(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float float_at(const void *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float half_at(const void *p) { return half(u16_at(p)); }

/* ---- sixteen values out ---- */

/* q * d, signed codes. */
static inline void scaled(float *y, bytes q, floats d) { put(y, multiply(from_signed(q), d)); }

/* q * d - m, unsigned codes. A negated m makes it q * d + m, the same sum to the bit. */
static inline void affine(float *y, bytes q, floats d, floats m) {
    put(y, subtract(multiply(from_unsigned(q), d), m));
}

/* (q + e) * d, signed codes. */
static inline void shifted(float *y, bytes q, floats e, floats d) { put(y, multiply(add(from_signed(q), e), d)); }

/* ---- shared by the IQ types ---- */

/* Sixteen sign bits from the two lowest 7-bit sign indices of a word. */
static inline unsigned signs16(uint32_t word) { return ksigns[word & 127] | (unsigned)ksigns[word >> 7 & 127] << 8; }

/* d * (0.5 + s) / 4 for the sixteen 4-bit scales of eight bytes: the low nibbles', then the high nibbles'. */
static inline void quarter_scales(float *out, const uint8_t *scales, float d) {
    const floats s = add(from_unsigned(nibbles8(scales)), every(0.5f));
    put(out, multiply(multiply(s, every(d)), every(0.25f)));
}

/* The offset of IQ1_S and IQ1_M. */
static inline float iq1_delta(unsigned negative) { return negative ? -0.125f : 0.125f; }

#endif
