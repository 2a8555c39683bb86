/* Codebook lookups of the IQ1, IQ2 and IQ3 encoders. A point is a word of levels, `bits` each, the first lowest. */
#ifndef GGUFX_ENCODERS_LATTICE_H
#define GGUFX_ENCODERS_LATTICE_H

#include <float.h>

#include "../encode.h"
#include "searches.h"

/* Position, in a list of n words, of the first whose losses add up to least. cost[i * levels + l] is the loss of level
 * l in value i. Here the lanes hold candidates. ggml aborts where no sum is below FLT_MAX; overflow then gives the
 * first of the list. */
INLINE int first_best(const uint16_t *list, int n, const float *cost, int size, int bits) {
    row r[8];
    wide best = every(FLT_MAX);
    wide_int at = every_int(0), position = lane_number();
    UNROLL(8)
    for (int i = 0; i < size; i++) r[i] = bits == 2 ? row4(cost + 4 * i) : row8(cost + 8 * i);
    for (int j = 0; j < n; j += LANES) {
        const wide_int word = load_u16(list + j);
        wide loss = every(0);
        UNROLL(8)
        for (int i = 0; i < size; i++) {
            const wide_int level = i ? shift_right(word, bits * i) : word;
            const wide term = bits == 2 ? from_row4(r[i], level) : from_row8(r[i], level);
            loss = i ? add(loss, term) : term;
        }
        const mask better = less(loss, best);
        best = choose(better, loss, best);
        at = choose_int(better, position, at);
        position = int_add(position, every_int(LANES));
    }
    /* The first of equals: their first lane where each lane saw one candidate, else their lowest position. */
    const mask least = same(best, least_of(best));
    return n <= LANES ? __builtin_ctz(mask_bits(least)) : least_int_where(least, at);
}

/* The losses w * (scale * q - x)^2 of every level of `size` values, one table per lane. */
INLINE void level_costs(float *cost, const wide *x, const wide *w, wide scale, const wide *q, int size, int bits) {
    const int levels = 1 << bits, used = bits == 2 ? 3 : 8;
    for (int i = 0; i < size; i++) {
        wide c[8];
        UNROLL(8)
        for (int l = 0; l < levels; l++) {
            if (l >= used) {
                c[l] = c[0]; /* level 3 of two bits occurs in no codebook */
                continue;
            }
            const wide diff = subtract(multiply(scale, q[l]), x[i]);
            c[l] = multiply(multiply(w[i], diff), diff);
        }
        UNROLL(2)
        for (int l = 0; l < levels; l += 4)
            store_rows4(cost + i * levels + l, (size_t)(size * levels), c[l], c[l + 1], c[l + 2], c[l + 3]);
    }
}

/* Where `word` isn't in the codebook, its neighbour there that fits x best by weights w; q are the levels' values.
 * `on` tells where it was. */
INLINE wide_int snapped(const ggufx_lattice *t, wide_int word, const wide *x, const wide *w, wide scale, const wide *q,
                        int size, int bits, mask *on) {
    const wide_int place = gather(t->place, word);
    const mask off = int_less(place, every_int(0));
    *on = mask_not(off);
    unsigned todo = mask_bits(off);
    if (!todo) return word;
    float cost[LANES * 32];
    int32_t from[LANES], to[LANES];
    level_costs(cost, x, w, scale, q, size, bits);
    store_int_lanes(from, place);
    store_int_lanes(to, word);
    for (; todo; todo &= todo - 1) {
        const int k = __builtin_ctz(todo);
        const uint16_t *list = t->neighbours + (-1 - from[k]);
        to[k] = list[first_best(list, t->count[to[k]], cost + k * size * (1 << bits), size, bits)];
    }
    return load_int_lanes(to);
}

INLINE wide_int word_of(const wide *levels, int size, int bits) {
    wide word = levels[0];
    for (int i = 1; i < size; i++) word = add(word, multiply(levels[i], every((float)(1 << bits * i))));
    return to_int(word);
}

INLINE wide_int level_of(wide_int word, int i, int bits) {
    return int_and(shift_right(word, bits * i), every_int((1 << bits) - 1));
}

/* Block scale before rounding (1/steps of the largest), and the group scales in odd multiples of it. */
INLINE wide odd_scales(const wide *scales, wide_int *codes, int n, float steps, float top) {
    const wide high = highest_positive(scales, n), d = divide(high, every(steps)), id = divide(every(1), d);
    const mask dead = same(high, every(0));
    for (int j = 0; j < n; j++) {
        const wide code = nearest(multiply(every(0.5f), subtract(multiply(id, scales[j]), every(1))));
        codes[j] = to_int(zero_where(dead, within(code, 0, top)));
    }
    return zero_where(dead, d);
}

INLINE wide_int zero_int_where(mask m, wide_int v) { return choose_int(m, every_int(0), v); }

#endif
