/* Between the caller and the products: which rows go together, and a last unit of plain numbers that isn't whole. */
#include <string.h>

#include "cpu.h"
#include "path.h"

#define GGUFX_TYPE(name, id, values, ...)                                                                              \
    _Static_assert(GGUFX_RUN_VALUES % (values) == 0, "a run must hold whole units of " #name);
#include "types.def"
#undef GGUFX_TYPE

/* One packed row with one or four rows of x. */
static void dots(ggufx_dot_fn *dot, ggufx_type u, const uint8_t *src, const float *const *x, int rows, size_t width,
                 double (*totals)[GGUFX_TOTALS]) {
    const size_t whole = width / u.values, rest = width % u.values;
    memset(totals, 0, (size_t)rows * sizeof *totals);
    if (whole) dot(src, x, whole, totals);
    if (rest) { /* completed with zeros, whose products add nothing */
        uint8_t unit[32 * 4] = {0};
        float padded[GGUFX_DOT_ROWS][32] = {{0}};
        const float *last[GGUFX_DOT_ROWS];
        memcpy(unit, src + whole * u.bytes, rest * u.bytes / u.values);
        for (int r = 0; r < rows; r++) {
            memcpy(padded[r], x[r] + whole * u.values, rest * sizeof(float));
            last[r] = padded[r];
        }
        dot(unit, last, 1, totals);
    }
}

static float total_of(const double *t) {
    return (float)(((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7])));
}

void ggufx_matmul(int path, int type, const float *x, size_t rows, size_t width, const void *packed, size_t count,
                  float *out, size_t stride) {
    ggufx_dot_fn *const *const dot = ggufx_dots_at(path)->dot[type];
    const ggufx_type u = ggufx_types[type];
    const size_t row_bytes = width / u.values * u.bytes + width % u.values * u.bytes / u.values;
    const uint8_t *src = packed;
    const uint64_t control = ggufx_fp_default();
    for (size_t n = 0; n < count; n++, src += row_bytes)
        for (size_t first = 0; first < rows; first += GGUFX_DOT_ROWS) {
            const size_t left = rows - first < GGUFX_DOT_ROWS ? rows - first : GGUFX_DOT_ROWS;
            const float *part[GGUFX_DOT_ROWS];
            double totals[GGUFX_DOT_ROWS][GGUFX_TOTALS];
            /* Two or three rows are computed as four, the last of them more than once. */
            for (size_t r = 0; r < GGUFX_DOT_ROWS; r++) part[r] = x + (first + (r < left ? r : left - 1)) * width;
            dots(dot[left > 1], u, src, part, left > 1 ? GGUFX_DOT_ROWS : 1, width, totals);
            for (size_t r = 0; r < left; r++) out[(first + r) * stride + n] = total_of(totals[r]);
        }
    ggufx_fp_restore(control);
}
