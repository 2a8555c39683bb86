/* Compares the kernels with the reference where no Python runs, e.g. under an emulator.
 *
 * usage: check FILE PATH...   FILE: records as tests/codec/test_neon.py writes them; PATH: neon, scalar ...
 *
 * Every decoder runs cached and streamed, from and to any alignment, with sources and outputs that begin or end at a
 * forbidden page, with the floating-point control as it comes and flushing subnormals. Every encoder runs with and
 * without the check for finite values. Products are of one row, of all, and of numbers of rows between. The first
 * difference is told, and makes the exit status 1. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../csrc/ggufx.h"

enum { DECODE, ENCODE, MULTIPLY };

typedef struct {
    char name[16];
    uint32_t kind, type;
    uint32_t values, bytes; /* of a block */
    uint32_t count;         /* blocks to decode, or rows to quantize or to multiply with */
    uint32_t width;         /* of a row */
    uint32_t weighted;      /* whether an importance of each column follows the rows */
    uint32_t tables[4];     /* bytes of each part of a codebook, 0 where there is none; of products, rows of x first */
    uint32_t overflowed;    /* blocks whose scale is infinite */
} record;

static const char *const dtype_names[] = {"float32", "float16", "bfloat16"};
static const size_t items[] = {4, 2, 2};
static unsigned long comparisons;

static void fail(const char *what, const char *path, const record *r, const char *where) {
    printf("%s: path %s, type %s, %s\n", what, path, r->name, where);
    exit(1);
}

/* ---- memory between forbidden pages */

typedef struct {
    uint8_t *first;
    size_t size;
} room;

static room make_room(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    room made = {NULL, (size / page + 1) * page};
    uint8_t *base = mmap(NULL, made.size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + page, made.size, PROT_READ | PROT_WRITE)) {
        perror("make_room");
        exit(2);
    }
    made.first = base + page;
    return made;
}

/* Where `size` bytes begin: `past` bytes after the first page, or so that they end at the last, which `past` < 0 says.
 */
static uint8_t *place(room r, size_t size, int past) { return past < 0 ? r.first + r.size - size : r.first + past; }

static size_t smaller(ptrdiff_t a, ptrdiff_t b) { return (size_t)(a < b ? a : b); }

/* ---- the thread's floating-point control */

#if defined(__aarch64__)
static const uint64_t flushing = 1 << 24; /* FZ */
static uint64_t get_control(void) {
    uint64_t x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x));
    return x;
}
static void set_control(uint64_t x) { __asm__ volatile("msr fpcr, %0" : : "r"(x)); }
#elif defined(__x86_64__)
#include <xmmintrin.h>
static const uint64_t flushing = 0x9FC0; /* FTZ, DAZ */
static uint64_t get_control(void) { return _mm_getcsr() & ~0x3Fu; }
static void set_control(uint64_t x) { _mm_setcsr((unsigned)x); }
#endif

/* ---- decoding */

static int is_nan(int dtype, uint32_t bits) {
    static const uint32_t infinity[] = {0x7F800000, 0x7C00, 0x7F80}, magnitude[] = {0x7FFFFFFF, 0x7FFF, 0x7FFF};
    return (bits & magnitude[dtype]) > infinity[dtype];
}

static uint32_t bits_at(const uint8_t *p, int dtype, size_t i) {
    uint32_t wide;
    uint16_t half;
    if (dtype == GGUFX_F32) return memcpy(&wide, p + 4 * i, 4), wide;
    return memcpy(&half, p + 2 * i, 2), half;
}

static void compare(const uint8_t *got, const uint8_t *want, int dtype, size_t n, const char *path, const record *r,
                    const char *how) {
    comparisons += n;
    if (!memcmp(got, want, n * items[dtype])) return;
    for (size_t i = 0; i < n; i++) {
        const uint32_t a = bits_at(got, dtype, i), b = bits_at(want, dtype, i);
        if (a == b || (is_nan(dtype, a) && is_nan(dtype, b))) continue;
        char where[200];
        snprintf(where, sizeof where, "dtype %s, %s: value %zu of %zu is 0x%x, wanted 0x%x", dtype_names[dtype], how, i,
                 n, (unsigned)a, (unsigned)b);
        fail("wrong bits", path, r, where);
    }
}

