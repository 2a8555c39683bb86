/* Between the caller and the kernels: a kernel decodes runs of whole units; this file completes a last unit, and
 * writes large outputs past the cache, tile by tile. */
#include <string.h>

#include "cpu.h"
#include "path.h"

/* Values per tile: a multiple of every unit, small enough that tile, source and tables share a 32 KiB L1 cache. */
enum { TILE_VALUES = 1024, LINE = 64 };

/* How far ahead of the kernel its source is fetched. Worth 3 to 8 % for the types with the most bytes to read (Q8_0 9.9
 * against 9.5, Q6_K 10.1 against 9.4 Gweights/s into 256 MiB of float32 on Zen 5, AVX-512, gcc 12), nothing
 * measurable for the others; 4096 and 16384 were no better. */
enum { AHEAD = 1024 };

#define GGUFX_TYPE(name, id, values, ...)                                                                              \
    _Static_assert(TILE_VALUES % (values) == 0, "a tile must hold whole units of " #name);
#include "types.def"
#undef GGUFX_TYPE

static const uint8_t item_size[GGUFX_DTYPES] = {4, 2, 2};

/* Decodes n values, the last of which may end inside a unit of plain numbers: that unit is completed with zeros. */
static void decode(const ggufx_path *path, int type, int dtype, const uint8_t *src, char *dst, size_t n) {
    const ggufx_type u = ggufx_types[type];
    const size_t whole = n / u.values, rest = n % u.values;
    path->decode[type][0][dtype](src, dst, whole);
    if (rest) {
        uint8_t unit[32 * 4] = {0};
        char values[32 * 4];
        memcpy(unit, src + whole * u.bytes, rest * u.bytes / u.values);
        path->decode[type][0][dtype](unit, values, 1);
        memcpy(dst + whole * u.values * item_size[dtype], values, rest * item_size[dtype]);
    }
}

static void prefetch(const uint8_t *p, const uint8_t *end) {
    for (; p < end; p += LINE) __builtin_prefetch(p, 0, 3);
}

/* How the source is brought in ahead of the kernels: a tile's worth, AHEAD bytes before it is wanted. */
static void prefetch_tile(const uint8_t *src, const uint8_t *end, size_t bytes) {
    const uint8_t *first = src + AHEAD;
    if (first < end) prefetch(first, first + bytes < end ? first + bytes : end);
}

/* An output that starts on a line and whose units are whole lines: kernels store past the cache themselves. */
static void decode_lines(const ggufx_path *path, int type, int dtype, const uint8_t *src, char *out, size_t n) {
    const ggufx_type u = ggufx_types[type];
    const size_t tile_source = TILE_VALUES / u.values * u.bytes, tile_output = TILE_VALUES * item_size[dtype];
    const uint8_t *end = src + n / u.values * u.bytes;
    for (; n >= TILE_VALUES; n -= TILE_VALUES, src += tile_source, out += tile_output) {
        prefetch_tile(src, end, tile_source);
        path->decode[type][1][dtype](src, out, TILE_VALUES / u.values);
    }
    decode(path, type, dtype, src, out, n);
}

/* Any other output: through a tile, out of which whole lines are copied. What comes before the output's first line
 * goes out through the cache, and what a tile leaves over waits in front of the next one. */
static void decode_through_tile(const ggufx_path *path, int type, int dtype, const uint8_t *src, char *out, size_t n) {
    _Alignas(LINE) char tile[TILE_VALUES * 4 + LINE];
    const ggufx_type u = ggufx_types[type];
    const size_t item = item_size[dtype], tile_source = TILE_VALUES / u.values * u.bytes;
    const uint8_t *end = src + n / u.values * u.bytes;
    size_t head = -(uintptr_t)out & (LINE - 1), waiting = 0;
    while (n) {
        const size_t take = n < TILE_VALUES ? n : TILE_VALUES;
        prefetch_tile(src, end, tile_source);
        decode(path, type, dtype, src, tile + waiting, take);
        src += tile_source;
        n -= take;
        size_t have = waiting + take * item;
        if (head) {
            if (head > have) head = have; /* then this tile is all there is */
            memcpy(out, tile, head);
            out += head;
            have -= head;
            memmove(tile, tile + head, have);
            head = 0;
        }
        const size_t lines = have / LINE;
        path->copy_past_cache(out, tile, lines);
        out += lines * LINE;
        waiting = have - lines * LINE;
        memcpy(tile, tile + lines * LINE, waiting);
    }
    memcpy(out, tile, waiting);
}

void ggufx_decode(int path_index, int type, int dtype, const void *src, void *dst, size_t n, int stream) {
    const ggufx_path *path = ggufx_path_at(path_index);
    const uint64_t control = ggufx_fp_default();
    if (!stream) {
        decode(path, type, dtype, src, dst, n);
    } else {
        if ((uintptr_t)dst % LINE)
            decode_through_tile(path, type, dtype, src, dst, n);
        else
            decode_lines(path, type, dtype, src, dst, n);
        path->fence();
    }
    ggufx_fp_restore(control);
}
