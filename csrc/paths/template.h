/* Everything a path is made of, once: the including file has chosen the target, the lanes and PATH (its name). */
#include "../lanes/emit.h"
#include "../path.h"

/* Adding a type: its kernel here, and its row in types.def. */
#include "../kernels/iq1_m.h"
#include "../kernels/iq1_s.h"
#include "../kernels/iq2_s.h"
#include "../kernels/iq2_xs.h"
#include "../kernels/iq2_xxs.h"
#include "../kernels/iq3_s.h"
#include "../kernels/iq3_xxs.h"
#include "../kernels/iq4_nl.h"
#include "../kernels/iq4_xs.h"
#include "../kernels/mxfp4.h"
#include "../kernels/nvfp4.h"
#include "../kernels/plain.h"
#include "../kernels/q1_0.h"
#include "../kernels/q2_0.h"
#include "../kernels/q2_k.h"
#include "../kernels/q3_k.h"
#include "../kernels/q4_0.h"
#include "../kernels/q4_1.h"
#include "../kernels/q4_k.h"
#include "../kernels/q5_0.h"
#include "../kernels/q5_1.h"
#include "../kernels/q5_k.h"
#include "../kernels/q6_k.h"
#include "../kernels/q8_0.h"
#include "../kernels/q8_1.h"
#include "../kernels/q8_k.h"
#include "../kernels/tq1_0.h"
#include "../kernels/tq2_0.h"

/* The only loop over blocks. */
#define GGUFX_TYPE(name, id, values, size)                                                            \
    _Static_assert(sizeof(block_##name) == (size), "block_" #name " is not as ggml lays it out");     \
    static void rows_##name(const uint8_t *src, float *dst, size_t units) {                           \
        for (; units; units--, src += (size), dst += (values)) decode_##name((const void *)src, dst); \
    }
#include "../types.def"
#undef GGUFX_TYPE

/* store: whole vectors, then the rest through a vector of its own. stream: whole lines. */
#define OUTPUT(name, item, put_vector)                                                      \
    static void store_##name(const float *tile, void *dst, size_t n) {                      \
        item *out = dst, rest[16];                                                          \
        float last[16] = {0};                                                               \
        for (; n >= 16; n -= 16, tile += 16, out += 16) put_vector(out, load_floats(tile)); \
        if (!n) return;                                                                     \
        memcpy(last, tile, n * sizeof *last);                                               \
        put_vector(rest, load_floats(last));                                                \
        memcpy(out, rest, n * sizeof *rest);                                                \
    }                                                                                       \
    static void stream_##name(const float *tile, void *dst, size_t n) {                     \
        const size_t line = 64 / sizeof(item);                                              \
        char *out = dst;                                                                    \
        for (; n; n -= line, tile += line, out += 64) stream_line_##name(out, tile);        \
    }
OUTPUT(f32, float, put)
OUTPUT(f16, uint16_t, put_halves)
OUTPUT(bf16, uint16_t, put_bfloats)

static void stream_end(void) { stream_fence(); }

#define QUOTED(x) #x
#define NAME_OF(x) QUOTED(x)
#define JOINED(a, b) a##b
#define SYMBOL_OF(x) JOINED(ggufx_path_, x)
const ggufx_path SYMBOL_OF(PATH) = {
    .name = NAME_OF(PATH),
    .decode =
        {
#define GGUFX_TYPE(name, id, values, size) [id] = rows_##name,
#include "../types.def"
#undef GGUFX_TYPE
        },
    .store = {store_f32, store_f16, store_bf16},
    .stream = {stream_f32, stream_f16, stream_bf16},
    .stream_end = stream_end,
};
