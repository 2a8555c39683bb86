/* IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S: signs apart, magnitudes from a codebook. */
#ifndef GGUFX_ENCODERS_IQ2_IQ3_H
#define GGUFX_ENCODERS_IQ2_IQ3_H

#include "lattice.h"
#include "pack.h"

/* Which words are found again with the best scale. */
enum redo {
    REDO_OFF,
    /* those that weren't in the codebook */ REDO_ANY /* all, if one wasn't */,
    REDO_ALL /* always */
};

/* Magnitudes and sign bits of eight values; `even` flips the cheapest sign where the number of minus signs is odd. */
INLINE wide_int split_signs(const wide *x, const wide *w, wide *v, int even) {
    wide_int bits = every_int(0), odd = every_int(0), at = every_int(0);
    for (int i = 0; i < 8; i++) {
        const mask minus = mask_not(at_least(x[i], every(0)));
        v[i] = choose(minus, negate(x[i]), x[i]);
        bits = int_or(bits, choose_int(minus, every_int(1 << i), every_int(0)));
        odd = int_xor(odd, choose_int(minus, every_int(1), every_int(0)));
    }
    if (!even) return bits;
    wide least = multiply(multiply(w[0], x[0]), x[0]);
    for (int i = 1; i < 8; i++) {
        const wide cost = multiply(multiply(w[i], x[i]), x[i]);
        const mask cheaper = less(cost, least);
        least = choose(cheaper, cost, least);
        at = choose_int(cheaper, every_int(i), at);
    }
    const mask flip = int_same(odd, every_int(1));
    for (int i = 0; i < 8; i++) v[i] = choose(mask_and(flip, int_same(at, every_int(i))), negate(v[i]), v[i]);
    bits = choose_int(flip, int_xor(bits, shift_each(every_int(1), at)), bits);
    return int_and(bits, every_int(127));
}

/* What one family member does differently. */
typedef struct {
    int group;      /* values with one scale */
    int size, bits; /* values and bits per level of a word */
    int even;       /* seven stored signs */
    enum redo redo;
    int reach;        /* candidates on either side */
    float step, tiny; /* their distance; groups below this are zero (0: those that are zero) */
} iq_kind;

typedef struct {
    wide scale;
    wide_int word[8], signs[4];
    mask dead;
} iq_fit;

INLINE wide_int odd_word(const wide *x, wide id, int size, int bits) {
    wide level[8];
    for (int i = 0; i < size; i++)
        level[i] = within(nearest(multiply(every(0.5f), subtract(multiply(id, x[i]), every(1)))), 0, bits == 2 ? 2 : 7);
    return word_of(level, size, bits);
}

INLINE void fit_words(const wide *v, const wide *w, const wide *wv, const wide_int *word, const iq_kind *kind,
                      wide *sumqx, wide *sumq2) {
    (void)v;
    *sumqx = *sumq2 = every(0);
    for (int k = 0; k < kind->group / kind->size; k++)
        for (int i = 0; i < kind->size; i++) {
            const int j = kind->size * k + i;
            const wide q = to_float(int_add(shift_left(level_of(word[k], i, kind->bits), 1), every_int(1)));
            *sumqx = add(*sumqx, multiply(wv[j], q));
            *sumq2 = add(*sumq2, multiply(multiply(w[j], q), q));
        }
}

