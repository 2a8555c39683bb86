/* The AVX2 path. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(AVX2_FEATURES)

#include "../lanes/avx2.h"

#define PATH avx2
#include "template.h"

TARGET_END
#else
typedef int ggufx_no_avx2; /* ISO C forbids an empty file */
#endif
