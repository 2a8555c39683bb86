/* The lane words in AVX2: 32 bytes are one ymm register, 32 floats four. */
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

INLINE bytes add_where(bytes v, uint32_t bits, int value) {
    const __m256i each_eight_times = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i of_byte = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), each_eight_times), bit);
    return _mm256_add_epi8(v, _mm256_and_si256(_mm256_cmpeq_epi8(of_byte, bit), every_byte(value)));
}

/* ---- floats ---- */

/* One operation on all four registers. Written out: compilers keep arrays in memory that a loop runs over. */
#define MAP1(f, x) ((floats){f(x.a), f(x.b), f(x.c), f(x.d)})
#define MAP2(f, x, y) ((floats){f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)})

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
    return (floats){_mm256_cvtepi32_ps(eight_wide(a, 0)), _mm256_cvtepi32_ps(eight_wide(a, 1)),
                    _mm256_cvtepi32_ps(eight_wide(b, 0)), _mm256_cvtepi32_ps(eight_wide(b, 1))};
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
    return (floats){eight_signed(a), eight_signed(_mm_unpackhi_epi64(a, a)), eight_signed(b),
                    eight_signed(_mm_unpackhi_epi64(b, b))};
}
INLINE floats load_signed(const void *p) {
    const char *v = p;
    return (floats){eight_signed(_mm_loadl_epi64((const __m128i *)v)),
                    eight_signed(_mm_loadl_epi64((const __m128i *)(v + 8))),
                    eight_signed(_mm_loadl_epi64((const __m128i *)(v + 16))),
                    eight_signed(_mm_loadl_epi64((const __m128i *)(v + 24)))};
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

/* Nearest, ties to even, in the high half of each lane. */
INLINE __m256i rounded_to_bf16(__m256 f) {
    const __m256i u = _mm256_castps_si256(f);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
}
INLINE __m256i sixteen_bfloats(__m256 a, __m256 b) {
    const __m256i packed =
        _mm256_packus_epi32(_mm256_srli_epi32(rounded_to_bf16(a), 16), _mm256_srli_epi32(rounded_to_bf16(b), 16));
    return _mm256_permute4x64_epi64(packed, 0xD8); /* packus works within 128-bit lanes */
}

INLINE void store_halves(uint16_t *p, floats v, int past_cache) {
    store_32(p, sixteen_halves(v.a, v.b), past_cache);
    store_32(p + 16, sixteen_halves(v.c, v.d), past_cache);
}
INLINE void store_bfloats(uint16_t *p, floats v, int past_cache) {
    store_32(p, sixteen_bfloats(v.a, v.b), past_cache);
    store_32(p + 16, sixteen_bfloats(v.c, v.d), past_cache);
}

INLINE words split_words(__m256i v) {
    const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12,
                                           14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i s = _mm256_shuffle_epi8(v, apart);
    return (words){_mm256_permute4x64_epi64(s, 0x88), _mm256_permute4x64_epi64(s, 0xDD)};
}
INLINE words words_of_halves(floats v) { return split_words(sixteen_halves(v.a, v.b)); }
INLINE words words_of_bfloats(floats v) { return split_words(sixteen_bfloats(v.a, v.b)); }
INLINE void store_words(uint16_t *p, words t, bytes codes, int past_cache) {
    const __m256i low = _mm256_shuffle_epi8(t.low, codes), high = _mm256_shuffle_epi8(t.high, codes);
    const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    store_32(p, _mm256_permute2x128_si256(a, b, 0x20), past_cache);
    store_32(p + 16, _mm256_permute2x128_si256(a, b, 0x31), past_cache);
}

#undef MAP1
#undef MAP2

#endif
