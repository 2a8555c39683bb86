/* Products with packed rows in NEON, which every aarch64 has. */
#include "../cpu.h"

#if GGUFX_NEON
#include "../lanes/neon.h"

#define PATH neon
#include "matmul_template.h"
#else
typedef int ggufx_no_matmul_neon; /* ISO C forbids an empty file */
#endif
