/* The lane words in plain C: what each word means, what the other lanes are held against, and what every other CPU
 * runs. A kernel works on 32 values at a time; scales come sixteen at a time. */
#ifndef GGUFX_LANES_SCALAR_H
#define GGUFX_LANES_SCALAR_H

#include "../half.h"
#include "nan.h"

typedef struct {
    uint8_t at[32];
} bytes;
typedef struct {
    uint8_t at[16];
} sixteen;
typedef struct {
    float at[32];
} floats;

/* A table of sixteen 16-bit output values. */
typedef struct {
    uint16_t at[16];
} words;

#define EACH for (int i = 0; i < 32; i++)
#define EACH16 for (int i = 0; i < 16; i++)
#define EACH8 for (int i = 0; i < 8; i++)

/* ---- thirty-two bytes ---- */

INLINE bytes load_bytes(const void *p) {
    bytes r;
    memcpy(r.at, p, sizeof r);
    return r;
}
INLINE bytes every_byte(int v) {
    bytes r;
    memset(r.at, v, sizeof r);
    return r;
}
/* v in the first sixteen, w in the others. */
INLINE bytes pair_of_bytes(int v, int w) {
    bytes r;
    EACH r.at[i] = (uint8_t)(i < 16 ? v : w);
    return r;
}

/* (each byte >> shift) & mask; a negative shift goes left. Constants at every call. */
INLINE bytes field(bytes v, int shift, int mask) {
    EACH v.at[i] = (uint8_t)((shift < 0 ? v.at[i] << -shift : v.at[i] >> shift) & mask);
    return v;
}
INLINE bytes either(bytes a, bytes b) {
    EACH a.at[i] |= b.at[i];
    return a;
}
INLINE bytes plus(bytes a, bytes b) {
    EACH a.at[i] = (uint8_t)(a.at[i] + b.at[i]);
    return a;
}
INLINE bytes minus(bytes a, int k) {
    EACH a.at[i] = (uint8_t)(a.at[i] - k);
    return a;
}
/* 0xFF where the signed byte is greater than k. */
INLINE bytes greater(bytes v, int k) {
    EACH v.at[i] = (int8_t)v.at[i] > k ? 0xFF : 0;
    return v;
}
/* table[index], sixteen entries, for indices below 16. */
INLINE bytes lookup(const int8_t *table, bytes index) {
    EACH index.at[i] = (uint8_t)table[index.at[i]];
    return index;
}
/* v + value where bit i is set. */
INLINE bytes add_where(bytes v, uint32_t bits, int value) {
    EACH v.at[i] = (uint8_t)(v.at[i] + (bits >> i & 1 ? value : 0));
    return v;
}

/* The low nibbles of sixteen bytes, then their high nibbles. */
INLINE bytes nibbles(const void *p) {
    const uint8_t *v = p;
    bytes r;
    EACH16 r.at[i] = v[i] & 15, r.at[16 + i] = v[i] >> 4;
    return r;
}
/* The same for each half of the sixteen bytes by itself. */
INLINE bytes nibbles_by_eight(const void *p) {
    const uint8_t *v = p;
    bytes r;
    EACH16 r.at[i / 8 * 16 + i % 8] = v[i] & 15, r.at[i / 8 * 16 + 8 + i % 8] = v[i] >> 4;
    return r;
}
/* The 2-bit codes of eight bytes in order. Those at odd places may come times four; see crumb_levels. */
INLINE bytes crumbs(const void *p) {
    const uint8_t *v = p;
    bytes r;
    EACH r.at[i] = v[i / 4] >> i % 4 * 2 & 3;
    return r;
}
/* Each of four bytes eight times. */
INLINE bytes eight_of_each(const void *p) {
    const uint8_t *v = p;
    bytes r;
    EACH r.at[i] = v[i / 8];
    return r;
}
/* Four groups of eight bytes, eight groups of four. */
INLINE bytes join8(const void *a, const void *b, const void *c, const void *d) {
    bytes r;
    memcpy(r.at, a, 8), memcpy(r.at + 8, b, 8), memcpy(r.at + 16, c, 8), memcpy(r.at + 24, d, 8);
    return r;
}
INLINE bytes join4(const void *a, const void *b, const void *c, const void *d, const void *e, const void *f,
                   const void *g, const void *h) {
    bytes r;
    memcpy(r.at, a, 4), memcpy(r.at + 4, b, 4), memcpy(r.at + 8, c, 4), memcpy(r.at + 12, d, 4);
    memcpy(r.at + 16, e, 4), memcpy(r.at + 20, f, 4), memcpy(r.at + 24, g, 4), memcpy(r.at + 28, h, 4);
    return r;
}
INLINE bytes join16(sixteen a, sixteen b) {
    bytes r;
    memcpy(r.at, a.at, 16), memcpy(r.at + 16, b.at, 16);
    return r;
}

