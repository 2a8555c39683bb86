/* The encoders' words in AVX-512 (F, BW, DQ, VL): sixteen blocks side by side, one to a lane. encode_scalar.h says what
 * each word means. */
#ifndef GGUFX_LANES_ENCODE_AVX512_H
#define GGUFX_LANES_ENCODE_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };
typedef __m512 wide;
typedef __m512i wide_int;
typedef __mmask16 mask;

static inline wide every(float v) { return _mm512_set1_ps(v); }
static inline wide load_lanes(const float *p) { return _mm512_loadu_ps(p); }
static inline void store_lanes(float *p, wide v) { _mm512_storeu_ps(p, v); }
static inline wide add(wide a, wide b) { return _mm512_add_ps(a, b); }
static inline wide subtract(wide a, wide b) { return _mm512_sub_ps(a, b); }
static inline wide multiply(wide a, wide b) { return _mm512_mul_ps(a, b); }
static inline wide divide(wide a, wide b) { return _mm512_div_ps(a, b); }
static inline wide root(wide a) { return _mm512_sqrt_ps(a); }
static inline wide larger(wide a, wide b) { return _mm512_max_ps(a, b); }
static inline wide smaller(wide a, wide b) { return _mm512_min_ps(a, b); }
static inline wide magnitude(wide a) { return _mm512_abs_ps(a); }
static inline wide negate(wide a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }

static inline mask less(wide a, wide b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline mask at_least(wide a, wide b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
static inline mask same(wide a, wide b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline mask differs(wide a, wide b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
static inline mask mask_and(mask a, mask b) { return (mask)(a & b); }
static inline mask mask_or(mask a, mask b) { return (mask)(a | b); }
static inline mask mask_not(mask a) { return (mask)~a; }
static inline mask every_mask(int yes) { return (mask)(yes ? 0xFFFF : 0); }
static inline int any(mask m) { return m != 0; }
static inline unsigned mask_bits(mask m) { return m; }
static inline wide choose(mask m, wide a, wide b) { return _mm512_mask_mov_ps(b, m, a); }
static inline wide_int choose_int(mask m, wide_int a, wide_int b) { return _mm512_mask_mov_epi32(b, m, a); }

static inline wide_int every_int(int v) { return _mm512_set1_epi32(v); }
static inline wide_int lane_number(void) {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
static inline void store_int_lanes(void *p, wide_int v) { _mm512_storeu_si512(p, v); }
static inline wide_int load_int_lanes(const void *p) { return _mm512_loadu_si512(p); }
static inline wide_int load_u16(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
static inline wide_int int_add(wide_int a, wide_int b) { return _mm512_add_epi32(a, b); }
static inline wide_int int_subtract(wide_int a, wide_int b) { return _mm512_sub_epi32(a, b); }
static inline wide_int int_multiply(wide_int a, wide_int b) { return _mm512_mullo_epi32(a, b); }
static inline wide_int int_and(wide_int a, wide_int b) { return _mm512_and_si512(a, b); }
static inline wide_int int_or(wide_int a, wide_int b) { return _mm512_or_si512(a, b); }
static inline wide_int int_and_or(wide_int a, wide_int b, wide_int c) {
    return _mm512_ternarylogic_epi32(a, b, c, 0xEA);
}
static inline wide_int int_xor(wide_int a, wide_int b) { return _mm512_xor_si512(a, b); }
static inline wide_int int_smaller(wide_int a, wide_int b) { return _mm512_min_epi32(a, b); }
static inline wide_int int_larger(wide_int a, wide_int b) { return _mm512_max_epi32(a, b); }
static inline mask int_less(wide_int a, wide_int b) { return _mm512_cmplt_epi32_mask(a, b); }
static inline mask int_same(wide_int a, wide_int b) { return _mm512_cmpeq_epi32_mask(a, b); }
#define shift_left(v, n) _mm512_slli_epi32(v, n)
#define shift_right(v, n) _mm512_srli_epi32(v, n)
static inline wide_int shift_each(wide_int v, wide_int n) { return _mm512_sllv_epi32(v, n); }

static inline wide_int to_int(wide v) { return _mm512_cvttps_epi32(v); }
static inline wide to_float(wide_int v) { return _mm512_cvtepi32_ps(v); }
static inline wide_int as_int(wide v) { return _mm512_castps_si512(v); }
static inline wide as_float(wide_int v) { return _mm512_castsi512_ps(v); }
static inline wide_int half_of(wide v) { return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
static inline wide half_value(wide_int h) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(h)); }

static inline wide_int gather(const int32_t *table, wide_int at) { return _mm512_i32gather_epi32(at, table, 4); }
static inline wide table16(const float *table, wide_int at) {
    return _mm512_permutexvar_ps(at, _mm512_loadu_ps(table));
}
typedef wide row;
static inline row row4(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
static inline wide from_row4(row r, wide_int at) { return _mm512_permutevar_ps(r, at); }
static inline row row8(const float *p) {
    return _mm512_mask_broadcast_f32x4(_mm512_broadcast_f32x4(_mm_loadu_ps(p)), 0xF0F0, _mm_loadu_ps(p + 4));
}
static inline wide from_row8(row r, wide_int at) { return _mm512_permutexvar_ps(at, r); }
static inline wide least_of(wide v) {
    v = _mm512_min_ps(v, _mm512_shuffle_f32x4(v, v, 0x4E));
    v = _mm512_min_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1));
    v = _mm512_min_ps(v, _mm512_permute_ps(v, 0x4E));
    return _mm512_min_ps(v, _mm512_permute_ps(v, 0xB1));
}
static inline int least_int_where(mask m, wide_int v) { return _mm512_mask_reduce_min_epi32(m, v); }

/* Four vectors turned: each 128-bit part of the results holds a, b, c, d of one lane (lanes 0, 4, 8, 12 in the first).
 */
static inline void turn4(wide *a, wide *b, wide *c, wide *d) {
    const wide ab0 = _mm512_unpacklo_ps(*a, *b), ab1 = _mm512_unpackhi_ps(*a, *b);
    const wide cd0 = _mm512_unpacklo_ps(*c, *d), cd1 = _mm512_unpackhi_ps(*c, *d);
    *a = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab0), _mm512_castps_pd(cd0)));
    *b = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab0), _mm512_castps_pd(cd0)));
    *c = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab1), _mm512_castps_pd(cd1)));
    *d = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab1), _mm512_castps_pd(cd1)));
}

