/* Products of codes in AVX2. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(AVX2_FEATURES)

#include "../lanes/avx2.h"

#define PATH avx2
#include "matmul_int8_template.h"

TARGET_END
#else
typedef int ggufx_no_matmul_int8_avx2; /* ISO C forbids an empty file */
#endif
