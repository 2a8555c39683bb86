/* What several encoders compute, in the words of whichever lanes came before, block by block in ggml's order. */
#ifndef GGUFX_ENCODERS_ARITHMETIC_H
#define GGUFX_ENCODERS_ARITHMETIC_H

#include "../compiler.h"

#define TINY 1e-15f /* below this a group counts as zero; GROUP_MAX_EPS in ggml */

/* What an encoder works on: columns of LANES blocks. */
typedef struct {
    const wide *x;  /* the values */
    const wide *qw; /* their importance, or NULL */
    wide row_mean;  /* mean square of the row, where the encoder weighs by it */
    const struct ggufx_lattice *lattice;
} columns;

INLINE mask more(wide a, wide b) { return less(b, a); }
INLINE wide within(wide v, float low, float high) { return larger(every(low), smaller(every(high), v)); }
INLINE wide zero_where(mask m, wide v) { return choose(m, every(0), v); }
INLINE wide inverse(wide d) { return zero_where(same(d, every(0)), divide(every(1), d)); }
INLINE wide weight(wide x, wide qw, wide sigma2) { return multiply(qw, root(add(sigma2, multiply(x, x)))); }

/* ---- rounding ---- */

/* Nearest integer as ggml's nearest_int has it: the low 23 bits of the sum with 1.5 * 2^23, less 2^22. Setting the
 * exponent keeps those bits, and with them ggml's results where the sum overflows. */
INLINE wide nearest(wide v) {
    const wide_int sum = as_int(add(v, every(12582912.0f)));
    return subtract(as_float(int_and_or(sum, every_int(0x7FFFFF), every_int(0x4B000000))), every(12582912.0f));
}

/* roundf then a conversion: adding the largest float below 1/2 before truncating rounds halves away from zero. */
INLINE wide_int round_away(wide v) {
    const wide_int sign = int_and(as_int(v), every_int(INT32_MIN));
    return to_int(add(v, as_float(int_or(sign, every_int(0x3EFFFFFF)))));
}

INLINE wide_int signed_byte(wide_int v) {
    return int_subtract(int_xor(int_and(v, every_int(255)), every_int(128)), every_int(128));
}

/* ---- over the values of a group ---- */

INLINE wide sum_of_squares(const wide *x, int n) {
    wide sum = every(0);
    UNROLL(4)
    for (int i = 0; i < n; i++) sum = add(sum, multiply(x[i], x[i]));
    return sum;
}

/* Largest magnitude, and the first value that has it. */
typedef struct {
    wide size, value;
} peak;

INLINE peak first_peak(const wide *x, int n) {
    peak p = {every(0), every(0)};
    UNROLL(4)
    for (int i = 0; i < n; i++) {
        const wide a = magnitude(x[i]);
        p.value = choose(more(a, p.size), x[i], p.value);
        p.size = larger(a, p.size);
    }
    return p;
}

INLINE wide highest_positive(const wide *x, int n) {
    wide high = every(0);
    for (int i = 0; i < n; i++) high = larger(x[i], high);
    return high;
}

INLINE wide largest(const wide *x, int n) {
    wide top = every(0);
    UNROLL(4)
    for (int i = 0; i < n; i++) top = larger(magnitude(x[i]), top);
    return top;
}

#endif
