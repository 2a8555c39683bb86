/* A path's encoders, once: the including file has chosen the target, the lanes and PATH (its name). */
#include "../encode.h"
#include "../encoders/few_bits.h"
#include "../encoders/fp4.h"
#include "../encoders/iq1.h"
#include "../encoders/iq2_iq3.h"
#include "../encoders/iq4.h"
#include "../encoders/k.h"
#include "../encoders/legacy.h"

_Static_assert((int)LANES <= (int)GGUFX_MAX_LANES, "raise GGUFX_MAX_LANES");

#define ENCODED(code) code
#define NOT_ENCODED(code)

/* Columns are turned four values at a time, and rows are summed by 32. */
#define BLOCKS(name, values)                                                                                           \
    _Static_assert((values) % 32 == 0, "blocks of " #name " must be a multiple of 32 values");                         \
    static void blocks_##name(const float *const *x, const float *const *qw, const float *row_mean,                    \
                              const ggufx_lattice *lattice, uint8_t *const *block) {                                   \
        wide columns_x[values], columns_qw[values];                                                                    \
        load_columns(columns_x, x, values);                                                                            \
        if (qw) load_columns(columns_qw, qw, values);                                                                  \
        const columns in = {columns_x, qw ? columns_qw : NULL, load_lanes(row_mean), lattice};                         \
        encode_##name(&in, block);                                                                                     \
    }
#define GGUFX_TYPE(name, id, values, bytes, encoded, ...) encoded(BLOCKS(name, values))
#include "../types.def"
#undef GGUFX_TYPE

static void row_means(const float *const *rows, size_t width, float *means) {
    wide sum = every(0), x[32];
    const float *at[LANES];
    for (size_t i = 0; i < width; i += 32) {
        for (int k = 0; k < LANES; k++) at[k] = rows[k] + i;
        load_columns(x, at, 32);
        for (int j = 0; j < 32; j++) sum = add(sum, multiply(x[j], x[j]));
    }
    store_lanes(means, divide(sum, every((float)width)));
}

#define JOINED(a, b) a##b
#define SYMBOL_OF(x) JOINED(ggufx_encoders_, x)
const ggufx_encoders SYMBOL_OF(PATH) = {
    .lanes = LANES,
    .encode =
        {
#define ROW(name, id) [id] = blocks_##name,
#define GGUFX_TYPE(name, id, values, bytes, encoded, ...) encoded(ROW(name, id))
#include "../types.def"
#undef GGUFX_TYPE
        },
    .row_means = row_means,
    .all_finite = all_finite,
};
