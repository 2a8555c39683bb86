/* The one number that all lanes share. */
#ifndef GGUFX_LANES_NAN_H
#define GGUFX_LANES_NAN_H

#include <stdint.h>
#include <string.h>

#include "../compiler.h"

enum { CANONICAL_NAN = 0x7FC00000 };

/* Any NaN as the one whose low bits are clear. */
INLINE float canonical(float f) {
    const uint32_t bits = CANONICAL_NAN;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    return f == f ? f : nan;
}

#endif
