/* How lanes and kernels are compiled, and the one number all lanes share. */
#ifndef GGUFX_LANES_INLINE_H
#define GGUFX_LANES_INLINE_H

#include <stdint.h>
#include <string.h>

/* Always inlined: a kernel must see the dtype it writes as a constant, and registers don't cross calls. */
#if defined(_MSC_VER) && !defined(__clang__)
#define INLINE static __forceinline
#define UNROLL
#elif defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { CANONICAL_NAN = 0x7FC00000 };

/* Any NaN as the one whose low bits are clear. */
INLINE float canonical(float f) {
    const uint32_t bits = CANONICAL_NAN;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    return f == f ? f : nan;
}

#endif
