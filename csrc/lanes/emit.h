/* What the kernels say in the words of whichever lanes header came before: reading a block's fields, and the few
 * forms in which decoded values leave. Every operation rounds once, in ggml's order. */
#ifndef GGUFX_LANES_EMIT_H
#define GGUFX_LANES_EMIT_H

#include "../ggufx.h"
#include "../tables.h"

/* ---- little-endian fields at any alignment ---- */

INLINE uint16_t u16_at(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE uint32_t u32_at(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE uint64_t u64_at(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE float float_at(const void *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static const uint8_t ascending[32] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* ---- where values go ---- */

/* An output array. What follows it is constant wherever a kernel is inlined, so nothing asks at run time: the dtype,
 * whether stores bypass the cache, and whether the block's scales are known to be finite halves. Then every value is a
 * finite number of middling size, and lanes may round it to bfloat16 by arithmetic that would overflow otherwise.
 *
 * Or, where `rows` isn't zero, no array at all: float32 values are multiplied with so many rows of x, from column `at`
 * on, and added to a sum of each. Or x is codes, and so is what it is multiplied with, before scales and minimums. */
typedef struct {
    void *values;
    int dtype, past_cache, finite;
    int rows;
    const float *const *x;
    size_t at;
    sums *sum;
    const ggufx_codes *const *codes;
    code_sums *code_sum;
} sink;

enum { CODES = GGUFX_DTYPES }; /* what a sink takes that isn't a dtype */

INLINE sink array_sink(void *values, int dtype, int past_cache, int finite) {
    return (sink){.values = values, .dtype = dtype, .past_cache = past_cache, .finite = finite};
}
INLINE sink sum_sink(const float *const *x, size_t at, sums *sum, int rows) {
    return (sink){.dtype = GGUFX_F32, .rows = rows, .x = x, .at = at, .sum = sum};
}

INLINE sink code_sink(const ggufx_codes *const *codes, code_sums *sum, int rows) {
    return (sink){.dtype = CODES, .rows = rows, .codes = codes, .code_sum = sum};
}
/* Those of the r-th row from value i on, a multiple of 32; said in bytes, for compilers don't know that it is one. */
INLINE const ggufx_codes *codes_at(sink y, int r, int i) {
    return (const void *)((const char *)y.codes[r] + (size_t)(unsigned)i * (sizeof(ggufx_codes) / 32));
}
INLINE int takes_halves(sink y) { return y.dtype == GGUFX_F16 || y.dtype == GGUFX_BF16; }

INLINE int half_is_finite(const void *p) { return (u16_at(p) & 0x7C00) != 0x7C00; }
/* Only the exponent of a NaN or an infinity carries into the sign when 0x0400 is added to it. */
INLINE int two_halves_are_finite(const void *p) { return (((u32_at(p) & 0x7C007C00) + 0x04000400) & 0x80008000) == 0; }

/* A scale or minimum on its way to y. Rounding to bfloat16 adds to the low bits of the float, which could carry out of
 * a NaN's fraction; where every NaN scale is one with clear low bits, no decoded value needs a test. */
INLINE uint16_t half_bits_for(sink y, uint16_t h) {
    return y.dtype == GGUFX_BF16 && !y.finite && (h & 0x7FFF) > 0x7C00 ? 0x7E00 : h;
}
INLINE float half_at(sink y, const void *p) { return half(half_bits_for(y, u16_at(p))); }
INLINE void two_halves_at(sink y, const void *p, float *first, float *second) {
    const uint32_t both = u32_at(p);
    two_halves(half_bits_for(y, (uint16_t)both) | (uint32_t)half_bits_for(y, (uint16_t)(both >> 16)) << 16, first,
               second);
}

/* Thirty-two values, from the i-th on. */
INLINE void put(sink y, int i, floats v) {
    if (y.rows) {
        UNROLL(4) for (int r = 0; r < y.rows; r++) y.sum[r] = accumulate(y.sum[r], v, y.x[r] + y.at + i);
    } else if (y.dtype == GGUFX_F32)
        store_floats((float *)y.values + i, v, y.past_cache);
    else if (y.dtype == GGUFX_F16)
        store_halves((uint16_t *)y.values + i, v, y.past_cache);
    else
        store_bfloats((uint16_t *)y.values + i, v, y.finite, y.past_cache);
}

/* What follows puts codes, with scales and minimums that are the same over each sixteen. */
#define EACH_ROW UNROLL(4) for (int r = 0; r < y.rows; r++)

INLINE void put_words(sink y, int i, words table, bytes codes) {
    store_words((uint16_t *)y.values + i, table, codes, y.past_cache);
}

/* q * d, signed codes; d is a half times at most an eight-bit scale. */
INLINE void scaled(sink y, int i, bytes q, floats d) {
    if (y.dtype == CODES) {
        EACH_ROW y.code_sum[r] = add_signed_codes(y.code_sum[r], q, eight_scales(d), codes_at(y, r, i));
    } else if (y.dtype == GGUFX_BF16)
        store_scaled_bfloats((uint16_t *)y.values + i, q, d, y.finite, y.past_cache);
    else
        put(y, i, multiply(from_signed(q), d));
}

/* The same for signed bytes in memory and any d. */
INLINE void scaled_bytes(sink y, int i, const void *q, floats d) {
    if (y.dtype == CODES)
        scaled(y, i, load_bytes(q), d);
    else
        put(y, i, multiply(load_signed(q), d));
}

/* q * d + m, unsigned codes. d has eleven bits from a half and at most six from a scale, q at most five: their product
 * is exact. */
INLINE void affine(sink y, int i, bytes q, floats d, floats m) {
    if (y.dtype == CODES) {
        const scales by = eight_scales(d), less = eight_scales(m);
        EACH_ROW y.code_sum[r] = add_affine_codes(y.code_sum[r], q, by, less, codes_at(y, r, i));
    } else if (y.dtype == GGUFX_BF16)
        store_affine_bfloats((uint16_t *)y.values + i, q, d, m, y.finite, y.past_cache);
    else
        put(y, i, product_plus(from_unsigned(q), d, m));
}

/* ---- shared by the IQ types ---- */

/* The signs of 32 values from the four 7-bit sign indices in the low bits of a word. */
INLINE bytes four_signs(const uint8_t (*signs)[8], uint32_t word) {
    return join8(signs[word & 127], signs[word >> 7 & 127], signs[word >> 14 & 127], signs[word >> 21 & 127]);
}

/* d * (0.5 + s) / 4 for the sixteen 4-bit scales of eight bytes: the low nibbles', then the high nibbles'. It is
 * (2 * s + 1) * (d / 8), without a rounding: d has eleven bits. */
INLINE void store_odd_scales(float *out, const uint8_t *scales, float d) {
    const sixteen s = nibbles8(scales);
    store_unsigned(out, combine(field_of_sixteen(s, -1, 30), every_one(), 0), d * 0.125f, d * 0.125f);
}

/* ---- codes of at most four bits ----
 * A run of values under one scale has at most sixteen different values. As floats they are cheaper to compute than to
 * look up; as halves the sixteen are computed and rounded once, and looked up 32 at a time. */

typedef struct {
    const int8_t *values; /* 16 levels of 8 bits, and 16 bytes that are never looked up */
    int few;              /* at most eight levels */
    floats d;
    scales by;
    words table;
} levels;

INLINE words table_of(sink y, floats v) {
    return y.dtype == GGUFX_F16 ? words_of_halves(v) : words_of_bfloats(v, y.finite);
}

/* values[code] * d */
INLINE levels scaled_levels(sink y, const int8_t *values, int few, float d) {
    levels t;
    t.values = values;
    t.few = few;
    t.d = every(d);
    t.by = every_scale(d);
    if (takes_halves(y)) t.table = table_of(y, multiply(load_signed(values), t.d));
    return t;
}

/* The same with d for the first sixteen values and e for the others, whose codes have bit 3 set: the lower eight
 * levels stand twice. */
INLINE levels scaled_level_pair(sink y, const int8_t *values, float d, float e) {
    levels t;
    t.values = values;
    t.few = 1;
    t.d = pair(d, e);
    t.by = pair_of_scales(d, e);
    if (takes_halves(y)) t.table = table_of(y, multiply(load_signed(values), eights(d, e)));
    return t;
}
INLINE bytes bit3_in_second_half(void) { return pair_of_bytes(0, 8); }

INLINE void put_scaled(sink y, int i, levels t, bytes codes) {
    if (y.dtype == CODES) {
        EACH_ROW y.code_sum[r] = add_levels(y.code_sum[r], t.values, codes, t.by, codes_at(y, r, i));
    } else if (y.dtype == GGUFX_F32)
        put(y, i, scaled_codes(t.values, codes, t.d, t.few));
    else
        put_words(y, i, t.table, codes);
}

/* code * d + m, for codes and halves. */
INLINE void put_affine(sink y, int i, float d, float m, bytes codes) {
    if (y.dtype == CODES) {
        EACH_ROW y.code_sum[r] =
            add_affine_codes(y.code_sum[r], codes, every_scale(d), every_scale(m), codes_at(y, r, i));
    } else
        put_words(y, i, table_of(y, product_plus(load_signed(ascending), every(d), every(m))), codes);
}

#undef EACH_ROW

#endif
