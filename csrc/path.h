/* What one compiled path offers the driver. Each file in paths/ defines one of these from the same template. */
#ifndef GGUFX_PATH_H
#define GGUFX_PATH_H

#include <stddef.h>
#include <stdint.h>

#include "ggufx.h"

#define GGUFX_MAX_ID 43 /* one past the largest ggml id in types.def */

/* Decodes `units` whole units to float32. Reads and writes nothing beyond them; any alignment. */
typedef void ggufx_decode_fn(const uint8_t *src, float *dst, size_t units);

/* Writes n floats from a 64-byte aligned tile in the output's dtype; n is any number. */
typedef void ggufx_store_fn(const float *tile, void *dst, size_t n);

/* Writes whole 64-byte lines past the cache; dst is 64-byte aligned, n fills whole lines. */
typedef void ggufx_stream_fn(const float *tile, void *dst, size_t n);

typedef struct ggufx_path {
    const char *name;
    ggufx_decode_fn *decode[GGUFX_MAX_ID];
    ggufx_store_fn *store[GGUFX_DTYPES];
    ggufx_stream_fn *stream[GGUFX_DTYPES];
    void (*stream_end)(void); /* orders the streamed stores before whatever comes next */
} ggufx_path;

extern const ggufx_path ggufx_path_scalar, ggufx_path_avx2, ggufx_path_avx512, ggufx_path_neon;

const ggufx_path *ggufx_path_at(int i);

#endif
