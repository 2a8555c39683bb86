/* What one compiled path offers the driver. Each file in paths/ defines one of these from the same template. */
#ifndef GGUFX_PATH_H
#define GGUFX_PATH_H

#include <stddef.h>
#include <stdint.h>

#include "codes.h"
#include "ggufx.h"
#include "types.h"

/* Decodes `units` whole units to the dtype it stands for. Reads and writes nothing beyond them. */
typedef void ggufx_decode_fn(const uint8_t *src, void *dst, size_t units);

typedef struct ggufx_path {
    const char *name;
    /* [id][0][dtype] stores through the cache, to any alignment; [id][1][dtype] past it, to 64-byte aligned outputs. */
    ggufx_decode_fn *decode[GGUFX_IDS][2][GGUFX_DTYPES];
    /* Copies whole 64-byte lines past the cache; dst is 64-byte aligned. */
    void (*copy_past_cache)(void *dst, const void *tile, size_t lines);
    void (*fence)(void); /* orders the stores past the cache before whatever comes next */
} ggufx_path;

extern const ggufx_path ggufx_path_scalar, ggufx_path_avx2, ggufx_path_avx512, ggufx_path_neon;

const ggufx_path *ggufx_path_at(int i);

/* Products are summed up as floats over a run of values, whose sums then go into eight totals. With so few additions in
 * a lane (32 at most) rounding stays below 1e-6 of the sum of magnitudes however long a row is. A run is whole units.
 */
enum { GGUFX_RUN_VALUES = 512, GGUFX_TOTALS = 8, GGUFX_DOT_ROWS = 4 };

/* Adds the products of `units` units with one or four rows of x to the totals of each row. */
typedef void ggufx_dot_fn(const uint8_t *src, const float *const *x, size_t units, double (*totals)[GGUFX_TOTALS]);

typedef struct ggufx_dots {
    ggufx_dot_fn *dot[GGUFX_IDS][2]; /* [id][0] one row, [id][1] four */
} ggufx_dots;

/* The same of codes; their sums lose nothing that matters in longer runs. */
enum { GGUFX_RUN_CODES = 2048 };

typedef void ggufx_code_dot_fn(const uint8_t *src, const ggufx_codes *const *x, size_t units,
                               double (*totals)[GGUFX_TOTALS]);

typedef struct ggufx_code_dots {
    void (*store)(const float *x, ggufx_codes *out, size_t groups); /* x as codes */
    ggufx_code_dot_fn *dot[GGUFX_IDS][2];
} ggufx_code_dots;

extern const ggufx_code_dots ggufx_code_dots_avx2, ggufx_code_dots_vnni, ggufx_code_dots_neon, ggufx_code_dots_dotprod;

/* NULL where the path has none. */
const ggufx_code_dots *ggufx_code_dots_at(int i);

extern const ggufx_dots ggufx_dots_scalar, ggufx_dots_avx2, ggufx_dots_avx512, ggufx_dots_neon;

const ggufx_dots *ggufx_dots_at(int i);

#endif
