/* Words over codes times codes in NEON. Where the including file defines GGUFX_DOTPROD, one instruction makes the
 * products. */
#ifndef GGUFX_LANES_CODES_NEON_H
#define GGUFX_LANES_CODES_NEON_H

#include "../codes.h"

/* Four of the first sixteen codes, four of the others. */
typedef struct {
    float32x4_t at[2];
} scales;

INLINE scales every_scale(float d) { return (scales){{vdupq_n_f32(d), vdupq_n_f32(d)}}; }
INLINE scales pair_of_scales(float d, float e) { return (scales){{vdupq_n_f32(d), vdupq_n_f32(e)}}; }
INLINE scales eight_scales(floats d) { return (scales){{d.at[0], d.at[4]}}; }

typedef struct {
    float32x4_t at[2];
} code_sums;

INLINE code_sums no_code_sums(void) { return (code_sums){{vdupq_n_f32(0), vdupq_n_f32(0)}}; }

enum { CODE_CHAINS = 1 };

/* Four sums of products of sixteen codes. A pair of products fits 16 bits: at most 2 * 128 * 127. */
INLINE int32x4_t sixteen_products(int8x16_t q, int8x16_t x) {
#ifdef GGUFX_DOTPROD
    return vdotq_s32(vdupq_n_s32(0), q, x);
#else
    return vpaddlq_s16(vmlal_high_s8(vmull_s8(vget_low_s8(q), vget_low_s8(x)), q, x));
#endif
}
INLINE code_sums add_signed_codes(code_sums s, bytes q, scales d, const ggufx_codes *x) {
    UNROLL(2) for (int i = 0; i < 2; i++) {
        const int32x4_t products = sixteen_products(vreinterpretq_s8_u8(q.val[i]), vld1q_s8(x->q + 16 * i));
        s.at[i] = vfmaq_f32(s.at[i], vcvtq_f32_s32(products), vmulq_n_f32(d.at[i], x->scale));
    }
    return s;
}
INLINE code_sums add_levels(code_sums s, const int8_t *values, bytes codes, scales d, const ggufx_codes *x) {
    return add_signed_codes(s, lookup(values, codes), d, x);
}
INLINE code_sums add_affine_codes(code_sums s, bytes q, scales d, scales m, const ggufx_codes *x) {
    s = add_signed_codes(s, q, d, x);
    UNROLL(2) for (int i = 0; i < 2; i++) s.at[i] = vfmaq_f32(s.at[i], m.at[i], vld1q_f32(x->sums + 4 * i));
    return s;
}
INLINE void add_code_sums_to_totals(double *total, code_sums s) {
    UNROLL(2) for (int i = 0; i < 2; i++) {
        double *const t = total + 4 * i;
        vst1q_f64(t, vaddq_f64(vld1q_f64(t), vcvt_f64_f32(vget_low_f32(s.at[i]))));
        vst1q_f64(t + 2, vaddq_f64(vld1q_f64(t + 2), vcvt_high_f64_f32(s.at[i])));
    }
}

/* ---- x as codes ---- */

INLINE uint32_t largest_magnitude(const float *x) {
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4)
        most = vmaxq_u32(most, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(0x7FFFFFFF)));
    return vmaxvq_u32(most);
}
INLINE int16x4_t four_codes(const float *x, float inverse) {
    return vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse)));
}
INLINE void store_codes(ggufx_codes *out, const float *x, float inverse, float scale) {
    for (int i = 0; i < 32; i += 8) {
        const int16x8_t eight = vcombine_s16(four_codes(x + i, inverse), four_codes(x + i + 4, inverse));
        const int32x4_t twos = vpaddlq_s16(eight), fours = vpaddq_s32(twos, twos);
        vst1_s8(out->q + i, vqmovn_s16(eight));
        vst1_s32(out->less + i / 4, vmul_n_s32(vget_low_s32(fours), -128));
        vst1_f32(out->sums + i / 4, vmul_n_f32(vcvt_f32_s32(vget_low_s32(fours)), scale));
    }
    out->scale = scale;
}

#endif