INLINE void search_words(const wide *x, const wide *w, const ggufx_lattice *t, const iq_kind *kind, iq_fit *fit) {
    const int words = kind->group / kind->size, top = kind->bits == 2 ? 5 : 15;
    wide v[32], wv[32], roots[32], odd[8], sumqx, sumq2;
    for (int k = 0; k < kind->group / 8; k++) fit->signs[k] = split_signs(x + 8 * k, w + 8 * k, v + 8 * k, kind->even);
    wide high = v[0];
    for (int i = 0; i < kind->group; i++) {
        high = larger(high, v[i]);
        roots[i] = root(w[i]);
        wv[i] = multiply(w[i], v[i]);
    }
    for (int l = 0; l < 8; l++) odd[l] = every((float)(2 * l + 1));
    fit->dead = kind->tiny != 0 ? less(high, every(kind->tiny)) : same(high, every(0));

    wide reach = high;
    if (kind->redo == REDO_ALL) {
        wide unused[32];
        fit->scale = search_positive_scale(v, w, unused, 32, 4);
        reach = multiply(fit->scale, every(3));
        fit->dead = mask_or(fit->dead, mask_not(more(reach, every(0))));
    } else {
        fit->scale = divide(high, every((float)top));
    }
    wide best = every(0);
    mask on[8], was_on[8];
    for (int k = 0; k < words; k++) {
        fit->word[k] = every_int(0);
        on[k] = every_mask(kind->redo == REDO_OFF);
    }
    if (any(mask_not(fit->dead)))
        for (int step = -kind->reach; step <= kind->reach; step++) {
            const wide id = divide(every((float)top + (float)step * kind->step), reach), scale = divide(every(1), id);
            wide_int word[8];
            for (int k = 0; k < words; k++) {
                const int at = kind->size * k;
                word[k] = odd_word(v + at, id, kind->size, kind->bits);
                word[k] = snapped(t, word[k], v + at, roots + at, scale, odd, kind->size, kind->bits, &was_on[k]);
            }
            fit_words(v, w, wv, word, kind, &sumqx, &sumq2);
            const mask better = mask_and(more(sumq2, every(0)), more(multiply(sumqx, sumqx), multiply(best, sumq2)));
            fit->scale = choose(better, divide(sumqx, sumq2), fit->scale);
            best = choose(better, multiply(fit->scale, sumqx), best);
            for (int k = 0; k < words; k++) {
                fit->word[k] = choose_int(better, word[k], fit->word[k]);
                on[k] = mask_or(mask_and(better, was_on[k]), mask_and(mask_not(better), on[k]));
            }
        }

    /* Once more with the scale that was found. */
    mask all_on = every_mask(1);
    for (int k = 0; k < words; k++) all_on = mask_and(all_on, on[k]);
    mask again = mask_and(mask_not(fit->dead), more(fit->scale, every(0)));
    if (kind->redo != REDO_ALL) again = mask_and(again, mask_not(all_on));
    if (any(again)) {
        const wide id = divide(every(1), fit->scale);
        for (int k = 0; k < words; k++) {
            const int at = kind->size * k;
            mask unused;
            wide_int word = odd_word(v + at, id, kind->size, kind->bits);
            word = snapped(t, word, v + at, roots + at, fit->scale, odd, kind->size, kind->bits, &unused);
            const mask take = kind->redo == REDO_OFF ? mask_and(again, mask_not(on[k])) : again;
            fit->word[k] = choose_int(take, word, fit->word[k]);
        }
        fit_words(v, w, wv, fit->word, kind, &sumqx, &sumq2);
        fit->scale = choose(mask_and(again, more(sumq2, every(0))), divide(sumqx, sumq2), fit->scale);
    }

    const mask minus = less(fit->scale, every(0));
    for (int k = 0; k < kind->group / 8; k++) {
        const wide_int flipped = int_xor(fit->signs[k], every_int(kind->even ? 127 : 255));
        fit->signs[k] = zero_int_where(fit->dead, choose_int(minus, flipped, fit->signs[k]));
    }
    for (int k = 0; k < words; k++) fit->word[k] = zero_int_where(fit->dead, gather(t->place, fit->word[k]));
    fit->scale = zero_where(fit->dead, magnitude(fit->scale));
}

static void encode_iq2_xxs(const columns *in, uint8_t *const *block) {
    const iq_kind kind = {32, 8, 2, 1, REDO_ALL, 6, 0.1f, TINY};
    const wide sigma2 = divide(sum_of_squares(in->x, 256), every(256));
    wide scales[8];
    wide_int low[8], high[8], codes[8];
    for (int j = 0; j < 8; j++) {
        wide w[32];
        iq_fit fit;
        for (int i = 0; i < 32; i++) w[i] = weight(in->x[32 * j + i], in->qw[32 * j + i], sigma2);
        search_words(in->x + 32 * j, w, in->lattice, &kind, &fit);
        scales[j] = fit.scale;
        low[j] = high[j] = every_int(0);
        for (int k = 0; k < 4; k++) {
            low[j] = int_or(low[j], shift_left(fit.word[k], 8 * k));
            high[j] = int_or(high[j], shift_left(fit.signs[k], 7 * k));
        }
    }
    const wide d = odd_scales(scales, codes, 8, 31, 15);
    const mask dead = same(d, every(0));
    pack(block, 0, half_of(d), 2);
    for (int j = 0; j < 8; j++) {
        pack(block, 2 + 8 * (size_t)j, zero_int_where(dead, low[j]), 4);
        pack(block, 6 + 8 * (size_t)j, zero_int_where(dead, int_or(high[j], shift_left(codes[j], 28))), 4);
    }
}

