/* Which instruction sets this build can contain, and which this CPU has. */
#ifndef GGUFX_CPU_H
#define GGUFX_CPU_H

#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#define GGUFX_X86 1
#else
#define GGUFX_X86 0
#endif

#if defined(__aarch64__) && defined(__ARM_NEON)
#define GGUFX_NEON 1
#else
#define GGUFX_NEON 0
#endif

/* Whether the compiler can use NEON's dot products in one file; older clangs only where all files may. */
#if GGUFX_NEON && (!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD))
#define GGUFX_DOTPROD_BUILT 1
#else
#define GGUFX_DOTPROD_BUILT 0
#endif

/* True where CPU and operating system both support everything the path's target pragma names. */
int ggufx_cpu_has_avx2(void);
int ggufx_cpu_has_avx512(void);
int ggufx_cpu_has_vnni(void);    /* beside AVX-512 */
int ggufx_cpu_has_dotprod(void); /* beside NEON */

/* Sets this thread's floating-point control to what the language starts with (round to nearest, subnormals kept) and
 * returns what it was; other libraries leave flush-to-zero on, which would change decoded bits. */
uint64_t ggufx_fp_default(void);
void ggufx_fp_restore(uint64_t control);

#endif
