/* A path's products with packed rows, once: the including file has chosen the target, the lanes and PATH (its name). */
#include "../path.h"
#include "kernels.h"

/* How far ahead the packed rows are fetched. */
enum { AHEAD = 1024 };

/* The same operations in the same order for each row, whether one or four are computed. */
#define DOT(name, suffix, many, values, size)                                                                          \
    static void dot_##name##_##suffix(const uint8_t *src, const float *const *rows, size_t units,                      \
                                      double (*totals)[GGUFX_TOTALS]) {                                                \
        const float *x[many];                                                                                          \
        for (int r = 0; r < (many); r++) x[r] = rows[r];                                                               \
        for (size_t at = 0; units;) {                                                                                  \
            const size_t run = units < GGUFX_RUN_VALUES / (values) ? units : GGUFX_RUN_VALUES / (values);              \
            for (size_t p = 0; p < run * (size); p += 64) __builtin_prefetch(src + AHEAD + p, 0, 3);                   \
            sums sum[many];                                                                                            \
            UNROLL(4) for (int r = 0; r < (many); r++) sum[r] = no_sums();                                             \
            for (size_t u = 0; u < run; u++, src += (size), at += (values))                                            \
                decode_##name((const void *)src, sum_sink(x, at, sum, many));                                          \
            UNROLL(4) for (int r = 0; r < (many); r++) add_to_totals(totals[r], sum[r]);                               \
            units -= run;                                                                                              \
        }                                                                                                              \
    }
#define GGUFX_TYPE(name, id, values, size, ...) DOT(name, one, 1, values, size) DOT(name, four, 4, values, size)
#include "../types.def"
#undef GGUFX_TYPE

#define JOINED(a, b) a##b
#define SYMBOL_OF(x) JOINED(ggufx_dots_, x)
const ggufx_dots SYMBOL_OF(PATH) = {{
#define GGUFX_TYPE(name, id, values, size, ...) [id] = {dot_##name##_one, dot_##name##_four},
#include "../types.def"
#undef GGUFX_TYPE
}};
