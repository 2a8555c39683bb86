/* What one compiled path offers the driver. Each file in paths/ defines one of these from the same template. */
#ifndef GGUFX_PATH_H
#define GGUFX_PATH_H

#include <stddef.h>
#include <stdint.h>

#include "ggufx.h"

#define GGUFX_MAX_ID 43 /* one past the largest ggml id in types.def */

/* Decodes `units` whole units to the dtype it stands for. Reads and writes nothing beyond them. */
typedef void ggufx_decode_fn(const uint8_t *src, void *dst, size_t units);

typedef struct ggufx_path {
    const char *name;
    /* [id][0][dtype] stores through the cache, to any alignment; [id][1][dtype] past it, to 64-byte aligned outputs. */
    ggufx_decode_fn *decode[GGUFX_MAX_ID][2][GGUFX_DTYPES];
    /* Copies whole 64-byte lines past the cache; dst is 64-byte aligned. */
    void (*copy_past_cache)(void *dst, const void *tile, size_t lines);
    void (*fence)(void); /* orders the stores past the cache before whatever comes next */
} ggufx_path;

extern const ggufx_path ggufx_path_scalar, ggufx_path_avx2, ggufx_path_avx512, ggufx_path_neon;

const ggufx_path *ggufx_path_at(int i);

#endif
