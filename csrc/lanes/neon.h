/* The lane words in NEON (aarch64): 32 bytes are two registers, 32 floats eight. */
#ifndef GGUFX_LANES_NEON_H
#define GGUFX_LANES_NEON_H

#include <arm_neon.h>

#include "nan.h"

typedef uint8x16x2_t bytes;
typedef uint8x16_t sixteen;
typedef struct {
    float32x4_t at[8];
} floats;

/* Sixteen 16-bit values as two byte tables, one of low and one of high bytes. */
typedef uint8x16x2_t words;

#define BOTH UNROLL(2) for (int i = 0; i < 2; i++)
#define EIGHT UNROLL(8) for (int i = 0; i < 8; i++)

/* ---- thirty-two bytes ---- */

INLINE bytes load_bytes(const void *p) { return (bytes){{vld1q_u8(p), vld1q_u8((const uint8_t *)p + 16)}}; }
INLINE bytes every_byte(int v) { return (bytes){{vdupq_n_u8((uint8_t)v), vdupq_n_u8((uint8_t)v)}}; }
INLINE bytes pair_of_bytes(int v, int w) { return (bytes){{vdupq_n_u8((uint8_t)v), vdupq_n_u8((uint8_t)w)}}; }

INLINE bytes field(bytes v, int shift, int mask) {
    BOTH v.val[i] = vandq_u8(vshlq_u8(v.val[i], vdupq_n_s8((int8_t)-shift)), vdupq_n_u8((uint8_t)mask));
    return v;
}
INLINE bytes either(bytes a, bytes b) {
    BOTH a.val[i] = vorrq_u8(a.val[i], b.val[i]);
    return a;
}
INLINE bytes plus(bytes a, bytes b) {
    BOTH a.val[i] = vaddq_u8(a.val[i], b.val[i]);
    return a;
}
INLINE bytes minus(bytes a, int k) {
    BOTH a.val[i] = vsubq_u8(a.val[i], vdupq_n_u8((uint8_t)k));
    return a;
}
INLINE bytes greater(bytes v, int k) {
    BOTH v.val[i] = vcgtq_s8(vreinterpretq_s8_u8(v.val[i]), vdupq_n_s8((int8_t)k));
    return v;
}
INLINE bytes lookup(const int8_t *table, bytes index) {
    const uint8x16_t t = vld1q_u8((const uint8_t *)table);
    BOTH index.val[i] = vqtbl1q_u8(t, index.val[i]);
    return index;
}

INLINE uint8x16_t of_two_bytes(unsigned two) {
    return vcombine_u8(vdup_n_u8((uint8_t)two), vdup_n_u8((uint8_t)(two >> 8)));
}
INLINE bytes add_where(bytes v, uint32_t bits, int value) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t b = vld1q_u8(bit), x = vdupq_n_u8((uint8_t)value);
    BOTH v.val[i] = vaddq_u8(v.val[i], vandq_u8(vtstq_u8(of_two_bytes(bits >> 16 * i), b), x));
    return v;
}

