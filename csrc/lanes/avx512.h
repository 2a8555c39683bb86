/* The lane words in AVX-512 (F, BW, DQ, VL): sixteen bytes are one xmm register, sixteen floats one zmm register. */
#ifndef GGUFX_LANES_AVX512_H
#define GGUFX_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m128i bytes;
typedef __m512 floats;

#include "x86_bytes.h"

/* ---- bytes under a mask ---- */

static inline bytes bits_as(unsigned bits, int value) { return _mm_maskz_mov_epi8((__mmask16)bits, every_byte(value)); }
static inline bytes negate_where(bytes v, unsigned bits) {
    return _mm_mask_sub_epi8(v, (__mmask16)bits, _mm_setzero_si128(), v);
}

/* ---- floats ---- */

static inline floats every(float x) { return _mm512_set1_ps(x); }
static inline floats pair(float x, float y) { return _mm512_mask_mov_ps(_mm512_set1_ps(x), 0xFF00, _mm512_set1_ps(y)); }
static inline floats load_floats(const float *p) { return _mm512_loadu_ps(p); }
static inline void put(float *p, floats v) { _mm512_storeu_ps(p, v); }

static inline floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
static inline floats subtract(floats a, floats b) { return _mm512_sub_ps(a, b); }
static inline floats multiply(floats a, floats b) { return _mm512_mul_ps(a, b); }

static inline floats from_unsigned(bytes v) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v)); }
static inline floats from_signed(bytes v) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v)); }

/* Sixteen 2-bit fields, lowest bits first. */
static inline floats from_crumbs(uint32_t bits) {
    const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i v = _mm512_srlv_epi32(_mm512_set1_epi32((int)bits), at);
    return _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(3)));
}

/* d where the bit is set, -d where it isn't. */
static inline floats plus_or_minus(unsigned bits, float d) {
    return _mm512_mask_mov_ps(_mm512_set1_ps(-d), (__mmask16)bits, _mm512_set1_ps(d));
}

static inline floats load_halves(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline floats load_bfloats(const void *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* ---- sixteen floats to sixteen halves ---- */

static inline __m256i halves_of(floats v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

/* Not vcvtneps2bf16: that instruction flushes subnormal floats to zero. */
static inline __m256i bfloats_of(floats v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    /* Rounding could carry a NaN's fraction into its exponent and sign. */
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i safe = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7FC00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}

static inline void put_halves(uint16_t *p, floats v) { _mm256_storeu_si256((__m256i *)p, halves_of(v)); }
static inline void put_bfloats(uint16_t *p, floats v) { _mm256_storeu_si256((__m256i *)p, bfloats_of(v)); }

static inline __m512i both(__m256i lo, __m256i hi) { return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1); }

/* One 64-byte line of output past the cache. */
static inline void stream_line_f32(void *line, const float *p) { _mm512_stream_ps(line, _mm512_loadu_ps(p)); }
static inline void stream_line_f16(void *line, const float *p) {
    _mm512_stream_si512(line, both(halves_of(load_floats(p)), halves_of(load_floats(p + 16))));
}
static inline void stream_line_bf16(void *line, const float *p) {
    _mm512_stream_si512(line, both(bfloats_of(load_floats(p)), bfloats_of(load_floats(p + 16))));
}
static inline void stream_fence(void) { _mm_sfence(); }

#endif
