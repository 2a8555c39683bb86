/* Who loops when quantizing: hands a path's encoders as many blocks as they have lanes, and counts what overflowed. */
#include "encode.h"

#include <string.h>

#include "cpu.h"

/* Large enough for a block of any type. */
typedef union {
#define GGUFX_TYPE(name, id, values, bytes, ...) uint8_t name[bytes];
#include "types.def"
#undef GGUFX_TYPE
} any_block;

int ggufx_encodes(int type) { return type >= 0 && type < GGUFX_IDS && ggufx_encoders_scalar.encode[type] != NULL; }

int ggufx_all_finite(int path_index, const float *x, size_t n) {
    return ggufx_encoders_at(path_index)->all_finite(x, n);
}

/* Whether all bits of a half's exponent are set. */
static int infinite(const uint8_t *half, int in_nibbles) {
    if (in_nibbles) return (half[7] & 0x70) == 0x70 && (half[5] & 0xC0) == 0xC0;
    return (half[1] & 0x7C) == 0x7C;
}

static int overflows(const ggufx_type *t, const uint8_t *block) {
    if (t->halves.at[0] < 0) return 0;
    return infinite(block + t->halves.at[0], t->halves.in_nibbles) ||
           infinite(block + t->halves.at[1], t->halves.in_nibbles);
}

/* Values checked at a time before they are quantized: what the check brought into the L1 cache is still there. */
enum { CHECKED = 2048 };

size_t ggufx_encode(int path_index, int type, const float *x, const float *qw, const void *const *lattice, size_t rows,
                    size_t width, int check, uint8_t *out) {
    const ggufx_encoders *e = ggufx_encoders_at(path_index);
    const ggufx_type t = ggufx_types[type];
    const size_t lanes = (size_t)e->lanes, per_row = width / t.values, blocks = rows * per_row;
    const ggufx_lattice table = {lattice[0], lattice[1], lattice[2], lattice[3]};
    const float *xs[GGUFX_MAX_LANES], *qws[GGUFX_MAX_LANES] = {NULL};
    float means[GGUFX_MAX_LANES] = {0}, of_rows[GGUFX_MAX_LANES];
    any_block spare[GGUFX_MAX_LANES];
    uint8_t *block[GGUFX_MAX_LANES];
    size_t overflowed = 0, row = 0, column = 0, means_from = 0, means_to = 0;
    const float *checked = x, *const end = x + rows * width;
    const uint64_t control = ggufx_fp_default();

    for (size_t b = 0; b < blocks; b += lanes) {
        while (check && checked < end && (size_t)(checked - x) < lanes * t.values) {
            const size_t n = end - checked < CHECKED ? (size_t)(end - checked) : CHECKED;
            if (!e->all_finite(checked, n)) {
                ggufx_fp_restore(control);
                return SIZE_MAX;
            }
            checked += n;
        }
        const size_t live = blocks - b < lanes ? blocks - b : lanes;
        for (size_t k = 0; k < live; k++) {
            xs[k] = x + k * t.values;
            block[k] = out + k * t.bytes;
        }
        for (size_t k = 0; qw && k < live; k++) {
            qws[k] = qw + column * t.values;
            if (t.by_row) {
                if (row == means_to) {
                    const float *starts[GGUFX_MAX_LANES];
                    for (size_t i = 0; i < lanes; i++) starts[i] = xs[k] + (row + i < rows ? i : 0) * width;
                    e->row_means(starts, width, of_rows);
                    means_from = row;
                    means_to = row + lanes;
                }
                means[k] = of_rows[row - means_from];
            }
            if (++column == per_row) column = 0, row++;
        }
        /* Lanes beyond the end repeat the first block, and their results are dropped. */
        for (size_t k = live; k < lanes; k++)
            xs[k] = xs[0], qws[k] = qws[0], means[k] = means[0], block[k] = (uint8_t *)&spare[k];
        e->encode[type](xs, qw ? qws : NULL, means, &table, block);
        for (size_t k = 0; k < live; k++) overflowed += overflows(&t, block[k]);
        x += live * t.values;
        out += live * t.bytes;
    }
    ggufx_fp_restore(control);
    return overflowed;
}