INLINE bytes nibbles(const void *p) {
    const uint8x16_t v = vld1q_u8(p);
    return (bytes){{vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8(v, 4)}};
}
INLINE bytes nibbles_by_eight(const void *p) {
    const bytes n = nibbles(p);
    return (bytes){{vcombine_u8(vget_low_u8(n.val[0]), vget_low_u8(n.val[1])),
                    vcombine_u8(vget_high_u8(n.val[0]), vget_high_u8(n.val[1]))}};
}
INLINE bytes crumbs(const void *p) {
    static const uint8_t each_four_times[32] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
                                                4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7};
    static const int8_t down[16] = {0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6};
    const uint8x16_t v = vcombine_u8(vld1_u8(p), vdup_n_u8(0)), three = vdupq_n_u8(3);
    bytes r;
    BOTH r.val[i] = vandq_u8(vshlq_u8(vqtbl1q_u8(v, vld1q_u8(each_four_times + 16 * i)), vld1q_s8(down)), three);
    return r;
}
INLINE bytes eight_of_each(const void *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (bytes){{of_two_bytes(four), of_two_bytes(four >> 16)}};
}
INLINE bytes join8(const void *a, const void *b, const void *c, const void *d) {
    return (bytes){{vcombine_u8(vld1_u8(a), vld1_u8(b)), vcombine_u8(vld1_u8(c), vld1_u8(d))}};
}
INLINE bytes join16(sixteen a, sixteen b) { return (bytes){{a, b}}; }
INLINE uint8x16_t four_fours(const void *a, const void *b, const void *c, const void *d) {
    uint32_t w[4];
    memcpy(w, a, 4), memcpy(w + 1, b, 4), memcpy(w + 2, c, 4), memcpy(w + 3, d, 4);
    const uint64x1_t lo = vcreate_u64(w[0] | (uint64_t)w[1] << 32), hi = vcreate_u64(w[2] | (uint64_t)w[3] << 32);
    return vreinterpretq_u8_u64(vcombine_u64(lo, hi));
}
INLINE bytes join4(const void *a, const void *b, const void *c, const void *d, const void *e, const void *f,
                   const void *g, const void *h) {
    return (bytes){{four_fours(a, b, c, d), four_fours(e, f, g, h)}};
}

/* ---- sixteen bytes ---- */

INLINE sixteen load_sixteen(const void *p) { return vld1q_u8(p); }
INLINE sixteen every_one(void) { return vdupq_n_u8(1); }
INLINE sixteen thrice_of_sixteen(sixteen v) { return vaddq_u8(vaddq_u8(v, v), v); }
INLINE sixteen from_words(uint64_t lo, uint64_t hi) {
    return vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(lo), vcreate_u64(hi)));
}
INLINE sixteen nibbles8(const void *p) {
    const uint8x8_t v = vld1_u8(p);
    return vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4));
}
INLINE sixteen nibbles_in_order(const void *p) {
    const uint8x8_t v = vld1_u8(p);
    const uint8x8x2_t z = vzip_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4));
    return vcombine_u8(z.val[0], z.val[1]);
}
INLINE sixteen field_of_sixteen(sixteen v, int shift, int mask) {
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)-shift)), vdupq_n_u8((uint8_t)mask));
}
INLINE sixteen combine(sixteen a, sixteen b, int less) { return vsubq_u8(vorrq_u8(a, b), vdupq_n_u8((uint8_t)less)); }

INLINE void store_signed(float *out, sixteen v, float d) {
    const int16x8_t lo = vmovl_s8(vreinterpret_s8_u8(vget_low_u8(v))),
                    hi = vmovl_s8(vreinterpret_s8_u8(vget_high_u8(v)));
    vst1q_f32(out, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), d));
    vst1q_f32(out + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))), d));
    vst1q_f32(out + 8, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), d));
    vst1q_f32(out + 12, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi))), d));
}
INLINE void store_unsigned(float *out, sixteen v, float d, float e) {
    const uint16x8_t lo = vmovl_u8(vget_low_u8(v)), hi = vmovl_u8(vget_high_u8(v));
    vst1q_f32(out, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))), d));
    vst1q_f32(out + 4, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(lo))), d));
    vst1q_f32(out + 8, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))), e));
    vst1q_f32(out + 12, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(hi))), e));
}

/* ---- indices into the grids, stored for scalar loads ---- */

INLINE void store_bytes(uint8_t *p, sixteen v) { vst1q_u8(p, v); }
INLINE void store_wide(uint16_t *p, sixteen low, sixteen high) {
    vst1q_u16(p, vreinterpretq_u16_u8(vzip1q_u8(low, high)));
    vst1q_u16(p + 8, vreinterpretq_u16_u8(vzip2q_u8(low, high)));
}
INLINE uint64_t four_of_nine_bits(uint32_t low, unsigned high) {
    uint64_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint64_t)((low >> 8 * i & 255) | (high >> i & 1) << 8) << 16 * i;
    return r;
}

