/* The AVX512 path. A target pragma does what per-file compiler flags would, and keeps setup.py plain. */
#include "../cpu.h"

#if GGUFX_X86
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl"))),         \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "../lanes/avx512.h"

#define PATH avx512
#include "template.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int ggufx_no_avx512; /* ISO C forbids an empty file */
#endif
