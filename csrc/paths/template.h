/* Everything a path is made of, once: the including file has chosen the target, the lanes and PATH (its name). */
#include "../path.h"
#include "kernels.h"

/* The only loops over blocks. Only bfloats, and of most lanes, gain from knowing that scales are finite. */
#define ASKS(dtype) ((dtype) == GGUFX_BF16 && FINITE_IS_FASTER)
#define RUN(name, dtype, past, values, size, item, is_finite)                                                          \
    for (; units && (!ASKS(dtype) || finite_##name((const void *)src) == (is_finite));                                 \
         units--, src += (size), y += (values) * (item))                                                               \
    decode_##name((const void *)src, array_sink(y, dtype, past, is_finite))
#define ROWS(name, suffix, dtype, past, values, size, item)                                                            \
    static void rows_##name##_##suffix(const uint8_t *src, void *dst, size_t units) {                                  \
        char *y = dst;                                                                                                 \
        while (units) {                                                                                                \
            if (ASKS(dtype)) RUN(name, dtype, past, values, size, item, 1);                                            \
            RUN(name, dtype, past, values, size, item, 0);                                                             \
        }                                                                                                              \
    }
#define GGUFX_TYPE(name, id, values, size, ...)                                                                        \
    _Static_assert(sizeof(block_##name) == (size), "block_" #name " is not as ggml lays it out");                      \
    ROWS(name, f32, GGUFX_F32, 0, values, size, 4)                                                                     \
    ROWS(name, f16, GGUFX_F16, 0, values, size, 2)                                                                     \
    ROWS(name, bf16, GGUFX_BF16, 0, values, size, 2)                                                                   \
    ROWS(name, f32_past_cache, GGUFX_F32, 1, values, size, 4)                                                          \
    ROWS(name, f16_past_cache, GGUFX_F16, 1, values, size, 2)                                                          \
    ROWS(name, bf16_past_cache, GGUFX_BF16, 1, values, size, 2)
#include "../types.def"
#undef GGUFX_TYPE

static void copy_past_cache(void *dst, const void *tile, size_t lines) {
    char *out = dst;
    const char *line = tile;
    for (; lines; lines--, line += 64, out += 64) copy_line_past_cache(out, line);
}

static void fence(void) { stream_fence(); }

/* Where lanes have no way past the cache both are the same code, and compilers drop what nothing refers to. */
#define PAST(name, dtype) (STREAMS ? rows_##name##_##dtype##_past_cache : rows_##name##_##dtype)

#define QUOTED(x) #x
#define NAME_OF(x) QUOTED(x)
#define JOINED(a, b) a##b
#define SYMBOL_OF(x) JOINED(ggufx_path_, x)
const ggufx_path SYMBOL_OF(PATH) = {
    .name = NAME_OF(PATH),
    .decode =
        {
#define GGUFX_TYPE(name, id, values, size, ...)                                                                        \
    [id] = {{rows_##name##_f32, rows_##name##_f16, rows_##name##_bf16},                                                \
            {PAST(name, f32), PAST(name, f16), PAST(name, bf16)}},
#include "../types.def"
#undef GGUFX_TYPE
        },
    .copy_past_cache = copy_past_cache,
    .fence = fence,
};
