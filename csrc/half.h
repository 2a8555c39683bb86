/* Half-precision numbers by integer arithmetic, for the paths whose target has no instruction for it. */
#ifndef GGUFX_HALF_H
#define GGUFX_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* IEEE 754 binary16 to binary32, exact. */
static inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FF;
    if (exponent == 31) return bits_float(sign | 0x7F800000 | fraction << 13);
    /* 2^-24 is the unit of subnormal halves; the product of a ten-bit integer with it is exact. */
    if (exponent == 0) return bits_float(sign | float_bits((float)fraction * 0x1p-24f));
    return bits_float(sign | (exponent + 112) << 23 | fraction << 13); /* 112 = 127 - 15, the biases */
}

/* Nearest half, ties to even. */
static inline uint16_t float_to_half(float f) {
    const uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (magnitude >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65520, halfway past the largest half */
    if (magnitude < 0x38800000)                                    /* below 2^-14: a subnormal half */
        /* Adding 1/2 leaves the sum's last bit worth 2^-24, so that the addition itself rounds to even. */
        return (uint16_t)(sign | (float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f)));
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13));
}

/* Nearest bfloat16, ties to even; NaN stays NaN. */
static inline uint16_t float_to_bf16(float f) {
    const uint32_t u = float_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

#endif