/* ---- thirty-two floats ---- */

INLINE void two_halves(uint32_t both, float *first, float *second) {
    const float32x4_t f = vcvt_f32_f16(vreinterpret_f16_u32(vdup_n_u32(both)));
    *first = vgetq_lane_f32(f, 0);
    *second = vgetq_lane_f32(f, 1);
}
INLINE float half(uint16_t h) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0); }

INLINE floats every(float x) {
    floats r;
    EIGHT r.at[i] = vdupq_n_f32(x);
    return r;
}
INLINE floats pair(float x, float y) {
    floats r;
    EIGHT r.at[i] = vdupq_n_f32(i < 4 ? x : y);
    return r;
}
INLINE floats eights(float x, float y) {
    floats r;
    EIGHT r.at[i] = vdupq_n_f32(i < 2 ? x : y);
    return r;
}
INLINE floats quads(const float *p) {
    floats r;
    EIGHT r.at[i] = vdupq_n_f32(p[i & 3]);
    return r;
}
INLINE floats load_floats(const void *p) {
    floats r;
    EIGHT r.at[i] = vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
    return r;
}
/* Compilers know no non-temporal store for NEON but in assembly, and pairs of plain stores already write whole lines:
 * past_cache changes nothing here. */
enum { STREAMS = 0 };
INLINE void store_floats(float *p, floats v, int past_cache) {
    (void)past_cache;
    EIGHT vst1q_f32(p + 4 * i, v.at[i]);
}

INLINE floats subtract(floats a, floats b) {
    EIGHT a.at[i] = vsubq_f32(a.at[i], b.at[i]);
    return a;
}
INLINE floats multiply(floats a, floats b) {
    EIGHT a.at[i] = vmulq_f32(a.at[i], b.at[i]);
    return a;
}
INLINE floats product_plus(floats x, floats y, floats z) {
    EIGHT z.at[i] = vfmaq_f32(z.at[i], x.at[i], y.at[i]);
    return z;
}
INLINE floats from_unsigned(bytes v) {
    floats r;
    BOTH {
        const uint16x8_t lo = vmovl_u8(vget_low_u8(v.val[i])), hi = vmovl_u8(vget_high_u8(v.val[i]));
        r.at[4 * i] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo)));
        r.at[4 * i + 1] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(lo)));
        r.at[4 * i + 2] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi)));
        r.at[4 * i + 3] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(hi)));
    }
    return r;
}
INLINE floats from_signed(bytes v) {
    floats r;
    BOTH {
        const int8x16_t s = vreinterpretq_s8_u8(v.val[i]);
        const int16x8_t lo = vmovl_s8(vget_low_s8(s)), hi = vmovl_s8(vget_high_s8(s));
        r.at[4 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
        r.at[4 * i + 1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo)));
        r.at[4 * i + 2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
        r.at[4 * i + 3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)));
    }
    return r;
}
INLINE floats floats_of_nibbles(const void *p) { return from_unsigned(nibbles(p)); }
INLINE floats first_halves(floats x, floats y) {
    floats r;
    EIGHT r.at[i] = i < 4 ? x.at[i] : y.at[i - 4];
    return r;
}
INLINE floats second_halves(floats x, floats y) {
    floats r;
    EIGHT r.at[i] = i < 4 ? x.at[i + 4] : y.at[i];
    return r;
}
INLINE floats scaled_codes(const int8_t *values, bytes codes, floats d, int few) {
    (void)few;
    return multiply(from_signed(lookup(values, codes)), d);
}
INLINE floats load_signed(const void *p) { return from_signed(load_bytes(p)); }
INLINE floats load_halves(const void *p) {
    floats r;
    EIGHT r.at[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p + 8 * i)));
    return r;
}
INLINE floats load_bfloats(const void *p) {
    floats r;
    EIGHT r.at[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * i)), 16));
    return r;
}
INLINE floats canonical_nans(floats v) {
    const float32x4_t nan = vreinterpretq_f32_u32(vdupq_n_u32(CANONICAL_NAN));
    EIGHT v.at[i] = vbslq_f32(vceqq_f32(v.at[i], v.at[i]), v.at[i], nan);
    return v;
}

