/* The lane words in AVX2: sixteen bytes are one xmm register, sixteen floats two ymm registers. */
#ifndef GGUFX_LANES_AVX2_H
#define GGUFX_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m128i bytes;
typedef struct {
    __m256 lo, hi;
} floats;

#include "x86_bytes.h"

/* ---- bytes that AVX-512 makes with mask registers ---- */

/* Byte i is 0xFF where bit i is set. */
static inline bytes spread(unsigned bits) {
    const bytes each_eight_times = _mm_set_epi64x(0x0101010101010101, 0);
    const bytes bit = _mm_set1_epi64x((long long)0x8040201008040201);
    const bytes v = _mm_shuffle_epi8(_mm_cvtsi32_si128((int)bits), each_eight_times);
    return _mm_cmpeq_epi8(_mm_and_si128(v, bit), bit);
}

static inline bytes bits_as(unsigned bits, int value) { return _mm_and_si128(spread(bits), every_byte(value)); }

static inline bytes negate_where(bytes v, unsigned bits) {
    const bytes m = spread(bits);
    return _mm_sub_epi8(_mm_xor_si128(v, m), m);
}

/* ---- floats ---- */

static inline floats every(float x) { return (floats){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline floats pair(float x, float y) { return (floats){_mm256_set1_ps(x), _mm256_set1_ps(y)}; }
static inline floats load_floats(const float *p) { return (floats){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void put(float *p, floats v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

static inline floats add(floats a, floats b) {
    return (floats){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline floats subtract(floats a, floats b) {
    return (floats){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline floats multiply(floats a, floats b) {
    return (floats){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline floats from_unsigned(bytes v) {
    return (floats){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)),
                    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v)))};
}
static inline floats from_signed(bytes v) {
    return (floats){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)))};
}

/* Sixteen 2-bit fields, lowest bits first. */
static inline floats from_crumbs(uint32_t bits) {
    const __m256i v = _mm256_set1_epi32((int)bits), three = _mm256_set1_epi32(3);
    const __m256i low = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i high = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
    return (floats){_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(v, low), three)),
                    _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(v, high), three))};
}

/* d where the bit is set, -d where it isn't. */
static inline floats plus_or_minus(unsigned bits, float d) {
    const __m256i v = _mm256_set1_epi32((int)~bits), sign = _mm256_set1_epi32((int)0x80000000);
    const __m256i lo = _mm256_sllv_epi32(v, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    const __m256i hi = _mm256_sllv_epi32(v, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16));
    const __m256 x = _mm256_set1_ps(d);
    return (floats){_mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_and_si256(lo, sign))),
                    _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_and_si256(hi, sign)))};
}

static inline floats load_halves(const void *p) {
    const __m128i *h = p;
    return (floats){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
static inline floats load_bfloats(const void *p) {
    const __m128i *h = p;
    return (floats){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1)), 16))};
}

/* ---- sixteen floats to sixteen halves ---- */

static inline __m256i halves_of(floats v) {
    return _mm256_setr_m128i(_mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT),
                             _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

static inline __m256i rounded_to_bf16(__m256 f) {
    const __m256i u = _mm256_castps_si256(f);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    /* Rounding could carry a NaN's fraction into its exponent and sign. */
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(r, _mm256_set1_epi32(0x7FC00000), nan), 16);
}

static inline __m256i bfloats_of(floats v) {
    const __m256i packed = _mm256_packus_epi32(rounded_to_bf16(v.lo), rounded_to_bf16(v.hi));
    return _mm256_permute4x64_epi64(packed, 0xD8); /* packus works within 128-bit lanes */
}

static inline void put_halves(uint16_t *p, floats v) { _mm256_storeu_si256((__m256i *)p, halves_of(v)); }
static inline void put_bfloats(uint16_t *p, floats v) { _mm256_storeu_si256((__m256i *)p, bfloats_of(v)); }

/* One 64-byte line of output past the cache. */
static inline void stream_line_f32(void *line, const float *p) {
    float *out = line;
    _mm256_stream_ps(out, _mm256_loadu_ps(p));
    _mm256_stream_ps(out + 8, _mm256_loadu_ps(p + 8));
}
static inline void stream_line_f16(void *line, const float *p) {
    __m256i *out = line;
    _mm256_stream_si256(out, halves_of(load_floats(p)));
    _mm256_stream_si256(out + 1, halves_of(load_floats(p + 16)));
}
static inline void stream_line_bf16(void *line, const float *p) {
    __m256i *out = line;
    _mm256_stream_si256(out, bfloats_of(load_floats(p)));
    _mm256_stream_si256(out + 1, bfloats_of(load_floats(p + 16)));
}
static inline void stream_fence(void) { _mm_sfence(); }

#endif
