/* What a path offers the encoder's driver: LANES blocks at a time of every encoded type of types.def. */
#ifndef GGUFX_ENCODE_H
#define GGUFX_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "ggufx.h"
#include "types.h"

enum { GGUFX_MAX_LANES = 16 };

/* The codebook of an IQ type with the neighbours of every point outside it; see ggufx/codec/reference/lattice.py. */
typedef struct ggufx_lattice {
    const int32_t *place;       /* word of levels -> entry, or -1 - start of its neighbours */
    const uint16_t *count;      /* word -> number of neighbours */
    const uint16_t *neighbours; /* words, each list padded to a multiple of 16 */
    const uint16_t *words;      /* entry -> word */
} ggufx_lattice;

/* Pointers to the values, the importance (qw itself is NULL without one) and the bytes of as many blocks as the path
 * has lanes. Lanes may point to the same input; outputs must differ. */
typedef void ggufx_encode_fn(const float *const *x, const float *const *qw, const float *row_mean,
                             const ggufx_lattice *lattice, uint8_t *const *block);

typedef struct ggufx_encoders {
    int lanes;
    ggufx_encode_fn *encode[GGUFX_IDS];
    /* Mean squares of as many rows as there are lanes. */
    void (*row_means)(const float *const *rows, size_t width, float *means);
    int (*all_finite)(const float *x, size_t n);
} ggufx_encoders;

extern const ggufx_encoders ggufx_encoders_scalar, ggufx_encoders_avx2, ggufx_encoders_avx512, ggufx_encoders_neon;

const ggufx_encoders *ggufx_encoders_at(int i);

#endif
