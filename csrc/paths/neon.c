/* The aarch64 path. NEON is part of that architecture, so the compiler's own target is enough. */
#include "../cpu.h"

#if GGUFX_NEON
#include "../lanes/neon.h"

#define PATH neon
#include "template.h"
#else
typedef int ggufx_no_neon; /* ISO C forbids an empty file */
#endif
