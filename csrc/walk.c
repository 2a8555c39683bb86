/* Walking a GGUF header: string arrays, nested arrays and tensor infos.
 *
 * The file is data from a stranger. Every function reads only inside [pos, stop), compares each count and length with
 * what is left before it uses it, and stops at the first thing that isn't right, saying what it was and where. */
#include "ggufx.h"

/* GGUF value types; scalars by width, strings and arrays by walking. 0 marks what has no fixed width. */
enum { T_STRING = 8, T_ARRAY = 9, T_COUNT = 13 };
static const uint8_t scalar_bytes[T_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static inline uint32_t load_u32(const uint8_t *p, int big) {
    return big ? (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]
               : (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static inline uint64_t load_u64(const uint8_t *p, int big) {
    uint64_t first = load_u32(p, big), second = load_u32(p + 4, big);
    return big ? first << 32 | second : second << 32 | first;
}

/* Counts, lengths and dimensions: 4 bytes in version 1, 8 after it. */
static inline uint64_t load_size(const ggufx_span *s, uint64_t pos) {
    return s->width == 4 ? load_u32(s->bytes + pos, s->big) : load_u64(s->bytes + pos, s->big);
}

uint64_t ggufx_walk_strings(ggufx_span *s, uint64_t count, uint64_t *starts) {
    uint64_t pos = s->pos, i = 0;
    for (; i < count && s->stop - pos >= s->width; i++) {
        uint64_t length = load_size(s, pos);
        if (length > s->stop - pos - s->width) break;
        pos += s->width;
        if (starts) starts[i] = pos;
        pos += length;
    }
    if (starts && i == count) starts[count] = pos + s->width;
    s->pos = pos;
    return i;
}

/* The elements of one array whose item type and count have been read. */
static int walk_items(ggufx_span *s, uint32_t type, uint64_t count, int levels, uint64_t most, uint64_t *starts) {
    if (type >= T_COUNT) return GGUFX_BAD_TYPE;
    if (count > most) return GGUFX_TOO_MANY;
    if (scalar_bytes[type]) {
        if (count > (s->stop - s->pos) / scalar_bytes[type]) return GGUFX_SHORT;
        s->pos += count * scalar_bytes[type];
        return GGUFX_OK;
    }
    if (type == T_STRING) return ggufx_walk_strings(s, count, 0) == count ? GGUFX_OK : GGUFX_SHORT;
    if (levels <= 0) return GGUFX_TOO_DEEP;
    return ggufx_walk_arrays(s, count, levels, most, starts);
}

int ggufx_walk_arrays(ggufx_span *s, uint64_t count, int levels, uint64_t most, uint64_t *starts) {
    for (uint64_t i = 0; i < count; i++) {
        if (s->stop - s->pos < 4 + s->width) return GGUFX_SHORT;
        if (starts) starts[i] = s->pos;
        uint32_t type = load_u32(s->bytes + s->pos, s->big);
        uint64_t items = load_size(s, s->pos + 4);
        s->pos += 4 + s->width;
        int status = walk_items(s, type, items, levels - 1, most, 0);
        if (status) return status;
    }
    return GGUFX_OK;
}

uint64_t ggufx_walk_tensors(ggufx_span *s, uint64_t count, uint64_t longest, uint64_t *rows, int *status) {
    *status = GGUFX_OK;
    for (uint64_t i = 0; i < count; i++, rows += GGUFX_TENSOR_COLUMNS) {
        uint64_t pos = s->pos;
        *status = GGUFX_SHORT;
        if (s->stop - pos < s->width) return i;
        uint64_t length = load_size(s, pos);
        if (length > longest) {
            *status = GGUFX_TOO_MANY;
            return i;
        }
        pos += s->width;
        if (length > s->stop - pos || s->stop - pos - length < 4) return i;
        rows[0] = pos;
        rows[1] = length;
        pos += length;
        uint32_t n_dims = load_u32(s->bytes + pos, s->big);
        pos += 4;
        if (n_dims > 4) {
            *status = GGUFX_TOO_DEEP;
            return i;
        }
        if (s->stop - pos < n_dims * s->width + 12) return i;
        rows[2] = n_dims;
        for (uint32_t d = 0; d < 4; d++) {
            rows[3 + d] = d < n_dims ? load_size(s, pos) : 1;
            if (d < n_dims) pos += s->width;
        }
        rows[7] = load_u32(s->bytes + pos, s->big);
        rows[8] = load_u64(s->bytes + pos + 4, s->big);
        s->pos = pos + 12;
        *status = GGUFX_OK;
    }
    return count;
}