static inline void store_rows4(float *p, size_t stride, wide a, wide b, wide c, wide d) {
    turn4(&a, &b, &c, &d);
#define PART(k)                                                                                                        \
    _mm_storeu_ps(p + (4 * (k)) * stride, _mm512_extractf32x4_ps(a, k));                                               \
    _mm_storeu_ps(p + (4 * (k) + 1) * stride, _mm512_extractf32x4_ps(b, k));                                           \
    _mm_storeu_ps(p + (4 * (k) + 2) * stride, _mm512_extractf32x4_ps(c, k));                                           \
    _mm_storeu_ps(p + (4 * (k) + 3) * stride, _mm512_extractf32x4_ps(d, k));
    PART(0)
    PART(1)
    PART(2)
    PART(3)
#undef PART
}

/* The same for 16 bytes at an offset of each lane's block. */
static inline void pack_rows(uint8_t *const *block, size_t at, wide_int a, wide_int b, wide_int c, wide_int d) {
    wide r[4] = {as_float(a), as_float(b), as_float(c), as_float(d)};
    turn4(&r[0], &r[1], &r[2], &r[3]);
#define PART(k)                                                                                                        \
    _mm_storeu_ps((float *)(block[4 * (k)] + at), _mm512_extractf32x4_ps(r[0], k));                                    \
    _mm_storeu_ps((float *)(block[4 * (k) + 1] + at), _mm512_extractf32x4_ps(r[1], k));                                \
    _mm_storeu_ps((float *)(block[4 * (k) + 2] + at), _mm512_extractf32x4_ps(r[2], k));                                \
    _mm_storeu_ps((float *)(block[4 * (k) + 3] + at), _mm512_extractf32x4_ps(r[3], k));
    PART(0)
    PART(1)
    PART(2)
    PART(3)
#undef PART
}

/* Four values of lanes j, 4+j, 8+j and 12+j. */
static inline wide four_of_four(const float *const *from, int j, int i) {
    wide v = _mm512_castps128_ps512(_mm_loadu_ps(from[j] + i));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(from[4 + j] + i), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(from[8 + j] + i), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(from[12 + j] + i), 3);
}

static inline void load_columns(wide *x, const float *const *from, int n) {
    for (int i = 0; i < n; i += 4) {
        wide a = four_of_four(from, 0, i), b = four_of_four(from, 1, i);
        wide c = four_of_four(from, 2, i), d = four_of_four(from, 3, i);
        turn4(&a, &b, &c, &d);
        x[i] = a, x[i + 1] = b, x[i + 2] = c, x[i + 3] = d;
    }
}

static inline int all_finite(const float *x, size_t n) {
    const __m512i exponent = every_int(0x7F800000);
    mask bad = 0;
    for (; n >= 16; n -= 16, x += 16)
        bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(x), exponent), exponent);
    const mask rest = (mask)((1u << n) - 1);
    bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_maskz_loadu_epi32(rest, x), exponent), exponent);
    return !bad;
}

#endif
