/* Thirty-two values of x as codes, which products of codes take. */
#ifndef GGUFX_CODES_H
#define GGUFX_CODES_H

#include <stdint.h>

typedef struct ggufx_codes {
    int8_t q[32];     /* -127 to 127 */
    int32_t less[8];  /* -128 times the sum of four neighbouring codes */
    float sums[8];    /* of what the four stand for */
    float scale;      /* NaN where a value is infinite or NaN */
    float padding[7]; /* to two cache lines */
} ggufx_codes;

#endif