/* ---- 16-bit values ---- */

INLINE uint16x8_t eight_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a), vcvt_f16_f32(b)));
}
INLINE uint16x4_t four_bfloats(float32x4_t v) {
    const uint32x4_t u = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vaddhn_u32(vaddq_u32(u, vdupq_n_u32(0x7FFF)), odd); /* the high half of the sum */
}
INLINE uint16x8_t eight_bfloats(float32x4_t a, float32x4_t b) { return vcombine_u16(four_bfloats(a), four_bfloats(b)); }

INLINE void store_halves(uint16_t *p, floats v, int past_cache) {
    (void)past_cache;
    for (int i = 0; i < 4; i++) vst1q_u16(p + 8 * i, eight_halves(v.at[2 * i], v.at[2 * i + 1]));
}
/* What lanes/avx2.h does would take two instructions more here to keep the sign of zeros. */
enum { FINITE_IS_FASTER = 0 };
INLINE void store_bfloats(uint16_t *p, floats v, int finite, int past_cache) {
    (void)finite, (void)past_cache;
    for (int i = 0; i < 4; i++) vst1q_u16(p + 8 * i, eight_bfloats(v.at[2 * i], v.at[2 * i + 1]));
}
INLINE words split_words(uint16x8_t a, uint16x8_t b) {
    return vuzpq_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}
INLINE words words_of_halves(floats v) {
    return split_words(eight_halves(v.at[0], v.at[1]), eight_halves(v.at[2], v.at[3]));
}
INLINE words words_of_bfloats(floats v, int finite) {
    (void)finite;
    return split_words(eight_bfloats(v.at[0], v.at[1]), eight_bfloats(v.at[2], v.at[3]));
}
INLINE void store_words(uint16_t *p, words table, bytes codes, int past_cache) {
    (void)past_cache;
    BOTH {
        const uint8x16_t low = vqtbl1q_u8(table.val[0], codes.val[i]), high = vqtbl1q_u8(table.val[1], codes.val[i]);
        vst1q_u16(p + 16 * i, vreinterpretq_u16_u8(vzip1q_u8(low, high)));
        vst1q_u16(p + 16 * i + 8, vreinterpretq_u16_u8(vzip2q_u8(low, high)));
    }
}

/* ---- sums of products ---- */

/* Four registers: four rows take sixteen of the thirty-two, and leave the rest to the decoding. */
typedef struct {
    float32x4_t at[4];
} sums;

INLINE sums no_sums(void) {
    sums s;
    UNROLL(4) for (int i = 0; i < 4; i++) s.at[i] = vdupq_n_f32(0);
    return s;
}
INLINE sums accumulate(sums s, floats v, const float *x) {
    EIGHT s.at[i & 3] = vfmaq_f32(s.at[i & 3], v.at[i], vld1q_f32(x + 4 * i));
    return s;
}
INLINE void add_to_totals(double *total, sums s) {
    BOTH {
        const float32x4_t both = vaddq_f32(s.at[i], s.at[i + 2]);
        double *const t = total + 4 * i;
        vst1q_f64(t, vaddq_f64(vld1q_f64(t), vcvt_f64_f32(vget_low_f32(both))));
        vst1q_f64(t + 2, vaddq_f64(vld1q_f64(t + 2), vcvt_high_f64_f32(both)));
    }
}

INLINE void copy_line_past_cache(void *line, const void *p) { memcpy(line, p, 64); }
INLINE void stream_fence(void) {}

#undef BOTH
#undef EIGHT

#include "in_order.h"

#include "codes_neon.h"

#endif
