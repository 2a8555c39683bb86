/* Products of codes in NEON. */
#include "../cpu.h"

#if GGUFX_NEON
#include "../lanes/neon.h"

#define PATH neon
#include "matmul_int8_template.h"
#else
typedef int ggufx_no_matmul_int8_neon; /* ISO C forbids an empty file */
#endif
