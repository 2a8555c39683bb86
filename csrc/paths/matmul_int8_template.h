/* A path's products of codes, once: the including file has chosen the target, the lanes and PATH (its name). */
#include <float.h>

#include "../path.h"
/* In L2 it takes Q4_K from 15.2 to 18.0, IQ4_XS from 12.6 to 16.9, IQ3_S from 7.4 to 9.6 Gweights/s (Zen 5, VNNI, gcc
 * 12); products of floats gain nothing. */
#define PARTS_UNROLLED
#include "kernels.h"

/* How far ahead the packed rows are fetched. */
enum { AHEAD = 1024 };

/* The same operations in the same order for each row, whether one or four are computed. Units go to two sums in turn,
 * so that no addition waits for the one before it. */
#define DOT(name, suffix, many, values, size)                                                                          \
    static void codes_##name##_##suffix(const uint8_t *src, const ggufx_codes *const *rows, size_t units,              \
                                        double (*totals)[GGUFX_TOTALS]) {                                              \
        if ((size) >= 2 * (values)) return; /* plain numbers have no codes */                                          \
        const ggufx_codes *x[many];                                                                                    \
        UNROLL(4) for (int r = 0; r < (many); r++) x[r] = rows[r];                                                     \
        while (units) {                                                                                                \
            const size_t run = units < GGUFX_RUN_CODES / (values) ? units : GGUFX_RUN_CODES / (values);                \
            for (size_t p = 0; p < run * (size); p += 64) __builtin_prefetch(src + AHEAD + p, 0, 3);                   \
            code_sums sum[many], other[many];                                                                          \
            UNROLL(4) for (int r = 0; r < (many); r++) sum[r] = other[r] = no_code_sums();                             \
            for (const uint8_t *const end = src + run * (size); src != end; src += (size)) {                           \
                decode_##name((const void *)src, code_sink(x, sum, many));                                             \
                UNROLL(4) for (int r = 0; r < (many); r++) {                                                           \
                    if (CODE_CHAINS == 2) {                                                                            \
                        const code_sums now = sum[r];                                                                  \
                        sum[r] = other[r];                                                                             \
                        other[r] = now;                                                                                \
                    }                                                                                                  \
                    x[r] += (values) / 32;                                                                             \
                }                                                                                                      \
            }                                                                                                          \
            UNROLL(4) for (int r = 0; r < (many); r++) {                                                               \
                add_code_sums_to_totals(totals[r], sum[r]);                                                            \
                if (CODE_CHAINS == 2) add_code_sums_to_totals(totals[r], other[r]);                                    \
            }                                                                                                          \
            units -= run;                                                                                              \
        }                                                                                                              \
    }
#define GGUFX_TYPE(name, id, values, size, ...) DOT(name, one, 1, values, size) DOT(name, four, 4, values, size)
#include "../types.def"
#undef GGUFX_TYPE

static void store_row(const float *x, ggufx_codes *out, size_t groups) {
    for (; groups; groups--, x += 32, out++) {
        const uint32_t bits = largest_magnitude(x);
        float most;
        memcpy(&most, &bits, sizeof most);
        /* Below that, 127 / most may be infinite. most - most is NaN if most is no number. */
        if (most >= 0x1p-119f && most <= FLT_MAX)
            store_codes(out, x, 127 / most, most / 127);
        else
            store_codes(out, x, 0, most - most);
    }
}

#define JOINED(a, b) a##b
#define SYMBOL_OF(x) JOINED(ggufx_code_dots_, x)
const ggufx_code_dots SYMBOL_OF(PATH) = {.store = store_row,
                                         .dot = {
#define GGUFX_TYPE(name, id, values, size, ...) [id] = {codes_##name##_one, codes_##name##_four},
#include "../types.def"
#undef GGUFX_TYPE
                                         }};
