/* TARGET_BEGIN(features) to TARGET_END: functions compiled for a CPU with these features. It does what per-file
 * compiler flags would, and keeps setup.py plain. What stands here is what cpu.c asks the CPU for. */
#ifndef GGUFX_TARGET_H
#define GGUFX_TARGET_H

#include "../compiler.h"
#include "../cpu.h"

#define AVX2_FEATURES "avx2,bmi,bmi2,f16c,fma"
#define AVX512_FEATURES "avx2,bmi,bmi2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl"
#define VNNI_FEATURES AVX512_FEATURES ",avx512vnni"

#if defined(__clang__)
#define DOTPROD_FEATURES "dotprod"
#define TARGET_BEGIN(features) PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TARGET_END PRAGMA(clang attribute pop)
#else
#define DOTPROD_FEATURES "arch=armv8.2-a+dotprod"
#define TARGET_BEGIN(features) PRAGMA(GCC push_options) PRAGMA(GCC target(features))
#define TARGET_END PRAGMA(GCC pop_options)
#endif

/* After the macros: the intrinsics themselves must not be compiled for a target of ours. */
#if GGUFX_X86
#include <immintrin.h>
#endif

#endif
