/* The AVX2 encoders. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(AVX2_FEATURES)

#include "../lanes/encode_avx2.h"

#define PATH avx2
#include "encode_template.h"

TARGET_END
#else
typedef int ggufx_no_avx2_encoders; /* ISO C forbids an empty file */
#endif
