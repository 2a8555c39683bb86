/* The aarch64 encoders. NEON is part of that architecture, so the compiler's own target is enough. */
#include "../cpu.h"

#if GGUFX_NEON
#include "../lanes/encode_neon.h"

#define PATH neon
#include "encode_template.h"
#else
typedef int ggufx_no_neon_encoders; /* ISO C forbids an empty file */
#endif