static void decode(int path, const char *name, const record *r, const uint8_t *blocks, const uint8_t *const *want,
                   room src, room dst) {
    static const int places[][2] = {{0, 0}, {-1, -1}, {1, 4}, {3, 16}, {-1, 2}, {2, 60}, {7, 64}};
    const size_t counts[] = {1, 2, 3, 5, 31, 33, r->count / 2 + 1, r->count};
    if (!ggufx_decodes((int)r->type)) fail("no decoder", name, r, "the type is missing in types.def");
    for (int dtype = 0; dtype < GGUFX_DTYPES; dtype++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t p = 0; p < sizeof places / sizeof *places; p++)
                for (int way = 0; way < 4; way++) {
                    const size_t count = counts[c], n = count * r->values, skipped = r->count - count;
                    const int stream = way & 1, flush = way >> 1;
                    if (count == r->count ? p > 2 : flush) continue; /* the largest takes the longest */
                    if (count > r->count || (places[p][1] > 0 && (size_t)places[p][1] % items[dtype])) continue;
                    uint8_t *in = place(src, count * r->bytes, places[p][0]);
                    uint8_t *out = place(dst, n * items[dtype], places[p][1]);
                    memcpy(in, blocks + skipped * r->bytes, count * r->bytes);
                    uint8_t *const stop = out + n * items[dtype];
                    const size_t before = smaller(out - dst.first, 64),
                                 after = smaller(dst.first + dst.size - stop, 64);
                    memset(out - before, 0xA5, before + (size_t)(stop - out) + after);
                    const uint64_t control = get_control(), wanted = flush ? flushing : control;
                    set_control(wanted);
                    ggufx_decode(path, (int)r->type, dtype, in, out, n, stream);
                    const uint64_t left = get_control();
                    set_control(control);
                    char how[120];
                    snprintf(how, sizeof how, "%s%s, %zu blocks, place %zu", stream ? "streamed" : "cached",
                             flush ? " while flushing" : "", count, p);
                    if (left != wanted) fail("floating-point control not restored", name, r, how);
                    compare(out, want[dtype] + skipped * r->values * items[dtype], dtype, n, name, r, how);
                    for (size_t i = 1; i <= before; i++)
                        if (out[-(ptrdiff_t)i] != 0xA5) fail("wrote before the output", name, r, how);
                    for (size_t i = 0; i < after; i++)
                        if (stop[i] != 0xA5) fail("wrote beyond the output", name, r, how);
                }
}

/* ---- quantizing */

static void encode(int path, const char *name, const record *r, const uint8_t *rows, const uint8_t *importance,
                   const void *const *lattice, const uint8_t *want, room src, room dst, room weights) {
    const size_t row_bytes = r->width / r->values * r->bytes, counts[] = {r->count, 1, 3, 5};
    if (!ggufx_encodes((int)r->type)) fail("no encoder", name, r, "its row in types.def says NOT_ENCODED");
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const size_t count = counts[c], n = count * r->width;
        if (count > r->count) continue;
        float *x = (float *)place(src, n * 4, -1), *qw = (float *)place(weights, r->width * 4, -1);
        uint8_t *out = place(dst, count * row_bytes, -1);
        memcpy(x, rows, n * 4);
        if (r->weighted) memcpy(qw, importance, r->width * 4);
        for (int check = 0; check < 2; check++) {
            memset(dst.first, 0xA5, dst.size);
            const size_t overflowed =
                ggufx_encode(path, (int)r->type, x, r->weighted ? qw : NULL, lattice, count, r->width, check, out);
            comparisons += count * row_bytes;
            for (size_t i = 0; i < count * row_bytes; i++)
                if (out[i] != want[i]) {
                    char where[200];
                    snprintf(where, sizeof where,
                             "%s importance, %zu rows: byte %zu of row %zu is 0x%02x, wanted 0x%02x",
                             r->weighted ? "with" : "without", count, i % row_bytes, i / row_bytes, out[i], want[i]);
                    fail("wrong bytes", name, r, where);
                }
            if (count == r->count && overflowed != r->overflowed) fail("wrong count of overflows", name, r, "");
            for (uint8_t *q = dst.first; q < out; q++)
                if (*q != 0xA5) fail("wrote before the output", name, r, "");
        }
        if (!ggufx_all_finite(path, x, n)) fail("finite values taken for others", name, r, "");
        const size_t spots[] = {0, 1, n / 2, n - 2, n - 1};
        for (size_t s = 0; s < sizeof spots / sizeof *spots; s++) {
            static const uint32_t others[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001};
            const float kept = x[spots[s]];
            memcpy(&x[spots[s]], &others[s % 4], 4);
            if (ggufx_all_finite(path, x, n)) fail("a value that isn't finite was not noticed", name, r, "");
            x[spots[s]] = kept;
        }
    }
}

/* ---- products, whatever rows come together: no further from the exact ones than 1e-6 of the sum of magnitudes, or
 * than what rounding to codes may lose */

static void product(int path, const record *r, const float *x, const uint8_t *codes, size_t m, const uint8_t *packed,
                    size_t count, float *out) {
    if (codes)
        ggufx_matmul_codes(path, (int)r->type, x, codes, m, r->width, packed, count, out, count);
    else
        ggufx_matmul(path, (int)r->type, x, m, r->width, packed, count, out, count);
}

