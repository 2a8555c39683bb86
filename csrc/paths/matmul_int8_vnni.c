/* Products of codes in AVX-512 with its VNNI. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(VNNI_FEATURES)

#define GGUFX_VNNI
#include "../lanes/avx512.h"

#define PATH vnni
#include "matmul_int8_template.h"

TARGET_END
#else
typedef int ggufx_no_matmul_int8_vnni; /* ISO C forbids an empty file */
#endif
