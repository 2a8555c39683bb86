/* Who loops: a kernel decodes runs of whole units to float32; this file cuts tensors into tiles that stay in the
 * L1 cache, turns tiles into the output's dtype, and writes them through the cache or past it. */
#include <string.h>

#include "cpu.h"
#include "path.h"

/* Values per tile: a multiple of every unit, small enough that tile, source and tables share a 32 KiB L1 cache. */
enum { TILE = 1024, LINE = 64 };

/* How far ahead of the kernel its source is fetched. Hardware prefetchers lose the source's slow stream among the
 * streamed stores; see benchmarks/results for the sweep. */
enum { AHEAD = 4096 };

static const struct unit {
    uint16_t values, bytes;
} units[GGUFX_MAX_ID] = {
#define GGUFX_TYPE(name, id, values, bytes) [id] = {values, bytes},
#include "types.def"
#undef GGUFX_TYPE
};

static const uint8_t item_size[GGUFX_DTYPES] = {4, 2, 2};

/* Decodes n values, the last of which may end inside a unit of plain numbers: that unit is completed with zeros. */
static void decode(const ggufx_path *path, int type, const uint8_t *src, float *dst, size_t n) {
    const struct unit u = units[type];
    const size_t whole = n / u.values, rest = n % u.values;
    path->decode[type](src, dst, whole);
    if (rest) {
        uint8_t unit[64] = {0};
        float values[16];
        memcpy(unit, src + whole * u.bytes, rest * u.bytes / u.values);
        path->decode[type](unit, values, 1);
        memcpy(dst + whole * u.values, values, rest * sizeof(float));
    }
}

static void prefetch(const uint8_t *p, const uint8_t *end) {
    for (; p < end; p += LINE) __builtin_prefetch(p, 0, 3);
}

static void decode_through_tiles(const ggufx_path *path, int type, int dtype, const uint8_t *src, uint8_t *out, size_t n,
                                 int stream) {
    const struct unit u = units[type];
    const size_t item = item_size[dtype], tile_bytes = TILE / u.values * u.bytes;
    const uint8_t *end = src + n / u.values * u.bytes;

    /* Streaming wants whole aligned lines. The first values go out through the cache up to a line's start; from
     * there whole lines are streamed, and what is left of a tile waits in front of the next one. */
    _Alignas(LINE) float tile[TILE + LINE];
    const size_t line = LINE / item;
    size_t head = stream ? (-(uintptr_t)out & (LINE - 1)) / item : 0, waiting = 0;
    while (n) {
        const size_t take = n < TILE ? n : TILE;
        const uint8_t *ahead = src + AHEAD;
        if (ahead < end) prefetch(ahead, ahead + tile_bytes < end ? ahead + tile_bytes : end);
        decode(path, type, src, tile + waiting, take);
        src += tile_bytes;
        n -= take;
        size_t have = waiting + take, done;
        if (!stream) {
            path->store[dtype](tile, out, have);
            out += have * item;
            continue;
        }
        if (head) {
            /* `have` is a whole tile here, or all there is. */
            const size_t first = head < have ? head : have;
            path->store[dtype](tile, out, first);
            out += first * item;
            have -= first;
            memmove(tile, tile + first, have * sizeof(float));
            head = 0;
        }
        done = have / line * line;
        path->stream[dtype](tile, out, done);
        out += done * item;
        waiting = have - done;
        memcpy(tile, tile + done, waiting * sizeof(float));
    }
    if (waiting) path->store[dtype](tile, out, waiting);
    if (stream) path->stream_end();
}

void ggufx_decode(int path_index, int type, int dtype, const void *src, void *dst, size_t n, int stream) {
    const ggufx_path *path = ggufx_path_at(path_index);
    const uint64_t control = ggufx_fp_default();
    if (dtype == GGUFX_F32 && !stream)
        decode(path, type, src, dst, n);
    else
        decode_through_tiles(path, type, dtype, src, dst, n, stream);
    ggufx_fp_restore(control);
}
