/* The words over codes times codes in plain C: what each means. */
#ifndef GGUFX_LANES_CODES_SCALAR_H
#define GGUFX_LANES_CODES_SCALAR_H

#include "../codes.h"

/* Of the first sixteen codes, and of the others. */
typedef struct {
    float at[2];
} scales;

INLINE scales every_scale(float d) { return (scales){{d, d}}; }
INLINE scales pair_of_scales(float d, float e) { return (scales){{d, e}}; }
/* Those of floats that are equal over each sixteen. */
INLINE scales eight_scales(floats d) { return (scales){{d.at[0], d.at[16]}}; }

typedef struct {
    float at[2];
} code_sums;

enum { CODE_CHAINS = 1 }; /* how many sums take turns, so that additions needn't wait for one another */

INLINE code_sums no_code_sums(void) { return (code_sums){{0, 0}}; }

/* The products of signed codes with x, times d, added to the sums. */
INLINE code_sums add_signed_codes(code_sums s, bytes q, scales d, const ggufx_codes *x) {
    for (int half = 0; half < 2; half++) {
        int products = 0;
        for (int i = 16 * half; i < 16 * half + 16; i++) products += (int8_t)q.at[i] * x->q[i];
        s.at[half] += (float)products * (d.at[half] * x->scale);
    }
    return s;
}
/* The same for values[code]. */
INLINE code_sums add_levels(code_sums s, const int8_t *values, bytes codes, scales d, const ggufx_codes *x) {
    return add_signed_codes(s, lookup(values, codes), d, x);
}
/* The products of unsigned codes below 128 times d, and m times the sum of x. */
INLINE code_sums add_affine_codes(code_sums s, bytes q, scales d, scales m, const ggufx_codes *x) {
    s = add_signed_codes(s, q, d, x);
    for (int i = 0; i < 8; i++) s.at[i / 4] += m.at[i / 4] * x->sums[i];
    return s;
}
INLINE void add_code_sums_to_totals(double *total, code_sums s) { total[0] += s.at[0], total[4] += s.at[1]; }

/* The bits of the largest magnitude of 32 floats, a NaN above all. */
INLINE uint32_t largest_magnitude(const float *x) {
    uint32_t most = 0, bits[32];
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; i++)
        if (most < (bits[i] & 0x7FFFFFFF)) most = bits[i] & 0x7FFFFFFF;
    return most;
}
/* x * inverse, rounded to the nearest integer, as codes under a scale. */
INLINE void store_codes(ggufx_codes *out, const float *x, float inverse, float scale) {
    for (int i = 0; i < 32; i++) {
        const float up = x[i] * inverse + 12582912.0f; /* 1.5 * 2^23: there floats are the integers */
        out->q[i] = (int8_t)(up - 12582912.0f);
    }
    for (int i = 0; i < 8; i++) {
        const int sum = out->q[4 * i] + out->q[4 * i + 1] + out->q[4 * i + 2] + out->q[4 * i + 3];
        out->less[i] = -128 * sum;
        out->sums[i] = (float)sum * scale;
    }
    out->scale = scale;
}

#endif
