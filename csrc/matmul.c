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

/* Packed rows stay in the cache while all rows of x pass by, four at a time. */
enum { CHUNK_BYTES = 1 << 18 };

typedef struct {
    ggufx_dot_fn *const *dot;
    ggufx_code_dot_fn *const *code_dot; /* NULL: without codes */
    ggufx_type u;
    const float *x;
    const ggufx_codes *codes;
    size_t width, row_bytes;
} job;

static void products(const job *j, const uint8_t *src, size_t first, size_t left, float *out, size_t stride) {
    const int many = left > 1, rows = many ? GGUFX_DOT_ROWS : 1;
    const float *x[GGUFX_DOT_ROWS];
    double totals[GGUFX_DOT_ROWS][GGUFX_TOTALS];
    /* Two or three rows are computed as four, the last of them more than once. */
    for (size_t r = 0; r < GGUFX_DOT_ROWS; r++) x[r] = j->x + (first + (r < left ? r : left - 1)) * j->width;
    if (!j->code_dot) {
        dots(j->dot[many], j->u, src, x, rows, j->width, totals);
        for (size_t r = 0; r < left; r++) out[r * stride] = total_of(totals[r]);
        return;
    }
    const ggufx_codes *codes[GGUFX_DOT_ROWS];
    for (size_t r = 0; r < GGUFX_DOT_ROWS; r++)
        codes[r] = j->codes + (first + (r < left ? r : left - 1)) * (j->width / 32);
    memset(totals, 0, (size_t)rows * sizeof *totals);
    j->code_dot[many](src, codes, j->width / j->u.values, totals);
    for (size_t r = 0; r < left; r++) {
        float total = total_of(totals[r]);
        if (!(total - total == 0)) { /* infinite or NaN: codes can't tell which */
            dots(j->dot[0], j->u, src, x + r, 1, j->width, totals);
            total = total_of(totals[0]);
        }
        out[r * stride] = total;
    }
}

static void all_products(const job *j, const uint8_t *src, size_t rows, size_t count, float *out, size_t stride) {
    const size_t chunk = CHUNK_BYTES / j->row_bytes + 1;
    const uint64_t control = ggufx_fp_default();
    for (size_t start = 0; start < count; start += chunk) {
        const size_t end = count - start < chunk ? count : start + chunk;
        for (size_t first = 0; first < rows; first += GGUFX_DOT_ROWS) {
            const size_t left = rows - first < GGUFX_DOT_ROWS ? rows - first : GGUFX_DOT_ROWS;
            for (size_t n = start; n < end; n++)
                products(j, src + n * j->row_bytes, first, left, out + first * stride + n, stride);
        }
    }
    ggufx_fp_restore(control);
}

static job job_of(int path, int type, const float *x, size_t width) {
    const ggufx_type u = ggufx_types[type];
    return (job){.dot = ggufx_dots_at(path)->dot[type],
                 .u = u,
                 .x = x,
                 .width = width,
                 .row_bytes = width / u.values * u.bytes + width % u.values * u.bytes / u.values};
}

void ggufx_matmul(int path, int type, const float *x, size_t rows, size_t width, const void *packed, size_t count,
                  float *out, size_t stride) {
    const job j = job_of(path, type, x, width);
    all_products(&j, packed, rows, count, out, stride);
}

/* ---- x as codes */

int ggufx_multiplies_codes(int path) { return ggufx_code_dots_at(path) != NULL; }

/* On cache lines, wherever the caller's memory begins. */
static ggufx_codes *aligned(const void *codes) { return (ggufx_codes *)(((uintptr_t)codes + 63) & ~(uintptr_t)63); }

size_t ggufx_codes_size(size_t groups) { return groups * sizeof(ggufx_codes) + 63; }

void ggufx_store_codes(int path, const float *x, size_t groups, void *codes) {
    const uint64_t control = ggufx_fp_default();
    ggufx_code_dots_at(path)->store(x, aligned(codes), groups);
    ggufx_fp_restore(control);
}

void ggufx_matmul_codes(int path, int type, const float *x, const void *codes, size_t rows, size_t width,
                        const void *packed, size_t count, float *out, size_t stride) {
    job j = job_of(path, type, x, width);
    j.codes = aligned(codes);
    j.code_dot = ggufx_code_dots_at(path)->dot[type];
    all_products(&j, packed, rows, count, out, stride);
}
