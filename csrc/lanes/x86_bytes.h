/* The words over sixteen bytes that AVX2 and AVX-512 have in common: `bytes` is __m128i in both. */
#ifndef GGUFX_LANES_X86_BYTES_H
#define GGUFX_LANES_X86_BYTES_H

static inline bytes load_bytes(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline bytes every_byte(int v) { return _mm_set1_epi8((char)v); }

/* (each byte >> shift) & mask; a negative shift goes left. Constants at every call. */
static inline bytes field(bytes v, int shift, int mask) {
    const bytes moved = shift > 0 ? _mm_srli_epi16(v, shift) : shift < 0 ? _mm_slli_epi16(v, -shift) : v;
    return _mm_and_si128(moved, every_byte(mask));
}

static inline bytes either(bytes a, bytes b) { return _mm_or_si128(a, b); }
static inline bytes plus(bytes a, bytes b) { return _mm_add_epi8(a, b); }
static inline bytes minus(bytes a, int k) { return _mm_sub_epi8(a, every_byte(k)); }

static inline bytes complement(bytes a) { return _mm_xor_si128(a, _mm_set1_epi32(-1)); }

/* 0xFF where the signed byte is greater than k. */
static inline bytes greater(bytes v, int k) { return _mm_cmpgt_epi8(v, every_byte(k)); }

/* table[index] for indices below 16. */
static inline bytes lookup(const void *table, bytes index) { return _mm_shuffle_epi8(load_bytes(table), index); }

/* Two groups of eight bytes, four groups of four. */
static inline bytes join8(const void *a, const void *b) {
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)a), _mm_loadl_epi64((const __m128i *)b));
}
static inline bytes join4(const void *a, const void *b, const void *c, const void *d) {
    int w[4];
    memcpy(w, a, 4), memcpy(w + 1, b, 4), memcpy(w + 2, c, 4), memcpy(w + 3, d, 4);
    return _mm_unpacklo_epi64(_mm_insert_epi32(_mm_cvtsi32_si128(w[0]), w[1], 1),
                              _mm_insert_epi32(_mm_cvtsi32_si128(w[2]), w[3], 1));
}
static inline bytes from_words(uint64_t lo, uint64_t hi) { return _mm_set_epi64x((long long)hi, (long long)lo); }

/* The low nibbles of eight bytes, then their high nibbles. */
static inline bytes nibbles8(const void *p) {
    const bytes v = _mm_loadl_epi64((const __m128i *)p);
    return _mm_and_si128(_mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4)), every_byte(15));
}

static inline float half(uint16_t h) { return _cvtsh_ss(h); }

#endif
