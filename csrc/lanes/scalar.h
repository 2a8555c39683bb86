/* The lane words in plain C: what the other lanes are held against, and what every other CPU runs. */
#ifndef GGUFX_LANES_SCALAR_H
#define GGUFX_LANES_SCALAR_H

#include <stdint.h>
#include <string.h>

#include "../half.h"

typedef struct {
    uint8_t at[16];
} bytes;
typedef struct {
    float at[16];
} floats;

#define EACH for (int i = 0; i < 16; i++)

/* ---- bytes ---- */

static inline bytes load_bytes(const void *p) {
    bytes r;
    memcpy(r.at, p, 16);
    return r;
}
static inline bytes every_byte(int v) {
    bytes r;
    memset(r.at, v, 16);
    return r;
}

/* (each byte >> shift) & mask; a negative shift goes left. */
static inline bytes field(bytes v, int shift, int mask) {
    EACH v.at[i] = (uint8_t)((shift < 0 ? v.at[i] << -shift : v.at[i] >> shift) & mask);
    return v;
}
static inline bytes either(bytes a, bytes b) {
    EACH a.at[i] |= b.at[i];
    return a;
}
static inline bytes plus(bytes a, bytes b) {
    EACH a.at[i] = (uint8_t)(a.at[i] + b.at[i]);
    return a;
}
static inline bytes minus(bytes a, int k) {
    EACH a.at[i] = (uint8_t)(a.at[i] - k);
    return a;
}
static inline bytes complement(bytes a) {
    EACH a.at[i] = (uint8_t)~a.at[i];
    return a;
}
/* 0xFF where the signed byte is greater than k. */
static inline bytes greater(bytes v, int k) {
    EACH v.at[i] = (int8_t)v.at[i] > k ? 0xFF : 0;
    return v;
}
/* table[index] for indices below 16. */
static inline bytes lookup(const void *table, bytes index) {
    const uint8_t *t = table;
    EACH index.at[i] = t[index.at[i]];
    return index;
}

/* Two groups of eight bytes, four groups of four. */
static inline bytes join8(const void *a, const void *b) {
    bytes r;
    memcpy(r.at, a, 8), memcpy(r.at + 8, b, 8);
    return r;
}
static inline bytes join4(const void *a, const void *b, const void *c, const void *d) {
    bytes r;
    memcpy(r.at, a, 4), memcpy(r.at + 4, b, 4), memcpy(r.at + 8, c, 4), memcpy(r.at + 12, d, 4);
    return r;
}
/* Sixteen bytes from two numbers, lowest byte first. */
static inline bytes from_words(uint64_t lo, uint64_t hi) {
    bytes r;
    for (int i = 0; i < 8; i++) r.at[i] = (uint8_t)(lo >> 8 * i), r.at[8 + i] = (uint8_t)(hi >> 8 * i);
    return r;
}
/* The low nibbles of eight bytes, then their high nibbles. */
static inline bytes nibbles8(const void *p) {
    const uint8_t *v = p;
    bytes r;
    for (int i = 0; i < 8; i++) r.at[i] = v[i] & 15, r.at[8 + i] = v[i] >> 4;
    return r;
}

/* Byte i is `value` where bit i is set, else 0. */
static inline bytes bits_as(unsigned bits, int value) {
    bytes r;
    EACH r.at[i] = bits >> i & 1 ? (uint8_t)value : 0;
    return r;
}
static inline bytes negate_where(bytes v, unsigned bits) {
    EACH v.at[i] = (uint8_t)(bits >> i & 1 ? -v.at[i] : v.at[i]);
    return v;
}

/* ---- floats ---- */

static inline float half(uint16_t h) { return half_to_float(h); }

static inline floats every(float x) {
    floats r;
    EACH r.at[i] = x;
    return r;
}
/* x in the first eight lanes, y in the other eight. */
static inline floats pair(float x, float y) {
    floats r;
    EACH r.at[i] = i < 8 ? x : y;
    return r;
}
static inline floats load_floats(const float *p) {
    floats r;
    memcpy(r.at, p, sizeof r);
    return r;
}
static inline void put(float *p, floats v) { memcpy(p, v.at, sizeof v); }

static inline floats add(floats a, floats b) {
    EACH a.at[i] += b.at[i];
    return a;
}
static inline floats subtract(floats a, floats b) {
    EACH a.at[i] -= b.at[i];
    return a;
}
static inline floats multiply(floats a, floats b) {
    EACH a.at[i] *= b.at[i];
    return a;
}

static inline floats from_unsigned(bytes v) {
    floats r;
    EACH r.at[i] = v.at[i];
    return r;
}
static inline floats from_signed(bytes v) {
    floats r;
    EACH r.at[i] = (int8_t)v.at[i];
    return r;
}
/* Sixteen 2-bit fields, lowest bits first. */
static inline floats from_crumbs(uint32_t bits) {
    floats r;
    EACH r.at[i] = (float)(bits >> 2 * i & 3);
    return r;
}
/* d where the bit is set, -d where it isn't. */
static inline floats plus_or_minus(unsigned bits, float d) {
    floats r;
    EACH r.at[i] = bits >> i & 1 ? d : -d;
    return r;
}
static inline floats load_halves(const void *p) {
    uint16_t h[16];
    floats r;
    memcpy(h, p, sizeof h);
    EACH r.at[i] = half_to_float(h[i]);
    return r;
}
static inline floats load_bfloats(const void *p) {
    uint16_t h[16];
    floats r;
    memcpy(h, p, sizeof h);
    EACH r.at[i] = bits_float((uint32_t)h[i] << 16);
    return r;
}

/* ---- sixteen floats to sixteen halves ---- */

static inline void put_halves(uint16_t *p, floats v) { EACH p[i] = float_to_half(v.at[i]); }
static inline void put_bfloats(uint16_t *p, floats v) { EACH p[i] = float_to_bf16(v.at[i]); }

/* One 64-byte line of output; plain C has no way past the cache. */
static inline void stream_line_f32(void *line, const float *p) { memcpy(line, p, 64); }
static inline void stream_line_f16(void *line, const float *p) {
    put_halves(line, load_floats(p));
    put_halves((uint16_t *)line + 16, load_floats(p + 16));
}
static inline void stream_line_bf16(void *line, const float *p) {
    put_bfloats(line, load_floats(p));
    put_bfloats((uint16_t *)line + 16, load_floats(p + 16));
}
static inline void stream_fence(void) {}

#undef EACH

#endif
