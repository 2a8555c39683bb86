/* The encoders' words in NEON: four blocks side by side, one to a lane. wide_scalar.h says what each word means. */
#ifndef GGUFX_LANES_WIDE_NEON_H
#define GGUFX_LANES_WIDE_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 4 };
typedef float32x4_t floats;
typedef int32x4_t ints;
typedef uint32x4_t mask; /* all bits of a lane, or none */

static inline floats every(float v) { return vdupq_n_f32(v); }
static inline floats load_floats(const float *p) { return vld1q_f32(p); }
static inline void store_floats(float *p, floats v) { vst1q_f32(p, v); }
static inline floats add(floats a, floats b) { return vaddq_f32(a, b); }
static inline floats subtract(floats a, floats b) { return vsubq_f32(a, b); }
static inline floats multiply(floats a, floats b) { return vmulq_f32(a, b); }
static inline floats divide(floats a, floats b) { return vdivq_f32(a, b); }
static inline floats root(floats a) { return vsqrtq_f32(a); }
static inline floats larger(floats a, floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline floats smaller(floats a, floats b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline floats magnitude(floats a) { return vabsq_f32(a); }
static inline floats negate(floats a) { return vnegq_f32(a); }

static inline mask less(floats a, floats b) { return vcltq_f32(a, b); }
static inline mask at_least(floats a, floats b) { return vcgeq_f32(a, b); }
static inline mask same(floats a, floats b) { return vceqq_f32(a, b); }
static inline mask differs(floats a, floats b) { return vmvnq_u32(vceqq_f32(a, b)); }
static inline mask both(mask a, mask b) { return vandq_u32(a, b); }
static inline mask either(mask a, mask b) { return vorrq_u32(a, b); }
static inline mask not_(mask a) { return vmvnq_u32(a); }
static inline mask every_mask(int yes) { return vdupq_n_u32(yes ? 0xFFFFFFFFu : 0); }
static inline int any(mask m) { return vmaxvq_u32(m) != 0; }
static inline unsigned mask_bits(mask m) {
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, bit));
}
static inline floats choose(mask m, floats a, floats b) { return vbslq_f32(m, a, b); }
static inline ints choose_int(mask m, ints a, ints b) { return vbslq_s32(m, a, b); }

static inline ints every_int(int v) { return vdupq_n_s32(v); }
static inline ints lane_number(void) {
    const int32x4_t v = {0, 1, 2, 3};
    return v;
}
static inline void store_ints(void *p, ints v) { vst1q_u8(p, vreinterpretq_u8_s32(v)); }
static inline ints load_ints(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
static inline ints load_u16(const uint16_t *p) { return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))); }
static inline ints int_add(ints a, ints b) { return vaddq_s32(a, b); }
static inline ints int_subtract(ints a, ints b) { return vsubq_s32(a, b); }
static inline ints int_multiply(ints a, ints b) { return vmulq_s32(a, b); }
static inline ints int_and(ints a, ints b) { return vandq_s32(a, b); }
static inline ints int_or(ints a, ints b) { return vorrq_s32(a, b); }
static inline ints int_xor(ints a, ints b) { return veorq_s32(a, b); }
static inline ints int_smaller(ints a, ints b) { return vminq_s32(a, b); }
static inline ints int_larger(ints a, ints b) { return vmaxq_s32(a, b); }
static inline mask int_less(ints a, ints b) { return vcltq_s32(a, b); }
static inline mask int_same(ints a, ints b) { return vceqq_s32(a, b); }
static inline ints shift_left(ints v, int n) { return vshlq_s32(v, vdupq_n_s32(n)); }
static inline ints shift_right(ints v, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-n)));
}
static inline ints shift_each(ints v, ints n) {
    const mask inside = vcltq_u32(vreinterpretq_u32_s32(n), vdupq_n_u32(32));
    return vandq_s32(vshlq_s32(v, n), vreinterpretq_s32_u32(inside));
}

/* vcvt saturates and turns NaN into 0; x86 gives the smallest integer for both. */
static inline ints to_int(floats v) {
    const mask inside = vcltq_f32(vabsq_f32(v), vdupq_n_f32(2147483648.0f));
    return vbslq_s32(inside, vcvtq_s32_f32(v), vdupq_n_s32(INT32_MIN));
}
static inline floats to_float(ints v) { return vcvtq_f32_s32(v); }
static inline ints as_ints(floats v) { return vreinterpretq_s32_f32(v); }
static inline floats as_floats(ints v) { return vreinterpretq_f32_s32(v); }
static inline floats nearest(floats v) {
    const ints sum = as_ints(add(v, every(12582912.0f)));
    const ints bits = int_or(int_and(sum, every_int(0x7FFFFF)), every_int(0x4B000000));
    return subtract(as_floats(bits), every(12582912.0f));
}
static inline ints half_of(floats v) { return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(v)))); }
static inline floats half_value(ints h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(h))));
}

static inline ints gather(const int32_t *table, ints at) {
    const ints v = {table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
    return v;
}
static inline floats table16(const float *table, ints at) {
    at = int_and(at, every_int(15));
    const floats v = {table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
    return v;
}
typedef const float *row;
static inline row row4(const float *p) { return p; }
static inline row row8(const float *p) { return p; }
static inline floats from_row4(row r, ints at) {
    at = int_and(at, every_int(3));
    const floats v = {r[at[0]], r[at[1]], r[at[2]], r[at[3]]};
    return v;
}
static inline floats from_row8(row r, ints at) {
    at = int_and(at, every_int(7));
    const floats v = {r[at[0]], r[at[1]], r[at[2]], r[at[3]]};
    return v;
}
static inline floats least_of(floats v) { return vdupq_n_f32(vminvq_f32(v)); }
static inline int least_int_where(mask m, ints v) { return vminvq_s32(choose_int(m, v, every_int(INT32_MAX))); }

/* Four vectors turned: each result holds a, b, c, d of one lane. */
static inline void turn4(floats *a, floats *b, floats *c, floats *d) {
    const float32x4x2_t ab = vtrnq_f32(*a, *b), cd = vtrnq_f32(*c, *d);
    *a = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
    *b = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
    *c = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
    *d = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
}

static inline void store_rows4(float *p, size_t stride, floats a, floats b, floats c, floats d) {
    turn4(&a, &b, &c, &d);
    vst1q_f32(p, a);
    vst1q_f32(p + stride, b);
    vst1q_f32(p + 2 * stride, c);
    vst1q_f32(p + 3 * stride, d);
}

/* The same for 16 bytes at an offset of each lane's block. */
static inline void put_rows(uint8_t *const *block, size_t at, ints a, ints b, ints c, ints d) {
    floats r[4] = {as_floats(a), as_floats(b), as_floats(c), as_floats(d)};
    turn4(&r[0], &r[1], &r[2], &r[3]);
    for (int k = 0; k < 4; k++) vst1q_u8(block[k] + at, vreinterpretq_u8_f32(r[k]));
}

static inline void load_columns(floats *x, const float *const *from, int n) {
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) x[i + j] = vld1q_f32(from[j] + i);
        turn4(&x[i], &x[i + 1], &x[i + 2], &x[i + 3]);
    }
}

static inline int all_finite(const float *x, size_t n) {
    const ints exponent = every_int(0x7F800000);
    mask bad = every_mask(0);
    for (; n >= 4; n -= 4, x += 4) bad = either(bad, int_same(int_and(load_ints(x), exponent), exponent));
    float rest[4] = {0};
    memcpy(rest, x, n * sizeof *x);
    return !any(either(bad, int_same(int_and(load_ints(rest), exponent), exponent)));
}

#endif
