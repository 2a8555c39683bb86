/* The lane words in AVX2: 32 bytes are one ymm register, 32 floats four.
 *
 * Most instructions work within the register's two 128-bit lanes. So 32 bytes stand by eights in the order 0, 2, 1, 3:
 * whatever then interleaves within lanes makes 16 values in order of the first eights and 16 of the last. Floats and
 * whatever is stored stand in order. */
#ifndef GGUFX_LANES_AVX2_H
#define GGUFX_LANES_AVX2_H

#include "x86.h"

typedef struct {
    __m256 a, b, c, d;
} floats;

/* Sixteen 16-bit values as two byte tables, one of low and one of high bytes, each in both 128-bit lanes. */
typedef struct {
    __m256i low, high;
} words;

/* ---- thirty-two bytes, by eights in the order 0, 2, 1, 3 ---- */

INLINE bytes load_bytes(const void *p) { return _mm256_permute4x64_epi64(_mm256_loadu_si256(p), 0xD8); }
INLINE bytes pair_of_bytes(int v, int w) {
    return _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(_mm_set1_epi8((char)v), _mm_set1_epi8((char)w)));
}
INLINE bytes nibbles(const void *p) {
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_castsi128_si256(_mm_loadu_si128(p)), 0x50);
    return _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4)), every_byte(15));
}
INLINE bytes nibbles_by_eight(const void *p) {
    const __m128i v = _mm_loadu_si128(p);
    return _mm256_and_si256(_mm256_setr_m128i(v, _mm_srli_epi16(v, 4)), every_byte(15));
}
INLINE bytes crumbs(const void *p) {
    /* Each byte four times: twice as it is and twice four bits lower, so that every code lies in a low nibble. */
    const __m128i v = _mm_loadl_epi64(p), both = _mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4));
    const __m256i spread = _mm256_setr_epi8(0, 0, 8, 8, 1, 1, 9, 9, 4, 4, 12, 12, 5, 5, 13, 13, 2, 2, 10, 10, 3, 3, 11,
                                            11, 6, 6, 14, 14, 7, 7, 15, 15);
    return _mm256_and_si256(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(both), spread), _mm256_set1_epi16(0x0C03));
}
INLINE bytes each_eight_times(__m256i four) {
    return _mm256_shuffle_epi8(four, _mm256_setr_epi64x(0, 0x0202020202020202, 0x0101010101010101, 0x0303030303030303));
}
INLINE bytes eight_of_each(const void *p) {
    int four;
    memcpy(&four, p, sizeof four);
    return each_eight_times(_mm256_set1_epi32(four));
}
INLINE bytes join8(const void *a, const void *b, const void *c, const void *d) {
    return _mm256_setr_m128i(two_eights(a, c), two_eights(b, d));
}
INLINE bytes join16(sixteen a, sixteen b) {
    return _mm256_setr_m128i(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
}
INLINE bytes join4(const void *a, const void *b, const void *c, const void *d, const void *e, const void *f,
                   const void *g, const void *h) {
    return _mm256_setr_m128i(four_fours(a, b, e, f), four_fours(c, d, g, h));
}
INLINE bytes add_where(bytes v, uint32_t bits, int value) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i of_byte = _mm256_and_si256(each_eight_times(_mm256_set1_epi32((int)bits)), bit);
    return _mm256_add_epi8(v, _mm256_and_si256(_mm256_cmpeq_epi8(of_byte, bit), every_byte(value)));
}

/* ---- floats ---- */

/* One operation on all four registers. Written out: compilers keep arrays in memory that a loop runs over. */
#define MAP1(f, x) ((floats){f(x.a), f(x.b), f(x.c), f(x.d)})
#define MAP2(f, x, y) ((floats){f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)})
#define MAP3(f, x, y, z) ((floats){f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)})

INLINE floats pair(float x, float y) {
    return (floats){_mm256_set1_ps(x), _mm256_set1_ps(x), _mm256_set1_ps(y), _mm256_set1_ps(y)};
}
INLINE floats every(float x) { return pair(x, x); }
INLINE floats eights(float x, float y) {
    return (floats){_mm256_set1_ps(x), _mm256_set1_ps(y), _mm256_setzero_ps(), _mm256_setzero_ps()};
}
INLINE floats quads(const float *p) {
    const __m256 four = _mm256_broadcast_ps((const __m128 *)p);
    return (floats){_mm256_permutevar_ps(four, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
                    _mm256_permutevar_ps(four, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3)), _mm256_setzero_ps(),
                    _mm256_setzero_ps()};
}
INLINE floats load_floats(const void *p) {
    const float *f = p;
    return (floats){_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8), _mm256_loadu_ps(f + 16), _mm256_loadu_ps(f + 24)};
}
INLINE void store_floats(float *p, floats v, int past_cache) {
    store_32(p, _mm256_castps_si256(v.a), past_cache);
    store_32(p + 8, _mm256_castps_si256(v.b), past_cache);
    store_32(p + 16, _mm256_castps_si256(v.c), past_cache);
    store_32(p + 24, _mm256_castps_si256(v.d), past_cache);
}