static void encode_iq2_xs(const columns *in, uint8_t *const *block) {
    const iq_kind kind = {16, 8, 2, 1, REDO_OFF, 9, 0.1f, TINY};
    const wide sigma2 = divide(sum_of_squares(in->x, 256), every(256));
    wide scales[16];
    wide_int pair[16], codes[16], nibbles[8];
    for (int j = 0; j < 16; j++) {
        wide w[16];
        iq_fit fit;
        for (int i = 0; i < 16; i++) w[i] = weight(in->x[16 * j + i], in->qw[16 * j + i], sigma2);
        search_words(in->x + 16 * j, w, in->lattice, &kind, &fit);
        scales[j] = fit.scale;
        const wide_int first = int_or(fit.word[0], shift_left(fit.signs[0], 9));
        pair[j] = int_or(first, shift_left(int_or(fit.word[1], shift_left(fit.signs[1], 9)), 16));
    }
    const wide d = odd_scales(scales, codes, 16, 31, 15);
    const mask dead = same(d, every(0));
    pack(block, 0, half_of(d), 2);
    for (int j = 0; j < 16; j++) pack(block, 2 + 4 * (size_t)j, zero_int_where(dead, pair[j]), 4);
    for (int j = 0; j < 8; j++) nibbles[j] = int_or(codes[2 * j], shift_left(codes[2 * j + 1], 4));
    pack_bytes(block, 66, nibbles, 8);
}

static void encode_iq2_s(const columns *in, uint8_t *const *block) {
    const iq_kind kind = {16, 8, 2, 0, REDO_OFF, 9, 0.1f, 1e-8f};
    const wide sigma2 = divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256));
    const wide plain = multiply(every(0.25f), sigma2);
    wide scales[16];
    wide_int words[32], signs[32], codes[16], high[8], nibbles[8];
    for (int j = 0; j < 16; j++) {
        wide w[16];
        iq_fit fit;
        for (int i = 0; i < 16; i++) {
            const wide x = in->x[16 * j + i];
            w[i] = in->qw ? weight(x, in->qw[16 * j + i], sigma2) : add(plain, multiply(x, x));
        }
        search_words(in->x + 16 * j, w, in->lattice, &kind, &fit);
        scales[j] = fit.scale;
        for (int k = 0; k < 2; k++) words[2 * j + k] = fit.word[k], signs[2 * j + k] = fit.signs[k];
    }
    const wide d = odd_scales(scales, codes, 16, 31, 15);
    for (int j = 0; j < 8; j++) {
        nibbles[j] = int_or(codes[2 * j], shift_left(codes[2 * j + 1], 4));
        high[j] = every_int(0);
        for (int k = 0; k < 4; k++) high[j] = int_or(high[j], shift_left(shift_right(words[4 * j + k], 8), 2 * k));
    }
    pack(block, 0, half_of(multiply(d, every(0.9875f))), 2);
    pack_bytes(block, 2, words, 32);
    pack_bytes(block, 34, signs, 32);
    pack_bytes(block, 66, high, 8);
    pack_bytes(block, 74, nibbles, 8);
}

INLINE void iq3_weights(const columns *in, wide *w, int start, int n, wide sigma2) {
    for (int i = 0; i < n; i++) {
        const wide x = in->x[start + i];
        w[i] = in->qw ? weight(x, in->qw[start + i], sigma2) : multiply(x, x);
    }
}