static void multiply(int path, const char *name, const record *r, const uint8_t *packed, const uint8_t *rows,
                     const uint8_t *exact, room src, room left, room dst, int rounded) {
    const size_t all = r->tables[0], count = r->count, groups = r->width / 32;
    const size_t bytes = count * (r->width / r->values * r->bytes), row = r->width * 4;
    const double limit = rounded ? 4e-3 : 1e-6;
    for (size_t m = 1; m <= all; m++) {
        uint8_t *const in = place(src, bytes, m & 1 ? -1 : 3);
        float *const x = (float *)place(left, m * row, -1), *const out = (float *)place(dst, m * count * 4, -1);
        memcpy(in, packed, bytes);
        memcpy(x, rows, m * row);
        memset(dst.first, 0xA5, dst.size);
        uint8_t *const codes = rounded ? malloc(ggufx_codes_size(m * groups)) : NULL;
        uint8_t *const code = rounded ? malloc(ggufx_codes_size(groups)) : NULL;
        if (rounded) ggufx_store_codes(path, x, m * groups, codes);
        product(path, r, x, codes, m, in, count, out);
        for (uint8_t *q = dst.first; q < (uint8_t *)out; q++)
            if (*q != 0xA5) fail("wrote before the output", name, r, "");
        for (size_t i = 0; i < m * count; i++) {
            double want[2];
            float alone;
            memcpy(want, exact + 16 * i, 16);
            char where[200];
            snprintf(where, sizeof where, "%s, %zu rows: product %zu of row %zu is %.9g, wanted %.9g",
                     rounded ? "codes" : "floats", m, i % count, i / count, (double)out[i], want[0]);
            const double off = (double)out[i] - want[0];
            if (!(off <= limit * want[1] && -off <= limit * want[1])) fail("wrong product", name, r, where);
            const float *const one = x + i / count * r->width;
            if (rounded) ggufx_store_codes(path, one, groups, code);
            product(path, r, one, code, 1, in + i % count * (bytes / count), 1, &alone);
            if (memcmp(&alone, out + i, 4)) fail("a product depends on its company", name, r, where);
        }
        free(codes);
        free(code);
        comparisons += m * count;
    }
}

/* ---- records */

static int find_path(const char *name) {
    for (int i = 0; ggufx_path_name(i); i++)
        if (!strcmp(ggufx_path_name(i), name)) {
            if (!ggufx_path_problem(i)) return i;
            printf("path %s can't run: %s\n", name, ggufx_path_problem(i));
            exit(2);
        }
    printf("no path is called %s\n", name);
    exit(2);
}

static uint8_t *read_all(const char *name, size_t *size) {
    FILE *f = fopen(name, "rb");
    if (!f || fseek(f, 0, SEEK_END)) goto wrong;
    const long end = ftell(f);
    rewind(f);
    uint8_t *bytes = end > 0 ? malloc((size_t)end) : NULL;
    if (!bytes || fread(bytes, 1, (size_t)end, f) != (size_t)end) goto wrong;
    fclose(f);
    *size = (size_t)end;
    return bytes;
wrong:
    perror(name);
    exit(2);
}

int main(int argc, char **argv) {
    size_t size, records = 0;
    if (argc < 3) return 2;
    const uint8_t *at = read_all(argv[1], &size), *const end = at + size;
    for (; at < end; records++) {
        record r;
        memcpy(&r, at, sizeof r);
        at += sizeof r;
        const uint8_t *parts[3 + 4];
        if (r.kind == DECODE) {
            const size_t n = (size_t)r.count * r.values;
            const uint8_t *blocks = at;
            at += (size_t)r.count * r.bytes;
            for (int d = 0; d < GGUFX_DTYPES; d++) parts[d] = at, at += n * items[d];
            const room src = make_room((size_t)r.count * r.bytes + 64), dst = make_room(n * 4 + 128);
            for (int i = 2; i < argc; i++) decode(find_path(argv[i]), argv[i], &r, blocks, parts, src, dst);
        } else if (r.kind == MULTIPLY) {
            const size_t bytes = r.count * (r.width / r.values * r.bytes), row = r.width * 4, m = r.tables[0];
            parts[0] = at, at += bytes;
            parts[1] = at, at += m * row;
            parts[2] = at, at += m * r.count * 16;
            const room src = make_room(bytes + 3), left = make_room(m * row), dst = make_room(m * r.count * 4);
            for (int i = 2; i < argc; i++)
                for (int rounded = 0; rounded < 2; rounded++)
                    if (!rounded || (r.values > 1 && ggufx_multiplies_codes(find_path(argv[i]))))
                        multiply(find_path(argv[i]), argv[i], &r, parts[0], parts[1], parts[2], src, left, dst,
                                 rounded);
        } else {
            const size_t n = (size_t)r.count * r.width, bytes = n / r.values * r.bytes;
            const void *lattice[4];
            parts[0] = at, at += n * 4;
            parts[1] = at, at += r.weighted ? r.width * 4 : 0;
            for (int t = 0; t < 4; t++) {
                void *copy = r.tables[t] ? malloc(r.tables[t]) : NULL; /* aligned, which the file's bytes aren't */
                if (copy) memcpy(copy, at, r.tables[t]);
                lattice[t] = copy;
                at += r.tables[t];
            }
            parts[2] = at, at += bytes;
            const room src = make_room(n * 4), dst = make_room(bytes), weights = make_room(r.width * 4);
            for (int i = 2; i < argc; i++)
                encode(find_path(argv[i]), argv[i], &r, parts[0], parts[1], lattice, parts[2], src, dst, weights);
        }
    }
    printf("%zu records, %lu values and bytes equal, pages of %ld\n", records, comparisons, sysconf(_SC_PAGESIZE));
    return 0;
}