/* ---- sixteen bytes ---- */

INLINE sixteen load_sixteen(const void *p) {
    sixteen r;
    memcpy(r.at, p, sizeof r);
    return r;
}
INLINE sixteen every_one(void) {
    sixteen r;
    memset(r.at, 1, sizeof r);
    return r;
}
/* Modulo 256. */
INLINE sixteen thrice_of_sixteen(sixteen v) {
    EACH16 v.at[i] = (uint8_t)(v.at[i] * 3);
    return v;
}
/* From two numbers, lowest byte first. */
INLINE sixteen from_words(uint64_t lo, uint64_t hi) {
    sixteen r;
    EACH8 r.at[i] = (uint8_t)(lo >> 8 * i), r.at[8 + i] = (uint8_t)(hi >> 8 * i);
    return r;
}
/* The low nibbles of eight bytes, then their high nibbles. */
INLINE sixteen nibbles8(const void *p) {
    const uint8_t *v = p;
    sixteen r;
    EACH8 r.at[i] = v[i] & 15, r.at[8 + i] = v[i] >> 4;
    return r;
}
/* The nibbles of eight bytes in order, each byte's low one first. */
INLINE sixteen nibbles_in_order(const void *p) {
    const uint8_t *v = p;
    sixteen r;
    EACH8 r.at[2 * i] = v[i] & 15, r.at[2 * i + 1] = v[i] >> 4;
    return r;
}
INLINE sixteen field_of_sixteen(sixteen v, int shift, int mask) {
    EACH16 v.at[i] = (uint8_t)((shift < 0 ? v.at[i] << -shift : v.at[i] >> shift) & mask);
    return v;
}
/* (a | b) - less */
INLINE sixteen combine(sixteen a, sixteen b, int less) {
    EACH16 a.at[i] = (uint8_t)((a.at[i] | b.at[i]) - less);
    return a;
}

/* Sixteen scales as floats: signed times d; unsigned, the first eight times d and the others times e. */
INLINE void store_signed(float *out, sixteen v, float d) { EACH16 out[i] = (float)(int8_t)v.at[i] * d; }
INLINE void store_unsigned(float *out, sixteen v, float d, float e) {
    EACH16 out[i] = (float)v.at[i] * (i < 8 ? d : e);
}

/* ---- indices into the grids, stored for scalar loads ---- */

INLINE void store_bytes(uint8_t *p, sixteen v) { memcpy(p, v.at, sizeof v); }

/* low | high << 8 */
INLINE void store_wide(uint16_t *p, sixteen low, sixteen high) {
    EACH16 p[i] = (uint16_t)(low.at[i] | high.at[i] << 8);
}
/* Four bytes, each topped by one of four bits, as the four 16-bit parts of a number. */
INLINE uint64_t four_of_nine_bits(uint32_t low, unsigned high) {
    uint64_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint64_t)((low >> 8 * i & 255) | (high >> i & 1) << 8) << 16 * i;
    return r;
}

/* ---- thirty-two floats ---- */

INLINE void two_halves(uint32_t both, float *first, float *second) {
    *first = half_to_float((uint16_t)both);
    *second = half_to_float((uint16_t)(both >> 16));
}
INLINE float half(uint16_t h) { return half_to_float(h); }

INLINE floats every(float x) {
    floats r;
    EACH r.at[i] = x;
    return r;
}
/* x in the first sixteen, y in the others. */
INLINE floats pair(float x, float y) {
    floats r;
    EACH r.at[i] = i < 16 ? x : y;
    return r;
}
/* Of the sixteen levels of a table: x for the first eight and y for the others; four of each of p[0] to p[3]. The
 * lanes behind the sixteenth are unspecified. */
INLINE floats eights(float x, float y) {
    floats r = {{0}};
    EACH16 r.at[i] = i < 8 ? x : y;
    return r;
}
INLINE floats quads(const float *p) {
    floats r = {{0}};
    EACH16 r.at[i] = p[i / 4];
    return r;
}
INLINE floats load_floats(const void *p) {
    floats r;
    memcpy(r.at, p, sizeof r);
    return r;
}
/* Output: past_cache is a constant, and on where p is 64-byte aligned and should not stay in the cache.
 * enum { STREAMS } says whether the lanes have a way past it; plain C has none. */
enum { STREAMS = 0 };
INLINE void store_floats(float *p, floats v, int past_cache) {
    (void)past_cache;
    memcpy(p, v.at, sizeof v);
}

