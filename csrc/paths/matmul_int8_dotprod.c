/* Products of codes in NEON with its dot products. */
#include "target.h"

#if GGUFX_DOTPROD_BUILT
#include <arm_neon.h>
TARGET_BEGIN(DOTPROD_FEATURES)

#define GGUFX_DOTPROD
#include "../lanes/neon.h"

#define PATH dotprod
#include "matmul_int8_template.h"

TARGET_END
#else
typedef int ggufx_no_matmul_int8_dotprod; /* ISO C forbids an empty file */
#endif
