/* Products with packed rows in AVX-512. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(AVX512_FEATURES)

#include "../lanes/avx512.h"

#define PATH avx512
#include "matmul_template.h"

TARGET_END
#else
typedef int ggufx_no_matmul_avx512; /* ISO C forbids an empty file */
#endif
