/* The encoders' words in NEON: four blocks side by side, one to a lane. encode_scalar.h says what each word means. */
#ifndef GGUFX_LANES_ENCODE_NEON_H
#define GGUFX_LANES_ENCODE_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 4 };
typedef float32x4_t wide;
typedef int32x4_t wide_int;
typedef uint32x4_t mask; /* all bits of a lane, or none */

static inline wide every(float v) { return vdupq_n_f32(v); }
static inline wide load_lanes(const float *p) { return vld1q_f32(p); }
static inline void store_lanes(float *p, wide v) { vst1q_f32(p, v); }
static inline wide add(wide a, wide b) { return vaddq_f32(a, b); }
static inline wide subtract(wide a, wide b) { return vsubq_f32(a, b); }
static inline wide multiply(wide a, wide b) { return vmulq_f32(a, b); }
static inline wide divide(wide a, wide b) { return vdivq_f32(a, b); }
static inline wide root(wide a) { return vsqrtq_f32(a); }
static inline wide larger(wide a, wide b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline wide smaller(wide a, wide b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline wide magnitude(wide a) { return vabsq_f32(a); }
static inline wide negate(wide a) { return vnegq_f32(a); }

static inline mask less(wide a, wide b) { return vcltq_f32(a, b); }
static inline mask at_least(wide a, wide b) { return vcgeq_f32(a, b); }
static inline mask same(wide a, wide b) { return vceqq_f32(a, b); }
static inline mask differs(wide a, wide b) { return vmvnq_u32(vceqq_f32(a, b)); }
static inline mask mask_and(mask a, mask b) { return vandq_u32(a, b); }
static inline mask mask_or(mask a, mask b) { return vorrq_u32(a, b); }
static inline mask mask_not(mask a) { return vmvnq_u32(a); }
static inline mask every_mask(int yes) { return vdupq_n_u32(yes ? 0xFFFFFFFFu : 0); }
static inline int any(mask m) { return vmaxvq_u32(m) != 0; }
static inline unsigned mask_bits(mask m) {
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, bit));
}
static inline wide choose(mask m, wide a, wide b) { return vbslq_f32(m, a, b); }
static inline wide_int choose_int(mask m, wide_int a, wide_int b) { return vbslq_s32(m, a, b); }

static inline wide_int every_int(int v) { return vdupq_n_s32(v); }
static inline wide_int lane_number(void) {
    const int32x4_t v = {0, 1, 2, 3};
    return v;
}
static inline void store_int_lanes(void *p, wide_int v) { vst1q_u8(p, vreinterpretq_u8_s32(v)); }
static inline wide_int load_int_lanes(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
static inline wide_int load_u16(const uint16_t *p) { return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))); }
static inline wide_int int_add(wide_int a, wide_int b) { return vaddq_s32(a, b); }
static inline wide_int int_subtract(wide_int a, wide_int b) { return vsubq_s32(a, b); }
static inline wide_int int_multiply(wide_int a, wide_int b) { return vmulq_s32(a, b); }
static inline wide_int int_and(wide_int a, wide_int b) { return vandq_s32(a, b); }
static inline wide_int int_or(wide_int a, wide_int b) { return vorrq_s32(a, b); }
static inline wide_int int_and_or(wide_int a, wide_int b, wide_int c) { return int_or(int_and(a, b), c); }
static inline wide_int int_xor(wide_int a, wide_int b) { return veorq_s32(a, b); }
static inline wide_int int_smaller(wide_int a, wide_int b) { return vminq_s32(a, b); }
static inline wide_int int_larger(wide_int a, wide_int b) { return vmaxq_s32(a, b); }
static inline mask int_less(wide_int a, wide_int b) { return vcltq_s32(a, b); }
static inline mask int_same(wide_int a, wide_int b) { return vceqq_s32(a, b); }
static inline wide_int shift_left(wide_int v, int n) { return vshlq_s32(v, vdupq_n_s32(n)); }
static inline wide_int shift_right(wide_int v, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-n)));
}
static inline wide_int shift_each(wide_int v, wide_int n) {
    const mask inside = vcltq_u32(vreinterpretq_u32_s32(n), vdupq_n_u32(32));
    return vandq_s32(vshlq_s32(v, n), vreinterpretq_s32_u32(inside));
}

