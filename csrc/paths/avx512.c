/* The AVX-512 path. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(AVX512_FEATURES)

#include "../lanes/avx512.h"

#define PATH avx512
#include "template.h"

TARGET_END
#else
typedef int ggufx_no_avx512; /* ISO C forbids an empty file */
#endif