INLINE floats subtract(floats x, floats y) { return MAP2(_mm256_sub_ps, x, y); }
INLINE floats multiply(floats x, floats y) { return MAP2(_mm256_mul_ps, x, y); }
INLINE floats product_plus(floats x, floats y, floats z) { return MAP3(_mm256_fmadd_ps, x, y, z); }

/* Bytes become dwords by a shuffle within lanes, eight from the first or the last half of sixteen bytes that both
 * lanes hold: vpmovzxbd, which crosses lanes, costs Zen cores more. */
INLINE __m256i eight_wide(__m256i v, int half) {
    const __m256i first = _mm256_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 4, -1, -1, -1, 5,
                                           -1, -1, -1, 6, -1, -1, -1, 7, -1, -1, -1);
    const __m256i last = _mm256_setr_epi8(8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11, -1, -1, -1, 12, -1, -1, -1,
                                          13, -1, -1, -1, 14, -1, -1, -1, 15, -1, -1, -1);
    return _mm256_shuffle_epi8(v, half ? last : first);
}
INLINE __m256i low_in_both(bytes v) { return _mm256_inserti128_si256(v, _mm256_castsi256_si128(v), 1); }
INLINE __m256i high_in_both(bytes v) { return _mm256_permute4x64_epi64(v, 0xEE); }

INLINE floats from_unsigned(bytes v) {
    const __m256i a = low_in_both(v), b = high_in_both(v);
    return (floats){_mm256_cvtepi32_ps(eight_wide(a, 0)), _mm256_cvtepi32_ps(eight_wide(b, 0)),
                    _mm256_cvtepi32_ps(eight_wide(a, 1)), _mm256_cvtepi32_ps(eight_wide(b, 1))};
}
/* Loaded into both lanes at once, nibbles need no shuffle across them. */
INLINE floats floats_of_nibbles(const void *p) {
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    const bytes low = field(v, 0, 15), high = field(v, 4, 15);
    return (floats){_mm256_cvtepi32_ps(eight_wide(low, 0)), _mm256_cvtepi32_ps(eight_wide(low, 1)),
                    _mm256_cvtepi32_ps(eight_wide(high, 0)), _mm256_cvtepi32_ps(eight_wide(high, 1))};
}
INLINE floats first_halves(floats x, floats y) { return (floats){x.a, x.b, y.a, y.b}; }
INLINE floats second_halves(floats x, floats y) { return (floats){x.c, x.d, y.c, y.d}; }

INLINE __m256 eight_signed(__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)); }
INLINE floats from_signed(bytes v) {
    const __m128i a = _mm256_castsi256_si128(v), b = _mm256_extracti128_si256(v, 1);
    return (floats){eight_signed(a), eight_signed(b), eight_signed(_mm_unpackhi_epi64(a, a)),
                    eight_signed(_mm_unpackhi_epi64(b, b))};
}
INLINE floats load_signed(const void *p) {
    const char *v = p;
    return (floats){eight_signed(_mm_loadl_epi64((const __m128i *)v)),
                    eight_signed(_mm_loadl_epi64((const __m128i *)(v + 8))),
                    eight_signed(_mm_loadl_epi64((const __m128i *)(v + 16))),
                    eight_signed(_mm_loadl_epi64((const __m128i *)(v + 24)))};
}

/* The eight levels are multiplied, not the values; sixteen would take two look-ups and a choice. */
INLINE floats scaled_codes(const int8_t *values, bytes codes, floats d, int few) {
    if (!few) return multiply(from_signed(lookup(values, codes)), d);
    const __m256 level = eight_signed(_mm_loadl_epi64((const __m128i *)values));
    const __m256i a = low_in_both(codes), b = high_in_both(codes);
    return (floats){_mm256_permutevar8x32_ps(_mm256_mul_ps(level, d.a), eight_wide(a, 0)),
                    _mm256_permutevar8x32_ps(_mm256_mul_ps(level, d.b), eight_wide(b, 0)),
                    _mm256_permutevar8x32_ps(_mm256_mul_ps(level, d.c), eight_wide(a, 1)),
                    _mm256_permutevar8x32_ps(_mm256_mul_ps(level, d.d), eight_wide(b, 1))};
}