INLINE floats add(floats a, floats b) {
    EACH a.at[i] += b.at[i];
    return a;
}
INLINE floats subtract(floats a, floats b) {
    EACH a.at[i] -= b.at[i];
    return a;
}
INLINE floats multiply(floats a, floats b) {
    EACH a.at[i] *= b.at[i];
    return a;
}
/* x * y + z, of products that a float holds exactly: one rounding or two make the same sum. */
INLINE floats product_plus(floats x, floats y, floats z) { return add(multiply(x, y), z); }
INLINE floats from_unsigned(bytes v) {
    floats r;
    EACH r.at[i] = v.at[i];
    return r;
}
INLINE floats from_signed(bytes v) {
    floats r;
    EACH r.at[i] = (int8_t)v.at[i];
    return r;
}
/* from_unsigned(nibbles(p)), which lanes may have a shorter way for. In L2 (Zen 5, gcc 12) it takes Q4_0, Q4_1 and Q4_K
 * from 18.8, 18.7 and 20.6 to 21.9, 25.0 and 25.5 Gweights/s with AVX2, which makes them twice as fast as ggml, and
 * from 36.3, 33.0 and 33.3 to 38.2, 42.2 and 35.8 with AVX-512. */
INLINE floats floats_of_nibbles(const void *p) { return from_unsigned(nibbles(p)); }
/* The first sixteen of both; the last sixteen of both. */
INLINE floats first_halves(floats x, floats y) {
    memcpy(x.at + 16, y.at, sizeof x.at / 2);
    return x;
}
INLINE floats second_halves(floats x, floats y) {
    memcpy(y.at, x.at + 16, sizeof x.at / 2);
    return y;
}
/* values[code] * d, for codes below 16; below 8 where `few`, a constant, says so. Then code and code + 8 mean the same.
 */
INLINE floats scaled_codes(const int8_t *values, bytes codes, floats d, int few) {
    (void)few;
    return multiply(from_signed(lookup(values, codes)), d);
}
INLINE floats load_signed(const void *p) { return from_signed(load_bytes(p)); }
INLINE floats load_halves(const void *p) {
    uint16_t h[32];
    floats r;
    memcpy(h, p, sizeof h);
    EACH r.at[i] = half_to_float(h[i]);
    return r;
}
INLINE floats load_bfloats(const void *p) {
    uint16_t h[32];
    floats r;
    memcpy(h, p, sizeof h);
    EACH r.at[i] = bits_float((uint32_t)h[i] << 16);
    return r;
}
INLINE floats canonical_nans(floats v) {
    EACH v.at[i] = canonical(v.at[i]);
    return v;
}

/* ---- sums of products ---- */

/* Running sums, over so many lanes as leave room for those of four rows at once. */
typedef floats sums;

INLINE sums no_sums(void) { return every(0); }
/* Thirty-two products with x, which needs no alignment, added each to the sum of its lane. */
INLINE sums accumulate(sums s, floats v, const float *x) {
    EACH s.at[i] += v.at[i] * x[i];
    return s;
}
/* Adds the sums of all lanes to eight totals. */
INLINE void add_to_totals(double *total, sums s) { EACH total[i % 8] += (double)s.at[i]; }

/* ---- 16-bit values, nearest, ties to even ---- */

INLINE void store_halves(uint16_t *p, floats v, int past_cache) {
    (void)past_cache;
    EACH p[i] = float_to_half(v.at[i]);
}

/* NaNs must be canonical. `finite`, a constant, promises that v has none, nor infinities, and that its numbers are zero
 * or between 2^-100 and 2^100 in size; enum { FINITE_IS_FASTER } says whether the lanes round such v another way. */
enum { FINITE_IS_FASTER = 0 };
INLINE void store_bfloats(uint16_t *p, floats v, int finite, int past_cache) {
    (void)finite, (void)past_cache;
    EACH p[i] = float_to_bf16(v.at[i]);
}

/* A table of v's first sixteen; NaNs must be canonical for bfloats. */
INLINE words words_of_halves(floats v) {
    words r;
    EACH16 r.at[i] = float_to_half(v.at[i]);
    return r;
}
INLINE words words_of_bfloats(floats v, int finite) {
    (void)finite;
    words r;
    EACH16 r.at[i] = float_to_bf16(v.at[i]);
    return r;
}
/* table[code], for codes below 16. */
INLINE void store_words(uint16_t *p, words table, bytes codes, int past_cache) {
    (void)past_cache;
    EACH p[i] = table.at[codes.at[i]];
}

INLINE void copy_line_past_cache(void *line, const void *p) { memcpy(line, p, 64); }
INLINE void stream_fence(void) {}

#undef EACH
#undef EACH16
#undef EACH8

#include "in_order.h"

#include "codes_scalar.h"

#endif
