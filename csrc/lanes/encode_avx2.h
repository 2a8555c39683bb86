/* The encoders' words in AVX2 and F16C: eight blocks side by side, one to a lane. encode_scalar.h says what each word
 * means. */
#ifndef GGUFX_LANES_ENCODE_AVX2_H
#define GGUFX_LANES_ENCODE_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };
typedef __m256 wide;
typedef __m256i wide_int;
typedef __m256 mask; /* all bits of a lane, or none */

static inline wide every(float v) { return _mm256_set1_ps(v); }
static inline wide load_lanes(const float *p) { return _mm256_loadu_ps(p); }
static inline void store_lanes(float *p, wide v) { _mm256_storeu_ps(p, v); }
static inline wide add(wide a, wide b) { return _mm256_add_ps(a, b); }
static inline wide subtract(wide a, wide b) { return _mm256_sub_ps(a, b); }
static inline wide multiply(wide a, wide b) { return _mm256_mul_ps(a, b); }
static inline wide divide(wide a, wide b) { return _mm256_div_ps(a, b); }
static inline wide root(wide a) { return _mm256_sqrt_ps(a); }
static inline wide larger(wide a, wide b) { return _mm256_max_ps(a, b); }
static inline wide smaller(wide a, wide b) { return _mm256_min_ps(a, b); }
static inline wide magnitude(wide a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline wide negate(wide a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

static inline mask less(wide a, wide b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline mask at_least(wide a, wide b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
static inline mask same(wide a, wide b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline mask differs(wide a, wide b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
static inline mask mask_and(mask a, mask b) { return _mm256_and_ps(a, b); }
static inline mask mask_or(mask a, mask b) { return _mm256_or_ps(a, b); }
static inline mask every_mask(int yes) { return _mm256_castsi256_ps(_mm256_set1_epi32(yes ? -1 : 0)); }
static inline mask mask_not(mask a) { return _mm256_xor_ps(a, every_mask(1)); }
static inline unsigned mask_bits(mask m) { return (unsigned)_mm256_movemask_ps(m); }
static inline int any(mask m) { return mask_bits(m) != 0; }
static inline wide choose(mask m, wide a, wide b) { return _mm256_blendv_ps(b, a, m); }

static inline wide_int as_int(wide v) { return _mm256_castps_si256(v); }
static inline wide as_float(wide_int v) { return _mm256_castsi256_ps(v); }
static inline wide_int choose_int(mask m, wide_int a, wide_int b) {
    return as_int(choose(m, as_float(a), as_float(b)));
}

static inline wide_int every_int(int v) { return _mm256_set1_epi32(v); }
static inline wide_int lane_number(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline void store_int_lanes(void *p, wide_int v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline wide_int load_int_lanes(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline wide_int load_u16(const uint16_t *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline wide_int int_add(wide_int a, wide_int b) { return _mm256_add_epi32(a, b); }
static inline wide_int int_subtract(wide_int a, wide_int b) { return _mm256_sub_epi32(a, b); }
static inline wide_int int_multiply(wide_int a, wide_int b) { return _mm256_mullo_epi32(a, b); }
static inline wide_int int_and(wide_int a, wide_int b) { return _mm256_and_si256(a, b); }
static inline wide_int int_or(wide_int a, wide_int b) { return _mm256_or_si256(a, b); }
static inline wide_int int_and_or(wide_int a, wide_int b, wide_int c) { return int_or(int_and(a, b), c); }
static inline wide_int int_xor(wide_int a, wide_int b) { return _mm256_xor_si256(a, b); }
static inline wide_int int_smaller(wide_int a, wide_int b) { return _mm256_min_epi32(a, b); }
static inline wide_int int_larger(wide_int a, wide_int b) { return _mm256_max_epi32(a, b); }
static inline mask int_less(wide_int a, wide_int b) { return as_float(_mm256_cmpgt_epi32(b, a)); }
static inline mask int_same(wide_int a, wide_int b) { return as_float(_mm256_cmpeq_epi32(a, b)); }
#define shift_left(v, n) _mm256_slli_epi32(v, n)
#define shift_right(v, n) _mm256_srli_epi32(v, n)
static inline wide_int shift_each(wide_int v, wide_int n) { return _mm256_sllv_epi32(v, n); }

static inline wide_int to_int(wide v) { return _mm256_cvttps_epi32(v); }
static inline wide to_float(wide_int v) { return _mm256_cvtepi32_ps(v); }
static inline wide_int half_of(wide v) { return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
static inline wide half_value(wide_int h) {
    const __m128i low = _mm256_castsi256_si128(h), high = _mm256_extracti128_si256(h, 1);
    return _mm256_cvtph_ps(_mm_packus_epi32(low, high));
}

static inline wide_int gather(const int32_t *table, wide_int at) { return _mm256_i32gather_epi32(table, at, 4); }
static inline wide table16(const float *table, wide_int at) {
    const wide low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
    const wide high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
    return _mm256_blendv_ps(low, high, as_float(shift_left(at, 28))); /* bit 3 moved to the sign */
}
typedef wide row;
static inline row row4(const float *p) { return _mm256_broadcast_ps((const __m128 *)p); }
static inline wide from_row4(row r, wide_int at) { return _mm256_permutevar_ps(r, at); }
static inline row row8(const float *p) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4), 1);
}
static inline wide from_row8(row r, wide_int at) { return _mm256_permutevar8x32_ps(r, at); }
static inline wide least_of(wide v) {
    v = _mm256_min_ps(v, _mm256_permute2f128_ps(v, v, 1));
    v = _mm256_min_ps(v, _mm256_permute_ps(v, 0x4E));
    return _mm256_min_ps(v, _mm256_permute_ps(v, 0xB1));
}
static inline int least_int_where(mask m, wide_int v) {
    v = choose_int(m, v, every_int(INT32_MAX));
    __m128i k = _mm_min_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    k = _mm_min_epi32(k, _mm_shuffle_epi32(k, 0x4E));
    k = _mm_min_epi32(k, _mm_shuffle_epi32(k, 0xB1));
    return _mm_cvtsi128_si32(k);
}

/* Four vectors turned: each half of the results holds a, b, c, d of one lane (lanes 0 and 4 in the first). */
static inline void turn4(wide *a, wide *b, wide *c, wide *d) {
    const wide ab0 = _mm256_unpacklo_ps(*a, *b), ab1 = _mm256_unpackhi_ps(*a, *b);
    const wide cd0 = _mm256_unpacklo_ps(*c, *d), cd1 = _mm256_unpackhi_ps(*c, *d);
    *a = _mm256_shuffle_ps(ab0, cd0, 0x44);
    *b = _mm256_shuffle_ps(ab0, cd0, 0xEE);
    *c = _mm256_shuffle_ps(ab1, cd1, 0x44);
    *d = _mm256_shuffle_ps(ab1, cd1, 0xEE);
}

static inline void store_rows4(float *p, size_t stride, wide a, wide b, wide c, wide d) {
    turn4(&a, &b, &c, &d);
#define ROW(k, v)                                                                                                      \
    _mm_storeu_ps(p + (k) * stride, _mm256_castps256_ps128(v));                                                        \
    _mm_storeu_ps(p + (4 + (k)) * stride, _mm256_extractf128_ps(v, 1));
    ROW(0, a)
    ROW(1, b)
    ROW(2, c)
    ROW(3, d)
#undef ROW
}

/* The same for 16 bytes at an offset of each lane's block. */
static inline void pack_rows(uint8_t *const *block, size_t at, wide_int a, wide_int b, wide_int c, wide_int d) {
    wide r[4] = {as_float(a), as_float(b), as_float(c), as_float(d)};
    turn4(&r[0], &r[1], &r[2], &r[3]);
#define ROW(k)                                                                                                         \
    _mm_storeu_ps((float *)(block[k] + at), _mm256_castps256_ps128(r[k]));                                             \
    _mm_storeu_ps((float *)(block[4 + (k)] + at), _mm256_extractf128_ps(r[k], 1));
    ROW(0)
    ROW(1)
    ROW(2)
    ROW(3)
#undef ROW
}

/* Four values of lanes j and 4+j. */
static inline wide four_of_two(const float *const *from, int j, int i) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from[j] + i)), _mm_loadu_ps(from[4 + j] + i), 1);
}

static inline void load_columns(wide *x, const float *const *from, int n) {
    for (int i = 0; i < n; i += 4) {
        wide a = four_of_two(from, 0, i), b = four_of_two(from, 1, i);
        wide c = four_of_two(from, 2, i), d = four_of_two(from, 3, i);
        turn4(&a, &b, &c, &d);
        x[i] = a, x[i + 1] = b, x[i + 2] = c, x[i + 3] = d;
    }
}

static inline int all_finite(const float *x, size_t n) {
    const wide_int exponent = every_int(0x7F800000);
    wide_int bad = every_int(0);
    for (; n >= 8; n -= 8, x += 8)
        bad = int_or(bad, _mm256_cmpeq_epi32(int_and(_mm256_loadu_si256((const __m256i *)x), exponent), exponent));
    float rest[8] = {0};
    memcpy(rest, x, n * sizeof *x);
    bad = int_or(bad, _mm256_cmpeq_epi32(int_and(_mm256_loadu_si256((const __m256i *)rest), exponent), exponent));
    return _mm256_testz_si256(bad, bad);
}

#endif