INLINE floats load_halves(const void *p) {
    const __m128i *h = p;
    return (floats){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)),
                    _mm256_cvtph_ps(_mm_loadu_si128(h + 2)), _mm256_cvtph_ps(_mm_loadu_si128(h + 3))};
}
INLINE __m256 eight_bfloats(const __m128i *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
INLINE floats load_bfloats(const void *p) {
    const __m128i *h = p;
    return (floats){eight_bfloats(h), eight_bfloats(h + 1), eight_bfloats(h + 2), eight_bfloats(h + 3)};
}
INLINE __m256 canonical_nans_in(__m256 v) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(CANONICAL_NAN));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
INLINE floats canonical_nans(floats v) { return MAP1(canonical_nans_in, v); }

/* ---- 16-bit values ---- */

INLINE __m256i sixteen_halves(__m256 a, __m256 b) {
    return _mm256_setr_m128i(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT),
                             _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
}

/* Of sixteen floats, those at even places from one register and those at odd places from another, the high words. */
INLINE __m256i high_words(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd), 0xAA);
}
/* Their bfloats: nearest, ties to even. The high words are the bfloats, and the low ones decide which go up: where
 * low - 1 has its top bit set, or low itself if high is odd. */
INLINE __m256i any_bfloats(__m256 even, __m256 odd) {
    const __m256i high = high_words(even, odd);
    const __m256i low =
        _mm256_blend_epi16(_mm256_castps_si256(even), _mm256_slli_epi32(_mm256_castps_si256(odd), 16), 0xAA);
    const __m256i less = _mm256_subs_epu16(low, _mm256_andnot_si256(high, _mm256_set1_epi16(1)));
    return _mm256_sub_epi16(high, _mm256_cmpgt_epi16(_mm256_setzero_si256(), less));
}

/* The nearest bfloat, ties to even, of a finite number v = N * 2^e with 2^23 <= N < 2^24. 65535 * v lies within a
 * factor of 2^16 above it, where floats are 2^16 * 2^e apart, the distance of bfloats about v. So taking it, rounded,
 * from the exact 65536 * v leaves v rounded to a bfloat; ties go to even, for then N is even; and zeros keep their
 * sign. Just above a power of two, where 65535 * v is below the next, floats lie half as far apart, but v is near no
 * tie. Six instructions for sixteen values instead of eight: Q5_0 9.5 -> 10.5 Gweights/s in L2 (Zen 5, gcc 12). */
INLINE __m256 near_bfloat(__m256 v) {
    const __m256 k = _mm256_set1_ps(65536);
    return _mm256_fmsub_ps(v, k, _mm256_fmsub_ps(v, k, v));
}
INLINE __m256i bfloats_of_pairs(__m256 even, __m256 odd, int finite) {
    return finite ? high_words(near_bfloat(even), near_bfloat(odd)) : any_bfloats(even, odd);
}

/* Every other byte of eight in both lanes, from the first-th on, as the top or the bottom byte of a dword. */
INLINE __m256 every_other(bytes v, int first, int top) {
    const __m256i places = top ? _mm256_setr_epi32(0x00808080, 0x02808080, 0x04808080, 0x06808080, 0x00808080,
                                                   0x02808080, 0x04808080, 0x06808080)
                               : _mm256_setr_epi32((int)0x80808000, (int)0x80808002, (int)0x80808004, (int)0x80808006,
                                                   (int)0x80808000, (int)0x80808002, (int)0x80808004, (int)0x80808006);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(v, _mm256_add_epi32(places, _mm256_set1_epi32(first << 24 * top))));
}
INLINE floats from_paired(bytes v, int top) {
    return (floats){every_other(v, 0, top), every_other(v, 1, top), every_other(v, 8, top), every_other(v, 9, top)};
}
INLINE void store_paired_bfloats(uint16_t *p, floats v, int finite, int past_cache) {
    store_32(p, bfloats_of_pairs(v.a, v.b, finite), past_cache);
    store_32(p + 16, bfloats_of_pairs(v.c, v.d, finite), past_cache);
}
/* Signed bytes at the top of their dwords are 2^24 times too large, which d makes up for: it is no less than 2^-40, so
 * the product is the same. */
