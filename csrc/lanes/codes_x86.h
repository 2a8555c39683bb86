/* Words over codes times codes, for AVX2 and AVX-512: signed bytes of rows and of x, eight sums of four neighbouring
 * products each. Where the including file defines GGUFX_VNNI, one instruction makes them. The lanes before this one
 * have two_scales(), eight_scales() and from_order(), for bytes may stand in another order than values. */
#ifndef GGUFX_LANES_CODES_X86_H
#define GGUFX_LANES_CODES_X86_H

#include "../codes.h"

typedef __m256 scales; /* four of the first sixteen codes, four of the others, as the bytes stand */

INLINE scales every_scale(float d) { return _mm256_set1_ps(d); }
INLINE scales pair_of_scales(float d, float e) { return two_scales(_mm256_set1_ps(d), _mm256_set1_ps(e)); }

/* What comes of products with codes, and of minimums: apart, so that neither waits for the other. */
typedef struct {
    __m256 codes, minimums;
} code_sums;

INLINE code_sums no_code_sums(void) { return (code_sums){_mm256_setzero_ps(), _mm256_setzero_ps()}; }

INLINE __m256i codes_of_x(const ggufx_codes *x) { return _mm256_loadu_si256((const __m256i *)x->q); }
INLINE code_sums add_products(code_sums s, __m256i products, scales d, const ggufx_codes *x) {
    s.codes = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_mul_ps(d, _mm256_set1_ps(x->scale)), s.codes);
    return s;
}

/* Sums that take turns: where registers suffice for four rows. */
#ifdef GGUFX_VNNI
enum { CODE_CHAINS = 2 };

/* One factor is unsigned: codes go up by 128, and 128 times the sums of x come off in advance. */
INLINE __m256i signed_products(__m256i up, const ggufx_codes *x) {
    return _mm256_dpbusd_epi32(_mm256_loadu_si256((const __m256i *)x->less), up, codes_of_x(x));
}
INLINE code_sums add_signed_codes(code_sums s, bytes q, scales d, const ggufx_codes *x) {
    return add_products(s, signed_products(_mm256_xor_si256(q, every_byte(128)), x), d, x);
}
INLINE code_sums add_levels(code_sums s, const int8_t *values, bytes codes, scales d, const ggufx_codes *x) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
    const __m256i up = _mm256_shuffle_epi8(_mm256_xor_si256(table, every_byte(128)), codes);
    return add_products(s, signed_products(up, x), d, x);
}
INLINE __m256i unsigned_products(bytes q, const ggufx_codes *x) {
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), q, codes_of_x(x));
}
#else
enum { CODE_CHAINS = 1 };

/* Pairs of products fit 16 bits: at most 2 * 128 * 127. */
INLINE __m256i unsigned_by_signed(__m256i u, __m256i v) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(u, v), _mm256_set1_epi16(1));
}
INLINE __m256i signed_products(bytes q, const ggufx_codes *x) {
    return unsigned_by_signed(_mm256_abs_epi8(q), _mm256_sign_epi8(codes_of_x(x), q));
}
INLINE code_sums add_signed_codes(code_sums s, bytes q, scales d, const ggufx_codes *x) {
    return add_products(s, signed_products(q, x), d, x);
}
INLINE code_sums add_levels(code_sums s, const int8_t *values, bytes codes, scales d, const ggufx_codes *x) {
    return add_signed_codes(s, lookup(values, codes), d, x);
}
INLINE __m256i unsigned_products(bytes q, const ggufx_codes *x) { return unsigned_by_signed(q, codes_of_x(x)); }
#endif

INLINE code_sums add_affine_codes(code_sums s, bytes q, scales d, scales m, const ggufx_codes *x) {
    s = add_products(s, unsigned_products(q, x), d, x);
    s.minimums = _mm256_fmadd_ps(m, _mm256_loadu_ps(x->sums), s.minimums);
    return s;
}
INLINE void add_code_sums_to_totals(double *total, code_sums s) {
    const __m256 both = _mm256_add_ps(s.codes, s.minimums);
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(both));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(both, 1));
    _mm256_storeu_pd(total, _mm256_add_pd(_mm256_loadu_pd(total), low));
    _mm256_storeu_pd(total + 4, _mm256_add_pd(_mm256_loadu_pd(total + 4), high));
}

/* ---- x as codes ---- */

INLINE __m256i eight_magnitudes(const float *x) {
    return _mm256_and_si256(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi32(0x7FFFFFFF));
}
INLINE uint32_t largest_magnitude(const float *x) {
    const __m256i v = _mm256_max_epi32(_mm256_max_epi32(eight_magnitudes(x), eight_magnitudes(x + 8)),
                                       _mm256_max_epi32(eight_magnitudes(x + 16), eight_magnitudes(x + 24)));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}
INLINE __m256i eight_codes(const float *x, float inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(inverse)));
}
INLINE void store_codes(ggufx_codes *out, const float *x, float inverse, float scale) {
    const __m256i a = _mm256_packs_epi32(eight_codes(x, inverse), eight_codes(x + 8, inverse));
    const __m256i b = _mm256_packs_epi32(eight_codes(x + 16, inverse), eight_codes(x + 24, inverse));
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i q = from_order(_mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), in_order));
    const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    _mm256_storeu_si256((__m256i *)out->q, q);
    _mm256_storeu_si256((__m256i *)out->less, _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), fours), 7));
    _mm256_storeu_ps(out->sums, _mm256_mul_ps(_mm256_cvtepi32_ps(fours), _mm256_set1_ps(scale)));
    out->scale = scale;
}

#endif
