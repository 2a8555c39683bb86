/* The encoders' words, one block at a time, in plain C: what the other lanes are held against.
 *
 * An encoder handles LANES blocks side by side, one to a lane; a `floats` holds one value of each block. No word adds
 * across lanes, so every block sees ggml's operations in ggml's order. */
#ifndef GGUFX_LANES_WIDE_SCALAR_H
#define GGUFX_LANES_WIDE_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../half.h"

enum { LANES = 1 };
typedef float floats;
typedef int32_t ints;
typedef int mask; /* 1 or 0 */

static inline floats every(float v) { return v; }
static inline floats load_floats(const float *p) { return *p; }
static inline void store_floats(float *p, floats v) { *p = v; }
static inline floats add(floats a, floats b) { return a + b; }
static inline floats subtract(floats a, floats b) { return a - b; }
static inline floats multiply(floats a, floats b) { return a * b; }
static inline floats divide(floats a, floats b) { return a / b; }
static inline floats root(floats a) { return sqrtf(a); }
/* The second operand where they are equal or one is NaN, as x86's instructions have it. */
static inline floats larger(floats a, floats b) { return a > b ? a : b; }
static inline floats smaller(floats a, floats b) { return a < b ? a : b; }
static inline floats magnitude(floats a) { return fabsf(a); }
static inline floats negate(floats a) { return -a; }

static inline mask less(floats a, floats b) { return a < b; }
static inline mask at_least(floats a, floats b) { return a >= b; }
static inline mask same(floats a, floats b) { return a == b; }
static inline mask differs(floats a, floats b) { return a != b; } /* true for NaN */
static inline mask both(mask a, mask b) { return a & b; }
static inline mask either(mask a, mask b) { return a | b; }
static inline mask not_(mask a) { return !a; }
static inline mask every_mask(int yes) { return yes; }
static inline int any(mask m) { return m; }
static inline unsigned mask_bits(mask m) { return (unsigned)m; } /* bit k for lane k */
static inline floats choose(mask m, floats a, floats b) { return m ? a : b; }
static inline ints choose_int(mask m, ints a, ints b) { return m ? a : b; }

static inline ints every_int(int v) { return v; }
static inline ints lane_number(void) { return 0; }
static inline void store_ints(void *p, ints v) { memcpy(p, &v, sizeof v); }
static inline ints load_ints(const void *p) {
    ints v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline ints load_u16(const uint16_t *p) { return *p; }
static inline ints int_add(ints a, ints b) { return (ints)((uint32_t)a + (uint32_t)b); }
static inline ints int_subtract(ints a, ints b) { return (ints)((uint32_t)a - (uint32_t)b); }
static inline ints int_multiply(ints a, ints b) { return (ints)((uint32_t)a * (uint32_t)b); }
static inline ints int_and(ints a, ints b) { return a & b; }
static inline ints int_or(ints a, ints b) { return a | b; }
static inline ints int_xor(ints a, ints b) { return a ^ b; }
static inline ints int_smaller(ints a, ints b) { return a < b ? a : b; }
static inline ints int_larger(ints a, ints b) { return a > b ? a : b; }
static inline mask int_less(ints a, ints b) { return a < b; }
static inline mask int_same(ints a, ints b) { return a == b; }
static inline ints shift_left(ints v, int n) { return (ints)((uint32_t)v << n); }
static inline ints shift_right(ints v, int n) { return (ints)((uint32_t)v >> n); }
/* Each lane by its own count; nothing is left of a lane whose count isn't in 0 to 31. */
static inline ints shift_each(ints v, ints n) { return (uint32_t)n < 32 ? (ints)((uint32_t)v << n) : 0; }

/* Truncates; what int32 can't hold, NaN included, becomes the smallest int32, as on x86. */
static inline ints to_int(floats v) { return fabsf(v) < 2147483648.0f ? (ints)v : INT32_MIN; }
static inline floats to_float(ints v) { return (floats)v; }
static inline ints as_ints(floats v) { return (ints)float_bits(v); }
static inline floats as_floats(ints v) { return bits_float((uint32_t)v); }
/* Nearest integer as ggml's nearest_int has it: the low 23 bits of the sum with 1.5 * 2^23, less 2^22. Setting the
 * exponent keeps those bits, and with them ggml's results where the sum overflows. */
static inline floats nearest(floats v) {
    const uint32_t sum = float_bits(v + 12582912.0f);
    return bits_float((sum & 0x7FFFFF) | 0x4B000000) - 12582912.0f;
}
/* Half-precision numbers, in the low 16 bits of a lane. */
static inline ints half_of(floats v) { return float_to_half(v); }
static inline floats half_value(ints h) { return half_to_float((uint16_t)h); }

static inline ints gather(const int32_t *table, ints at) { return table[at]; }
static inline floats table16(const float *table, ints at) { return table[at & 15]; }

/* The lattice search turns a block's own costs into a small table, and looks LANES candidates up at once. */
typedef const float *row;
static inline row row4(const float *p) { return p; }
static inline row row8(const float *p) { return p; }
static inline floats from_row4(row r, ints at) { return r[at & 3]; }
static inline floats from_row8(row r, ints at) { return r[at & 7]; }
/* Across lanes: the least of all, in every lane; the least of those in the mask, which isn't empty. */
static inline floats least_of(floats v) { return v; }
static inline int least_int_where(mask m, ints v) {
    (void)m;
    return v;
}
/* p[lane * stride] onwards: the lane's a, b, c, d. */
static inline void store_rows4(float *p, size_t stride, floats a, floats b, floats c, floats d) {
    (void)stride;
    p[0] = a, p[1] = b, p[2] = c, p[3] = d;
}

/* Four words, the first lowest, at an offset of each lane's block. */
static inline void put_rows(uint8_t *const *block, size_t at, ints a, ints b, ints c, ints d) {
    const ints word[4] = {a, b, c, d};
    memcpy(block[0] + at, word, sizeof word);
}

/* x[i] holds from[lane][i] of all lanes; n is a multiple of 16. */
static inline void load_columns(floats *x, const float *const *from, int n) {
    memcpy(x, from[0], (size_t)n * sizeof *x);
}

static inline int all_finite(const float *x, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (float_bits(x[i]) & 0x7F800000) == 0x7F800000;
    return !bad;
}

#endif