/* vcvt saturates and turns NaN into 0; x86 gives the smallest integer for both. */
static inline wide_int to_int(wide v) {
    const mask inside = vcltq_f32(vabsq_f32(v), vdupq_n_f32(2147483648.0f));
    return vbslq_s32(inside, vcvtq_s32_f32(v), vdupq_n_s32(INT32_MIN));
}
static inline wide to_float(wide_int v) { return vcvtq_f32_s32(v); }
static inline wide_int as_int(wide v) { return vreinterpretq_s32_f32(v); }
static inline wide as_float(wide_int v) { return vreinterpretq_f32_s32(v); }
static inline wide_int half_of(wide v) {
    return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(v))));
}
static inline wide half_value(wide_int h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(h))));
}

static inline wide_int gather(const int32_t *table, wide_int at) {
    const wide_int v = {table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
    return v;
}
static inline wide table16(const float *table, wide_int at) {
    at = int_and(at, every_int(15));
    const wide v = {table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
    return v;
}
typedef const float *row;
static inline row row4(const float *p) { return p; }
static inline row row8(const float *p) { return p; }
static inline wide from_row4(row r, wide_int at) {
    at = int_and(at, every_int(3));
    const wide v = {r[at[0]], r[at[1]], r[at[2]], r[at[3]]};
    return v;
}
static inline wide from_row8(row r, wide_int at) {
    at = int_and(at, every_int(7));
    const wide v = {r[at[0]], r[at[1]], r[at[2]], r[at[3]]};
    return v;
}
static inline wide least_of(wide v) { return vdupq_n_f32(vminvq_f32(v)); }
static inline int least_int_where(mask m, wide_int v) { return vminvq_s32(choose_int(m, v, every_int(INT32_MAX))); }

/* Four vectors turned: each result holds a, b, c, d of one lane. */
static inline void turn4(wide *a, wide *b, wide *c, wide *d) {
    const float32x4x2_t ab = vtrnq_f32(*a, *b), cd = vtrnq_f32(*c, *d);
    *a = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
    *b = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
    *c = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
    *d = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
}

static inline void store_rows4(float *p, size_t stride, wide a, wide b, wide c, wide d) {
    turn4(&a, &b, &c, &d);
    vst1q_f32(p, a);
    vst1q_f32(p + stride, b);
    vst1q_f32(p + 2 * stride, c);
    vst1q_f32(p + 3 * stride, d);
}

/* The same for 16 bytes at an offset of each lane's block. */
static inline void pack_rows(uint8_t *const *block, size_t at, wide_int a, wide_int b, wide_int c, wide_int d) {
    wide r[4] = {as_float(a), as_float(b), as_float(c), as_float(d)};
    turn4(&r[0], &r[1], &r[2], &r[3]);
    for (int k = 0; k < 4; k++) vst1q_u8(block[k] + at, vreinterpretq_u8_f32(r[k]));
}

static inline void load_columns(wide *x, const float *const *from, int n) {
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) x[i + j] = vld1q_f32(from[j] + i);
        turn4(&x[i], &x[i + 1], &x[i + 2], &x[i + 3]);
    }
}

static inline int all_finite(const float *x, size_t n) {
    const wide_int exponent = every_int(0x7F800000);
    mask bad = every_mask(0);
    for (; n >= 4; n -= 4, x += 4) bad = mask_or(bad, int_same(int_and(load_int_lanes(x), exponent), exponent));
    float rest[4] = {0};
    memcpy(rest, x, n * sizeof *x);
    return !any(mask_or(bad, int_same(int_and(load_int_lanes(rest), exponent), exponent)));
}

#endif
