/* What compilers spell differently. */
#ifndef GGUFX_COMPILER_H
#define GGUFX_COMPILER_H

#define PRAGMA(text) _Pragma(#text)

/* INLINE: always, for a kernel must see the dtype it writes as a constant, and registers don't cross calls.
 * UNROLL(n): before a loop of constant, at most n turns; -O2 alone unrolls nothing. */
#if defined(_MSC_VER) && !defined(__clang__)
#define INLINE static __forceinline
#define UNROLL(n)
#elif defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL(n) PRAGMA(unroll)
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif

#endif
