/* The encoders' words, one block at a time, in plain C: what the other lanes are held against.
 *
 * An encoder handles LANES blocks side by side, one to a lane; a `wide` holds one float of each block, a `wide_int` one
 * integer. No word adds across lanes, so every block sees ggml's operations in ggml's order. */
#ifndef GGUFX_LANES_ENCODE_SCALAR_H
#define GGUFX_LANES_ENCODE_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../half.h"

enum { LANES = 1 };
typedef float wide;
typedef int32_t wide_int;
typedef int mask; /* 1 or 0 */

static inline wide every(float v) { return v; }
static inline wide load_lanes(const float *p) { return *p; }
static inline void store_lanes(float *p, wide v) { *p = v; }
static inline wide add(wide a, wide b) { return a + b; }
static inline wide subtract(wide a, wide b) { return a - b; }
static inline wide multiply(wide a, wide b) { return a * b; }
static inline wide divide(wide a, wide b) { return a / b; }
static inline wide root(wide a) { return sqrtf(a); }
/* The second operand where they are equal or one is NaN, as x86's instructions have it. */
static inline wide larger(wide a, wide b) { return a > b ? a : b; }
static inline wide smaller(wide a, wide b) { return a < b ? a : b; }
static inline wide magnitude(wide a) { return fabsf(a); }
static inline wide negate(wide a) { return -a; }

static inline mask less(wide a, wide b) { return a < b; }
static inline mask at_least(wide a, wide b) { return a >= b; }
static inline mask same(wide a, wide b) { return a == b; }
static inline mask differs(wide a, wide b) { return a != b; } /* true for NaN */
static inline mask mask_and(mask a, mask b) { return a & b; }
static inline mask mask_or(mask a, mask b) { return a | b; }
static inline mask mask_not(mask a) { return !a; }
static inline mask every_mask(int yes) { return yes; }
static inline int any(mask m) { return m; }
static inline unsigned mask_bits(mask m) { return (unsigned)m; } /* bit k for lane k */
static inline wide choose(mask m, wide a, wide b) { return m ? a : b; }
static inline wide_int choose_int(mask m, wide_int a, wide_int b) { return m ? a : b; }

static inline wide_int every_int(int v) { return v; }
static inline wide_int lane_number(void) { return 0; }
static inline void store_int_lanes(void *p, wide_int v) { memcpy(p, &v, sizeof v); }
static inline wide_int load_int_lanes(const void *p) {
    wide_int v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline wide_int load_u16(const uint16_t *p) { return *p; }
static inline wide_int int_add(wide_int a, wide_int b) { return (wide_int)((uint32_t)a + (uint32_t)b); }
static inline wide_int int_subtract(wide_int a, wide_int b) { return (wide_int)((uint32_t)a - (uint32_t)b); }
static inline wide_int int_multiply(wide_int a, wide_int b) { return (wide_int)((uint32_t)a * (uint32_t)b); }
static inline wide_int int_and(wide_int a, wide_int b) { return a & b; }
static inline wide_int int_or(wide_int a, wide_int b) { return a | b; }
/* (a & b) | c */
static inline wide_int int_and_or(wide_int a, wide_int b, wide_int c) { return int_or(int_and(a, b), c); }
static inline wide_int int_xor(wide_int a, wide_int b) { return a ^ b; }
static inline wide_int int_smaller(wide_int a, wide_int b) { return a < b ? a : b; }
static inline wide_int int_larger(wide_int a, wide_int b) { return a > b ? a : b; }
static inline mask int_less(wide_int a, wide_int b) { return a < b; }
static inline mask int_same(wide_int a, wide_int b) { return a == b; }
static inline wide_int shift_left(wide_int v, int n) { return (wide_int)((uint32_t)v << n); }
static inline wide_int shift_right(wide_int v, int n) { return (wide_int)((uint32_t)v >> n); }
/* Each lane by its own count; nothing is left of a lane whose count isn't in 0 to 31. */
static inline wide_int shift_each(wide_int v, wide_int n) {
    return (uint32_t)n < 32 ? (wide_int)((uint32_t)v << n) : 0;
}

/* Truncates; what int32 can't hold, NaN included, becomes the smallest int32, as on x86. */
static inline wide_int to_int(wide v) { return fabsf(v) < 2147483648.0f ? (wide_int)v : INT32_MIN; }
static inline wide to_float(wide_int v) { return (wide)v; }
static inline wide_int as_int(wide v) { return (wide_int)float_bits(v); }
static inline wide as_float(wide_int v) { return bits_float((uint32_t)v); }
/* Half-precision numbers, in the low 16 bits of a lane. */
static inline wide_int half_of(wide v) { return float_to_half(v); }
static inline wide half_value(wide_int h) { return half_to_float((uint16_t)h); }

static inline wide_int gather(const int32_t *table, wide_int at) { return table[at]; }
static inline wide table16(const float *table, wide_int at) { return table[at & 15]; }

/* The lattice search turns a block's own costs into a small table, and looks LANES candidates up at once. */
typedef const float *row;
static inline row row4(const float *p) { return p; }
static inline row row8(const float *p) { return p; }
static inline wide from_row4(row r, wide_int at) { return r[at & 3]; }
static inline wide from_row8(row r, wide_int at) { return r[at & 7]; }
/* Across lanes: the least of all, in every lane; the least of those in the mask, which isn't empty. */
static inline wide least_of(wide v) { return v; }
static inline int least_int_where(mask m, wide_int v) {
    (void)m;
    return v;
}
/* p[lane * stride] onwards: the lane's a, b, c, d. */
static inline void store_rows4(float *p, size_t stride, wide a, wide b, wide c, wide d) {
    (void)stride;
    p[0] = a, p[1] = b, p[2] = c, p[3] = d;
}

/* Four words, the first lowest, at an offset of each lane's block. */
static inline void pack_rows(uint8_t *const *block, size_t at, wide_int a, wide_int b, wide_int c, wide_int d) {
    const wide_int word[4] = {a, b, c, d};
    memcpy(block[0] + at, word, sizeof word);
}

/* x[i] holds from[lane][i] of all lanes; n is a multiple of 16. */
static inline void load_columns(wide *x, const float *const *from, int n) { memcpy(x, from[0], (size_t)n * sizeof *x); }

static inline int all_finite(const float *x, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (float_bits(x[i]) & 0x7F800000) == 0x7F800000;
    return !bad;
}

#endif
