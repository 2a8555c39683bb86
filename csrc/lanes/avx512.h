/* The lane words in AVX-512 (F, BW, DQ, VL): 32 bytes are one ymm register, 32 floats two zmm registers. */
#ifndef GGUFX_LANES_AVX512_H
#define GGUFX_LANES_AVX512_H

#include "x86.h"

typedef struct {
    __m512 a, b;
} floats;

/* Sixteen 16-bit values, in the lower half. */
typedef __m512i words;

INLINE bytes load_bytes(const void *p) { return _mm256_loadu_si256(p); }
INLINE bytes pair_of_bytes(int v, int w) { return _mm256_setr_m128i(_mm_set1_epi8((char)v), _mm_set1_epi8((char)w)); }
INLINE bytes nibbles(const void *p) {
    const __m128i v = _mm_loadu_si128(p);
    return _mm256_and_si256(_mm256_setr_m128i(v, _mm_srli_epi16(v, 4)), every_byte(15));
}
INLINE bytes nibbles_by_eight(const void *p) {
    const __m128i v = _mm_loadu_si128(p), w = _mm_srli_epi16(v, 4);
    return _mm256_and_si256(_mm256_setr_m128i(_mm_unpacklo_epi64(v, w), _mm_unpackhi_epi64(v, w)), every_byte(15));
}
INLINE bytes crumbs(const void *p) {
    /* Each byte four times: twice as it is and twice four bits lower, so that every code lies in a low nibble. */
    const __m128i v = _mm_loadl_epi64(p), both = _mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4));
    const __m256i spread = _mm256_setr_epi8(0, 0, 8, 8, 1, 1, 9, 9, 2, 2, 10, 10, 3, 3, 11, 11, 4, 4, 12, 12, 5, 5, 13,
                                            13, 6, 6, 14, 14, 7, 7, 15, 15);
    return _mm256_and_si256(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(both), spread), _mm256_set1_epi16(0x0C03));
}

INLINE bytes eight_of_each(const void *p) {
    int four;
    memcpy(&four, p, sizeof four);
    return _mm256_shuffle_epi8(_mm256_set1_epi32(four),
                               _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
}
INLINE bytes join8(const void *a, const void *b, const void *c, const void *d) {
    return _mm256_setr_m128i(two_eights(a, b), two_eights(c, d));
}
INLINE bytes join16(sixteen a, sixteen b) { return _mm256_setr_m128i(a, b); }
INLINE bytes join4(const void *a, const void *b, const void *c, const void *d, const void *e, const void *f,
                   const void *g, const void *h) {
    return _mm256_setr_m128i(four_fours(a, b, c, d), four_fours(e, f, g, h));
}
INLINE bytes add_where(bytes v, uint32_t bits, int value) {
    return _mm256_mask_add_epi8(v, bits, v, every_byte(value));
}

/* ---- floats ---- */

INLINE floats every(float x) { return (floats){_mm512_set1_ps(x), _mm512_set1_ps(x)}; }
INLINE floats pair(float x, float y) { return (floats){_mm512_set1_ps(x), _mm512_set1_ps(y)}; }
INLINE floats eights(float x, float y) {
    return (floats){_mm512_mask_mov_ps(_mm512_set1_ps(x), 0xFF00, _mm512_set1_ps(y)), _mm512_setzero_ps()};
}
INLINE floats quads(const float *p) {
    const __m512i each_four_times = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512 four = _mm512_castps128_ps512(_mm_loadu_ps(p));
    return (floats){_mm512_permutexvar_ps(each_four_times, four), _mm512_setzero_ps()};
}
INLINE floats load_floats(const void *p) {
    return (floats){_mm512_loadu_ps(p), _mm512_loadu_ps((const float *)p + 16)};
}
INLINE void store_64(void *p, __m512i v, int past_cache) {
    if (past_cache)
        _mm512_stream_si512(p, v);
    else
        _mm512_storeu_si512(p, v);
}
INLINE void store_floats(float *p, floats v, int past_cache) {
    store_64(p, _mm512_castps_si512(v.a), past_cache);
    store_64(p + 16, _mm512_castps_si512(v.b), past_cache);
}

INLINE floats subtract(floats x, floats y) { return (floats){_mm512_sub_ps(x.a, y.a), _mm512_sub_ps(x.b, y.b)}; }
INLINE floats multiply(floats x, floats y) { return (floats){_mm512_mul_ps(x.a, y.a), _mm512_mul_ps(x.b, y.b)}; }

INLINE floats product_plus(floats x, floats y, floats z) {
    return (floats){_mm512_fmadd_ps(x.a, y.a, z.a), _mm512_fmadd_ps(x.b, y.b, z.b)};
}

INLINE floats from_unsigned(bytes v) {
    return (floats){_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(v))),
                    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(v, 1)))};
}
INLINE floats from_signed(bytes v) {
    return (floats){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(v))),
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(v, 1)))};
}
/* Widened once, before the nibbles are taken apart. */
INLINE floats floats_of_nibbles(const void *p) {
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return (floats){_mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(15))),
                    _mm512_cvtepi32_ps(_mm512_srli_epi32(v, 4))};
}
INLINE floats first_halves(floats x, floats y) { return (floats){x.a, y.a}; }
INLINE floats second_halves(floats x, floats y) { return (floats){x.b, y.b}; }
INLINE floats load_signed(const void *p) {
    const __m128i *v = p;
    return (floats){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(v))),
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(v + 1)))};
}

