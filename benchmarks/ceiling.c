/* What memory allows, measured in the same run and on the same buffers as the decoders.
 * Built by ceilings.py with the system's C compiler. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Reads all of the source and writes all of the output past the cache, both front to back at their own pace: a decoder
 * of these sizes that computes nothing. */
__attribute__((target("avx2"))) void ceiling_move(const char *src, size_t src_bytes, char *dst, size_t dst_bytes) {
    enum { STEP = 4096 };
    __m256i mixed = _mm256_set1_epi32(1);
    size_t read = 0;
    for (size_t at = 0; at + STEP <= dst_bytes; at += STEP) {
        const size_t until = (size_t)((double)src_bytes * (double)(at + STEP) / (double)dst_bytes);
        for (; read + 32 <= until; read += 32)
            mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256((const __m256i *)(src + read)));
        for (size_t i = 0; i < STEP; i += 32) _mm256_stream_si256((__m256i *)(dst + at + i), mixed);
    }
    _mm_sfence();
}

/* Writes all of the output through the cache. */
__attribute__((target("avx2"))) void ceiling_fill(char *dst, size_t dst_bytes) {
    const __m256i v = _mm256_set1_epi32(2);
    for (size_t at = 0; at + 32 <= dst_bytes; at += 32) _mm256_store_si256((__m256i *)(dst + at), v);
    __asm__ volatile("" ::"r"(dst) : "memory");
}

#else

void ceiling_fill(char *dst, size_t dst_bytes) { memset(dst, 2, dst_bytes); }

void ceiling_move(const char *src, size_t src_bytes, char *dst, size_t dst_bytes) {
    uint64_t mixed = 1;
    for (size_t at = 0; at + 8 <= src_bytes; at += 8) {
        uint64_t word;
        memcpy(&word, src + at, 8);
        mixed ^= word;
    }
    memset(dst, (int)mixed, dst_bytes);
}

#endif
