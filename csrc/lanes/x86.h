/* The words over bytes that AVX2 and AVX-512 have in common: 32 bytes are a ymm register in both, 16 an xmm. */
#ifndef GGUFX_LANES_X86_H
#define GGUFX_LANES_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "nan.h"

typedef __m256i bytes;
typedef __m128i sixteen;

/* ---- thirty-two bytes ---- */

INLINE bytes every_byte(int v) { return _mm256_set1_epi8((char)v); }

INLINE bytes field(bytes v, int shift, int mask) {
    const bytes moved = shift > 0 ? _mm256_srli_epi16(v, shift) : shift < 0 ? _mm256_slli_epi16(v, -shift) : v;
    return _mm256_and_si256(moved, every_byte(mask));
}
INLINE bytes either(bytes a, bytes b) { return _mm256_or_si256(a, b); }
INLINE bytes plus(bytes a, bytes b) { return _mm256_add_epi8(a, b); }
INLINE bytes minus(bytes a, int k) { return _mm256_sub_epi8(a, every_byte(k)); }
INLINE bytes greater(bytes v, int k) { return _mm256_cmpgt_epi8(v, every_byte(k)); }
INLINE bytes lookup(const int8_t *table, bytes index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), index);
}

INLINE __m128i two_eights(const void *a, const void *b) {
    /* vmovhps: one instruction to load and to join */
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64(a)), b));
}
INLINE __m128i four_fours(const void *a, const void *b, const void *c, const void *d) {
    int w[4];
    memcpy(w, a, 4), memcpy(w + 1, b, 4), memcpy(w + 2, c, 4), memcpy(w + 3, d, 4);
    return _mm_unpacklo_epi64(_mm_insert_epi32(_mm_cvtsi32_si128(w[0]), w[1], 1),
                              _mm_insert_epi32(_mm_cvtsi32_si128(w[2]), w[3], 1));
}

/* ---- sixteen bytes ---- */

INLINE sixteen load_sixteen(const void *p) { return _mm_loadu_si128(p); }
INLINE sixteen every_one(void) { return _mm_set1_epi8(1); }
INLINE sixteen thrice_of_sixteen(sixteen v) { return _mm_add_epi8(_mm_add_epi8(v, v), v); }
INLINE sixteen from_words(uint64_t lo, uint64_t hi) { return _mm_set_epi64x((long long)hi, (long long)lo); }
INLINE sixteen nibbles8(const void *p) {
    const __m128i v = _mm_loadl_epi64(p);
    return _mm_and_si128(_mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4)), _mm_set1_epi8(15));
}
INLINE sixteen nibbles_in_order(const void *p) {
    const __m128i v = _mm_loadl_epi64(p);
    return _mm_and_si128(_mm_unpacklo_epi8(v, _mm_srli_epi16(v, 4)), _mm_set1_epi8(15));
}
INLINE sixteen field_of_sixteen(sixteen v, int shift, int mask) {
    const sixteen moved = shift > 0 ? _mm_srli_epi16(v, shift) : shift < 0 ? _mm_slli_epi16(v, -shift) : v;
    return _mm_and_si128(moved, _mm_set1_epi8((char)mask));
}
INLINE sixteen combine(sixteen a, sixteen b, int less) {
    return _mm_sub_epi8(_mm_or_si128(a, b), _mm_set1_epi8((char)less));
}

INLINE void store_signed(float *out, sixteen v, float d) {
    const __m256 x = _mm256_set1_ps(d);
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), x));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v))), x));
}
INLINE void store_unsigned(float *out, sixteen v, float d, float e) {
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)), _mm256_set1_ps(d)));
    _mm256_storeu_ps(
        out + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v))), _mm256_set1_ps(e)));
}

/* ---- indices into the grids, stored for scalar loads ---- */

INLINE void store_bytes(uint8_t *p, sixteen v) { _mm_storeu_si128((__m128i *)p, v); }
INLINE void store_wide(uint16_t *p, sixteen low, sixteen high) {
    _mm_storeu_si128((__m128i *)p, _mm_unpacklo_epi8(low, high));
    _mm_storeu_si128((__m128i *)p + 1, _mm_unpackhi_epi8(low, high));
}
INLINE uint64_t four_of_nine_bits(uint32_t low, unsigned high) {
    return _pdep_u64(low, 0x00FF00FF00FF00FF) | _pdep_u64(high, 0x0100010001000100);
}

INLINE void two_halves(uint32_t both, float *first, float *second) {
    const __m128 f = _mm_cvtph_ps(_mm_cvtsi32_si128((int)both));
    *first = _mm_cvtss_f32(f);
    *second = _mm_cvtss_f32(_mm_movehdup_ps(f));
}
INLINE float half(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

/* A register's worth of output; past the cache only to aligned addresses. */
enum { STREAMS = 1 };
INLINE void store_32(void *p, __m256i v, int past_cache) {
    if (past_cache)
        _mm256_stream_si256(p, v);
    else
        _mm256_storeu_si256(p, v);
}
INLINE void copy_line_past_cache(void *line, const void *p) {
    /* By halves: a load of the whole line couldn't be served from two stores of half of it that are still under way. */
    _mm256_stream_si256(line, _mm256_loadu_si256(p));
    _mm256_stream_si256((__m256i *)line + 1, _mm256_loadu_si256((const __m256i *)p + 1));
}
INLINE void stream_fence(void) { _mm_sfence(); }

#endif