static void encode_iq3_xxs(const columns *in, uint8_t *const *block) {
    const iq_kind kind = {32, 4, 3, 1, REDO_OFF, 15, 0.2f, 1e-8f};
    const wide sigma2 = divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256));
    wide scales[8];
    wide_int words[64], tail[8], codes[8];
    for (int j = 0; j < 8; j++) {
        wide w[32];
        iq_fit fit;
        iq3_weights(in, w, 32 * j, 32, sigma2);
        search_words(in->x + 32 * j, w, in->lattice, &kind, &fit);
        scales[j] = fit.scale;
        tail[j] = every_int(0);
        for (int k = 0; k < 8; k++) words[8 * j + k] = fit.word[k];
        for (int k = 0; k < 4; k++) tail[j] = int_or(tail[j], shift_left(fit.signs[k], 7 * k));
    }
    const wide d = odd_scales(scales, codes, 8, 31, 15);
    const mask dead = same(d, every(0));
    for (int k = 0; k < 64; k++) words[k] = zero_int_where(dead, words[k]);
    pack(block, 0, half_of(multiply(d, every(1.0125f))), 2);
    pack_bytes(block, 2, words, 64);
    for (int j = 0; j < 8; j++)
        pack(block, 66 + 4 * (size_t)j, zero_int_where(dead, int_or(tail[j], shift_left(codes[j], 28))), 4);
}

static void encode_iq3_s(const columns *in, uint8_t *const *block) {
    const iq_kind kind = {32, 4, 3, 0, REDO_ANY, 9, 0.2f, 0};
    const wide sigma2 = divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256));
    wide scales[8];
    wide_int low[8][2], signs[8], high = every_int(0), high2 = every_int(0), codes[8], nibbles[4];
    mask zeros = every_mask(0);
    unsigned dead[8];
    for (int j = 0; j < 8; j++) {
        wide w[32];
        iq_fit fit;
        iq3_weights(in, w, 32 * j, 32, sigma2);
        search_words(in->x + 32 * j, w, in->lattice, &kind, &fit);
        scales[j] = fit.scale;
        dead[j] = mask_bits(fit.dead);
        zeros = mask_or(zeros, fit.dead);
        low[j][0] = low[j][1] = signs[j] = every_int(0);
        for (int k = 0; k < 4; k++) {
            low[j][0] = int_or(low[j][0], nth_byte(fit.word[k], k));
            low[j][1] = int_or(low[j][1], nth_byte(fit.word[4 + k], k));
            signs[j] = int_or(signs[j], shift_left(fit.signs[k], 8 * k));
        }
        for (int k = 0; k < 8; k++) {
            const wide_int bit = shift_left(shift_right(fit.word[k], 8), 8 * (j & 3) + k);
            if (j < 4)
                high = int_or(high, bit);
            else
                high2 = int_or(high2, bit);
        }
    }
    const wide d = odd_scales(scales, codes, 8, 31, 15);
    pack(block, 0, half_of(multiply(d, every(1.033f))), 2);
    for (int j = 0; j < 8; j++) {
        pack(block, 2 + 8 * (size_t)j, low[j][0], 4);
        pack(block, 6 + 8 * (size_t)j, low[j][1], 4);
        pack(block, 74 + 4 * (size_t)j, signs[j], 4);
    }
    pack(block, 66, high, 4);
    pack(block, 70, high2, 4);
    for (int j = 0; j < 4; j++) nibbles[j] = int_or(codes[2 * j], shift_left(codes[2 * j + 1], 4));
    pack_bytes(block, 106, nibbles, 4);

    /* ggml passes over a group of zeros without moving on in the low bytes and the signs, so those of the groups after
     * it move up (and decode wrongly: such a block loses its values). Its bytes are what is asked for. */
    for (int lane = 0; any(zeros) && lane < LANES; lane++) {
        int to = 0;
        for (int j = 0; j < 8; j++) {
            if (dead[j] >> lane & 1) continue;
            memmove(block[lane] + 2 + 8 * to, block[lane] + 2 + 8 * j, 8);
            memmove(block[lane] + 74 + 4 * to, block[lane] + 74 + 4 * j, 4);
            to++;
        }
        memset(block[lane] + 2 + 8 * to, 0, 8 * (size_t)(8 - to));
        memset(block[lane] + 74 + 4 * to, 0, 4 * (size_t)(8 - to));
    }
}

#endif
