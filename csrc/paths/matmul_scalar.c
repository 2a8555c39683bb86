/* Products with packed rows in plain C: runs are decoded first, by the kernels that the path has anyway. Inlined into
 * sixty functions as elsewhere, they would take 300 KB and 17 s to compile, and gain nothing. */
#include "../lanes/scalar.h"
#include "../path.h"

static void dot(ggufx_decode_fn *decode, size_t values, size_t size, size_t rows, const uint8_t *src,
                const float *const *x, size_t units, double (*totals)[GGUFX_TOTALS]) {
    float run[GGUFX_RUN_VALUES];
    for (size_t at = 0; units;) {
        const size_t now = units < GGUFX_RUN_VALUES / values ? units : GGUFX_RUN_VALUES / values, n = now * values;
        decode(src, run, now);
        for (size_t r = 0; r < rows; r++) {
            sums sum = no_sums();
            for (size_t i = 0; i < n; i += 32) sum = accumulate(sum, load_floats(run + i), x[r] + at + i);
            add_to_totals(totals[r], sum);
        }
        units -= now, src += now * size, at += n;
    }
}

#define GGUFX_TYPE(name, id, values, size, ...)                                                                        \
    static void one_##name(const uint8_t *src, const float *const *x, size_t units, double (*totals)[GGUFX_TOTALS]) {  \
        dot(ggufx_path_scalar.decode[id][0][GGUFX_F32], values, size, 1, src, x, units, totals);                       \
    }                                                                                                                  \
    static void four_##name(const uint8_t *src, const float *const *x, size_t units, double (*totals)[GGUFX_TOTALS]) { \
        dot(ggufx_path_scalar.decode[id][0][GGUFX_F32], values, size, 4, src, x, units, totals);                       \
    }
#include "../types.def"
#undef GGUFX_TYPE

const ggufx_dots ggufx_dots_scalar = {{
#define GGUFX_TYPE(name, id, values, size, ...) [id] = {one_##name, four_##name},
#include "../types.def"
#undef GGUFX_TYPE
}};