INLINE void store_scaled_bfloats(uint16_t *p, bytes codes, floats d, int finite, int past_cache) {
    store_paired_bfloats(p, multiply(from_paired(codes, 1), multiply(d, every(0x1p-24f))), finite, past_cache);
}
INLINE void store_affine_bfloats(uint16_t *p, bytes codes, floats d, floats m, int finite, int past_cache) {
    store_paired_bfloats(p, product_plus(from_paired(codes, 0), d, m), finite, past_cache);
}

INLINE void store_halves(uint16_t *p, floats v, int past_cache) {
    store_32(p, sixteen_halves(v.a, v.b), past_cache);
    store_32(p + 16, sixteen_halves(v.c, v.d), past_cache);
}
enum { FINITE_IS_FASTER = 1 };
/* Shuffles within 128-bit lanes leave the order 0-3, 8-11, 4-7, 12-15. */
INLINE __m256i sixteen_bfloats(__m256 a, __m256 b, int finite) {
    const __m256i r = bfloats_of_pairs(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD), finite);
    return _mm256_permute4x64_epi64(r, 0xD8);
}
INLINE void store_bfloats(uint16_t *p, floats v, int finite, int past_cache) {
    store_32(p, sixteen_bfloats(v.a, v.b, finite), past_cache);
    store_32(p + 16, sixteen_bfloats(v.c, v.d, finite), past_cache);
}

INLINE words words_of_halves(floats v) {
    const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12,
                                           14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i s = _mm256_shuffle_epi8(sixteen_halves(v.a, v.b), apart);
    return (words){_mm256_permute4x64_epi64(s, 0x88), _mm256_permute4x64_epi64(s, 0xDD)};
}
/* Packed as if the first eight stood at even places: 0, 8, 1, 9, 2, 10, 3, 11, and 4, 12 ... in the other lane. */
INLINE words words_of_bfloats(floats v, int finite) {
    const __m256i apart = _mm256_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15, 0, 4, 8, 12, 2, 6, 10,
                                           14, 1, 5, 9, 13, 3, 7, 11, 15);
    const __m256i s = _mm256_shuffle_epi8(bfloats_of_pairs(v.a, v.b, finite), apart);
    return (words){_mm256_permutevar8x32_epi32(s, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5)),
                   _mm256_permutevar8x32_epi32(s, _mm256_setr_epi32(2, 6, 3, 7, 2, 6, 3, 7))};
}
INLINE void store_words(uint16_t *p, words t, bytes codes, int past_cache) {
    const __m256i low = _mm256_shuffle_epi8(t.low, codes), high = _mm256_shuffle_epi8(t.high, codes);
    store_32(p, _mm256_unpacklo_epi8(low, high), past_cache);
    store_32(p + 16, _mm256_unpackhi_epi8(low, high), past_cache);
}

/* ---- sums of products ---- */

/* Two registers: four rows take eight of the sixteen, and leave the rest to the decoding. */
typedef struct {
    __m256 a, b;
} sums;

INLINE sums no_sums(void) { return (sums){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE sums accumulate(sums s, floats v, const float *x) {
    s.a = _mm256_fmadd_ps(v.a, _mm256_loadu_ps(x), s.a);
    s.b = _mm256_fmadd_ps(v.b, _mm256_loadu_ps(x + 8), s.b);
    s.a = _mm256_fmadd_ps(v.c, _mm256_loadu_ps(x + 16), s.a);
    s.b = _mm256_fmadd_ps(v.d, _mm256_loadu_ps(x + 24), s.b);
    return s;
}
INLINE void add_to_totals(double *total, sums s) {
    const __m256 both = _mm256_add_ps(s.a, s.b);
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(both));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(both, 1));
    _mm256_storeu_pd(total, _mm256_add_pd(_mm256_loadu_pd(total), low));
    _mm256_storeu_pd(total + 4, _mm256_add_pd(_mm256_loadu_pd(total + 4), high));
}

#undef MAP1
#undef MAP2
#undef MAP3

/* ---- codes: bytes as they stand here ---- */

/* Four of d for the first sixteen bytes, four of e for the others. */
INLINE __m256 two_scales(__m256 d, __m256 e) { return _mm256_blend_ps(d, e, 0xCC); }
INLINE __m256 eight_scales(floats d) { return two_scales(d.a, d.c); }
INLINE __m256i from_order(__m256i v) { return _mm256_permute4x64_epi64(v, 0xD8); }

#include "codes_x86.h"

#endif