/* The levels are multiplied, not the values. */
INLINE floats scaled_codes(const int8_t *values, bytes codes, floats d, int few) {
    const __m512 level = load_signed(values).a;
    (void)few;
    return (floats){
        _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes)), _mm512_mul_ps(level, d.a)),
        _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1)), _mm512_mul_ps(level, d.b))};
}

INLINE floats load_halves(const void *p) {
    const __m256i *h = p;
    return (floats){_mm512_cvtph_ps(_mm256_loadu_si256(h)), _mm512_cvtph_ps(_mm256_loadu_si256(h + 1))};
}
INLINE __m512 widened_bfloats(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE floats load_bfloats(const void *p) {
    const __m256i *h = p;
    return (floats){widened_bfloats(_mm256_loadu_si256(h)), widened_bfloats(_mm256_loadu_si256(h + 1))};
}
INLINE __m512 canonical_nans_in(__m512 v) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(CANONICAL_NAN));
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
}
INLINE floats canonical_nans(floats v) { return (floats){canonical_nans_in(v.a), canonical_nans_in(v.b)}; }

/* ---- 16-bit values ---- */

INLINE __m256i sixteen_halves(__m512 v) {
    __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    __asm__("" : "+x"(h)); /* or compilers store with the conversion, a slow form on Zen 4 and 5 */
    return h;
}

/* Nearest, ties to even: the low words decide whether the high ones, which are the bfloats, go up by one. Not
 * vcvtneps2bf16, which flushes subnormal floats to zero. */
INLINE __m512 near_bfloat(__m512 v) {
    const __m512 k = _mm512_set1_ps(65536);
    return _mm512_fmsub_ps(v, k, _mm512_fmsub_ps(v, k, v));
}
INLINE __m512i bfloats_of(floats v, int finite) {
    const __m512i low_words = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
                                               26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i high_words = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                                                27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    if (finite)
        return _mm512_permutex2var_epi16(_mm512_castps_si512(near_bfloat(v.a)), high_words,
                                         _mm512_castps_si512(near_bfloat(v.b)));
    const __m512i a = _mm512_castps_si512(v.a), b = _mm512_castps_si512(v.b), one = _mm512_set1_epi16(1);
    const __m512i low = _mm512_permutex2var_epi16(a, low_words, b), high = _mm512_permutex2var_epi16(a, high_words, b);
    const __m512i or_odd = _mm512_ternarylogic_epi32(low, high, one, 0xF8); /* low | (high & 1) */
    const __mmask32 up = _mm512_cmpgt_epu16_mask(or_odd, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_add_epi16(high, up, high, one);
}

INLINE void store_halves(uint16_t *p, floats v, int past_cache) {
    store_32(p, sixteen_halves(v.a), past_cache);
    store_32(p + 16, sixteen_halves(v.b), past_cache);
}
enum { FINITE_IS_FASTER = 1 };
INLINE void store_bfloats(uint16_t *p, floats v, int finite, int past_cache) {
    store_64(p, bfloats_of(v, finite), past_cache);
}

/* ---- sums of products ---- */

typedef floats sums;

INLINE sums no_sums(void) { return every(0); }
INLINE sums accumulate(sums s, floats v, const float *x) { return product_plus(v, load_floats(x), s); }
INLINE void add_to_totals(double *total, sums s) {
    const __m512 both = _mm512_add_ps(s.a, s.b);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(both));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(both, 1));
    _mm512_storeu_pd(total, _mm512_add_pd(_mm512_loadu_pd(total), _mm512_add_pd(low, high)));
}

INLINE words words_of_halves(floats v) { return _mm512_castsi256_si512(sixteen_halves(v.a)); }
INLINE words words_of_bfloats(floats v, int finite) { return bfloats_of((floats){v.a, v.a}, finite); }
INLINE void store_words(uint16_t *p, words t, bytes codes, int past_cache) {
    store_64(p, _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(codes), t), past_cache);
}

#include "in_order.h"

/* ---- codes ---- */

/* Four of d for the first sixteen bytes, four of e for the others. */
INLINE __m256 two_scales(__m256 d, __m256 e) { return _mm256_blend_ps(d, e, 0xF0); }
INLINE __m256 eight_scales(floats d) { return two_scales(_mm512_castps512_ps256(d.a), _mm512_castps512_ps256(d.b)); }
INLINE __m256i from_order(__m256i v) { return v; }

#include "codes_x86.h"

#endif
