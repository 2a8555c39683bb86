/* The AVX-512 encoders. */
#include "target.h"

#if GGUFX_X86
TARGET_BEGIN(AVX512_FEATURES)

#include "../lanes/encode_avx512.h"

#define PATH avx512
#include "encode_template.h"

TARGET_END
#else
typedef int ggufx_no_avx512_encoders; /* ISO C forbids an empty file */
#endif
