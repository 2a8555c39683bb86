#include "cpu.h"

#if GGUFX_NEON && defined(__linux__)
#include <sys/auxv.h>

/* HWCAP_ASIMDDP of Linux' asm/hwcap.h, which older headers lack. */
int ggufx_cpu_has_dotprod(void) { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }
#elif GGUFX_NEON && defined(__APPLE__)
int ggufx_cpu_has_dotprod(void) { return 1; } /* since the A13 and in every M1 */
#else
int ggufx_cpu_has_dotprod(void) { return 0; }
#endif

#if GGUFX_X86
#include <cpuid.h>
#include <xmmintrin.h>

/* The bits are those of the Intel SDM, volume 2, CPUID leaves 1 and 7, and of XCR0 (volume 1, chapter 13). */
enum { FMA = 1 << 12, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29 }; /* leaf 1, ecx */
enum { BMI1 = 1 << 3, AVX2 = 1 << 5, BMI2 = 1 << 8 };                     /* leaf 7, ebx */
enum { F = 1 << 16, DQ = 1 << 17, BW = 1 << 30, VL = 1u << 31 };          /* leaf 7, ebx: AVX-512 */
enum { VNNI = 1 << 11 };                                                  /* leaf 7, ecx: AVX-512 */
enum { STATE_AVX = 0x06, STATE_AVX512 = 0xE6 }; /* XCR0: xmm, ymm; opmask, zmm low, zmm high */

static int has(unsigned leaf7_ebx, unsigned state) {
    unsigned a, b, c, d, xcr0, high;
    const unsigned leaf1_ecx = FMA | OSXSAVE | AVX | F16C;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1_ecx) != leaf1_ecx) return 0;
    /* xgetbv by its encoding: the intrinsic would need a target flag of its own. */
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & state) != state) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & leaf7_ebx) == leaf7_ebx;
}

int ggufx_cpu_has_avx2(void) { return has(AVX2 | BMI1 | BMI2, STATE_AVX); }
int ggufx_cpu_has_avx512(void) { return has(AVX2 | BMI1 | BMI2 | F | DQ | BW | VL, STATE_AVX512); }
int ggufx_cpu_has_vnni(void) {
    unsigned a, b, c, d;
    return ggufx_cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & VNNI);
}

enum { MXCSR_DEFAULT = 0x1F80 }; /* all exceptions masked, nearest, no flushing; Intel SDM, volume 1, 10.2.3 */

uint64_t ggufx_fp_default(void) {
    const unsigned before = _mm_getcsr();
    if ((before & ~0x3Fu) != MXCSR_DEFAULT) _mm_setcsr(MXCSR_DEFAULT); /* the low six bits only record exceptions */
    return before;
}

void ggufx_fp_restore(uint64_t control) {
    if (((unsigned)control & ~0x3Fu) != MXCSR_DEFAULT) _mm_setcsr((unsigned)control);
}

#else

int ggufx_cpu_has_avx2(void) { return 0; }
int ggufx_cpu_has_avx512(void) { return 0; }
int ggufx_cpu_has_vnni(void) { return 0; }

#if defined(__aarch64__)
/* FPCR is zero at start: nearest, no flushing, no default NaN. */
uint64_t ggufx_fp_default(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return before;
}

void ggufx_fp_restore(uint64_t control) {
    if (control) __asm__ volatile("msr fpcr, %0" : : "r"(control));
}
#else
uint64_t ggufx_fp_default(void) { return 0; }
void ggufx_fp_restore(uint64_t control) { (void)control; }
#endif

#endif
