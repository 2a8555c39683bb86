/* IQ1_S and IQ1_M: three levels, shifted up or down by an eighth. */
#ifndef GGUFX_ENCODERS_IQ1_H
#define GGUFX_ENCODERS_IQ1_H

#include "iq2_iq3.h"

#define DELTA 0.125f

static const float iq1_up[3] = {-1 + DELTA, DELTA, 1 + DELTA}, iq1_down[3] = {-1 - DELTA, -DELTA, 1 - DELTA};

/* Sorts n values, their places and weights, in each lane: Batcher's network. Equal values keep their order, as they do
 * in glibc's qsort, because places decide between them. */
INLINE void sort_columns(wide *x, wide_int *place, wide *w, int n) {
    for (int p = 1; p < n; p *= 2)
        for (int k = p; k >= 1; k /= 2)
            for (int j = k % p; j + k < n; j += 2 * k)
                for (int i = 0; i < k && i + j + k < n; i++) {
                    const int a = i + j, b = i + j + k;
                    if (a / (2 * p) != b / (2 * p)) continue;
                    const mask swap =
                        mask_or(less(x[b], x[a]), mask_and(same(x[a], x[b]), int_less(place[b], place[a])));
                    const wide xa = x[a], wa = w[a];
                    const wide_int pa = place[a];
                    x[a] = choose(swap, x[b], xa), x[b] = choose(swap, xa, x[b]);
                    w[a] = choose(swap, w[b], wa), w[b] = choose(swap, wa, w[b]);
                    place[a] = choose_int(swap, place[b], pa), place[b] = choose_int(swap, pa, place[b]);
                }
}

/* The best split of sorted values so far: level 0 below i1, 1 below i2, then 2; `kind` numbers the shifts. */
typedef struct {
    wide scale, score;
    wide_int i1, i2, kind;
} iq1_split;

INLINE void offer_split(iq1_split *best, wide sumqx, wide sumq2, int i1, int i2, int kind) {
    const mask better = mask_and(more(sumq2, every(0)), more(multiply(sumqx, sumqx), multiply(best->score, sumq2)));
    if (!any(better)) return;
    best->scale = choose(better, divide(sumqx, sumq2), best->scale);
    best->score = choose(better, multiply(best->scale, sumqx), best->score);
    best->i1 = choose_int(better, every_int(i1), best->i1);
    best->i2 = choose_int(better, every_int(i2), best->i2);
    best->kind = choose_int(better, every_int(kind), best->kind);
}

/* Codebook entries of n/8 words and the scale, from the best split; shift[k] is +-DELTA of word k. */
INLINE wide iq1_entries(const wide *x, const wide *w, const iq1_split *best, const wide_int *place, int n,
                        const wide *shift, const ggufx_lattice *t, wide_int *entry) {
    wide_int packed[2] = {every_int(0), every_int(0)}, word[4];
    const mask minus = less(best->scale, every(0));
    wide scale = magnitude(best->scale), sumqx = every(0), sumq2 = every(0);
    mask all_on = every_mask(1), on;
    for (int j = 0; j < n; j++) {
        wide_int level = int_add(choose_int(int_less(every_int(j), best->i1), every_int(0), every_int(1)),
                                 choose_int(int_less(every_int(j), best->i2), every_int(0), every_int(1)));
        level = choose_int(minus, int_subtract(every_int(2), level), level);
        const wide_int at = shift_left(place[j], 1); /* two bits each, sixteen values to a lane */
        packed[0] = int_or(packed[0], shift_each(level, at));
        if (n > 16) packed[1] = int_or(packed[1], shift_each(level, int_subtract(at, every_int(32))));
    }
    for (int k = 0; k < n / 8; k++) {
        const wide_int start = k % 2 ? shift_right(packed[k / 2], 16) : int_and(packed[k / 2], every_int(0xFFFF));
        const wide q[3] = {add(every(-1), shift[k]), shift[k], add(every(1), shift[k])};
        word[k] = snapped(t, start, x + 8 * k, w + 8 * k, scale, q, 8, 2, &on);
        all_on = mask_and(all_on, on);
        entry[k] = gather(t->place, word[k]);
    }
    for (int k = 0; k < n / 8; k++)
        for (int i = 0; i < 8; i++) {
            const wide q = add(to_float(int_subtract(level_of(word[k], i, 2), every_int(1))), shift[k]);
            const wide wq = multiply(w[8 * k + i], q);
            sumqx = add(sumqx, multiply(wq, x[8 * k + i]));
            sumq2 = add(sumq2, multiply(wq, q));
        }
    const mask refit = mask_and(mask_not(all_on), mask_and(more(sumqx, every(0)), more(sumq2, every(0))));
    return choose(refit, divide(sumqx, sumq2), scale);
}

static void encode_iq1_s(const columns *in, uint8_t *const *block) {
    enum { N = 32 };
    const wide sigma2 = divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256));
    wide scales[8];
    wide_int entries[32], down[8], codes[8];
    for (int j = 0; j < 8; j++) {
        const wide *x = in->x + N * j;
        wide w[N], xs[N], ws[N], sumx[N + 1], sumw[N + 1], last_x[2][N + 1], last_w[2][N + 1];
        wide_int place[N];
        for (int i = 0; i < N; i++) {
            w[i] = ws[i] = weight(x[i], in->qw[N * j + i], sigma2);
            xs[i] = x[i];
            place[i] = every_int(i);
        }
        const wide high = largest(x, N);
        sort_columns(xs, place, ws, N);
        sumx[0] = sumw[0] = every(0);
        for (int i = 0; i < N; i++) {
            sumx[i + 1] = add(sumx[i], multiply(ws[i], xs[i]));
            sumw[i + 1] = add(sumw[i], ws[i]);
        }
        const wide up[3] = {every(iq1_up[0]), every(iq1_up[1]), every(iq1_up[2])};
        const wide dn[3] = {every(iq1_down[0]), every(iq1_down[1]), every(iq1_down[2])};
        for (int i = 0; i <= N; i++) {
            const wide rest_x = subtract(sumx[N], sumx[i]), rest_w = subtract(sumw[N], sumw[i]);
            last_x[0][i] = multiply(rest_x, up[2]), last_w[0][i] = multiply(multiply(rest_w, up[2]), up[2]);
            last_x[1][i] = multiply(rest_x, dn[2]), last_w[1][i] = multiply(multiply(rest_w, dn[2]), dn[2]);
        }
        iq1_split best = {high, every(-FLT_MAX), every_int(-1), every_int(-1), every_int(-1)};
        for (int i1 = 0; i1 <= N; i1++) {
            const wide xu = multiply(sumx[i1], up[0]), wu = multiply(multiply(sumw[i1], up[0]), up[0]);
            const wide xd = multiply(sumx[i1], dn[0]), wd = multiply(multiply(sumw[i1], dn[0]), dn[0]);
            for (int i2 = i1; i2 <= N; i2++) {
                const wide mid_x = subtract(sumx[i2], sumx[i1]), mid_w = subtract(sumw[i2], sumw[i1]);
                const wide x1 = multiply(mid_x, up[1]), w1 = multiply(multiply(mid_w, up[1]), up[1]);
                const wide x2 = multiply(mid_x, dn[1]), w2 = multiply(multiply(mid_w, dn[1]), dn[1]);
                offer_split(&best, add(add(xu, x1), last_x[0][i2]), add(add(wu, w1), last_w[0][i2]), i1, i2, 0);
                offer_split(&best, add(add(xd, x2), last_x[1][i2]), add(add(wd, w2), last_w[1][i2]), i1, i2, 1);
            }
        }
        const mask dead = mask_or(less(high, every(1e-12f)), int_less(best.i1, every_int(0)));
        const mask minus = less(best.scale, every(0));
        const wide_int is_down = choose_int(minus, int_subtract(every_int(1), best.kind), best.kind);
        const wide s = choose(int_same(is_down, every_int(1)), every(-DELTA), every(DELTA)), shift[4] = {s, s, s, s};
        wide_int *entry = entries + 4 * j;
        scales[j] = zero_where(dead, iq1_entries(x, w, &best, place, N, shift, in->lattice, entry));
        for (int k = 0; k < 4; k++) entry[k] = zero_int_where(dead, entry[k]);
        down[j] = zero_int_where(dead, is_down);
    }
    const wide d = odd_scales(scales, codes, 8, 15, 7);
    const mask dead = same(d, every(0));
    pack(block, 0, half_of(multiply(d, every(1.125f))), 2);
    pack_bytes(block, 2, entries, 32);
    for (int j = 0; j < 8; j++) {
        wide_int word = zero_int_where(dead, shift_left(int_or(codes[j], shift_left(down[j], 3)), 12));
        for (int k = 0; k < 4; k++) word = int_or(word, shift_left(shift_right(entries[4 * j + k], 8), 3 * k));
        pack(block, 34 + 2 * (size_t)j, word, 2);
    }
}

/* Loss sums of one split: sumqx then sumq2, for the four ways to shift the halves of a group. */
typedef struct {
    wide at[8];
} iq1_sums;

INLINE void add_term(iq1_sums *s, const iq1_sums *term) {
    for (int k = 0; k < 8; k++) s->at[k] = add(s->at[k], term->at[k]);
}

static void encode_iq1_m(const columns *in, uint8_t *const *block) {
    enum { N = 16 };
    const wide sigma2 = divide(multiply(every(2), sum_of_squares(in->x, 256)), every(256));
    wide scales[16], w[256], shifts[32];
    wide_int entries[32], kinds[16], codes[16];
    iq3_weights(in, w, 0, 256, sigma2);
    for (int j = 0; j < 16; j++) {
        const wide *x = in->x + N * j;
        wide xs[N], ws[N];
        wide_int place[N];
        iq1_sums term[3][N], first = {{every(0), every(0), every(0), every(0), every(0), every(0), every(0), every(0)}};
        for (int i = 0; i < N; i++) {
            xs[i] = x[i];
            ws[i] = w[N * j + i];
            place[i] = every_int(i);
        }
        const wide high = largest(x, N);
        sort_columns(xs, place, ws, N);
        for (int i = 0; i < N; i++) {
            const mask early = int_less(place[i], every_int(8));
            for (int l = 0; l < 3; l++) {
                const wide wu = multiply(ws[i], every(iq1_up[l])), wd = multiply(ws[i], every(iq1_down[l]));
                const wide xu = multiply(wu, xs[i]), xd = multiply(wd, xs[i]);
                const wide qu = multiply(wu, every(iq1_up[l])), qd = multiply(wd, every(iq1_down[l]));
                const iq1_sums t = {{xu, choose(early, xu, xd), choose(early, xd, xu), xd, qu, choose(early, qu, qd),
                                     choose(early, qd, qu), qd}};
                term[l][i] = t;
            }
        }
        iq1_split best = {high, every(-FLT_MAX), every_int(-1), every_int(-1), every_int(-1)};
        for (int i1 = 0; i1 <= N; i1++) {
            iq1_sums middle = first;
            for (int i2 = i1; i2 <= N; i2++) {
                iq1_sums sums = middle;
                for (int i = i2; i < N; i++) add_term(&sums, &term[2][i]);
                for (int k = 0; k < 4; k++) offer_split(&best, sums.at[k], sums.at[4 + k], i1, i2, k);
                if (i2 < N) add_term(&middle, &term[1][i2]);
            }
            if (i1 < N) add_term(&first, &term[0][i1]);
        }
        const mask dead = mask_or(less(high, every(1e-7f)), int_less(best.i1, every_int(0)));
        const wide_int kind = choose_int(less(best.scale, every(0)), int_subtract(every_int(3), best.kind), best.kind);
        kinds[j] = zero_int_where(dead, kind);
        shifts[2 * j] = choose(int_less(every_int(1), kinds[j]), every(-DELTA), every(DELTA));
        shifts[2 * j + 1] =
            choose(int_same(int_and(kinds[j], every_int(1)), every_int(1)), every(-DELTA), every(DELTA));
        wide_int *entry = entries + 2 * j;
        scales[j] = zero_where(dead, iq1_entries(x, w + N * j, &best, place, N, shifts + 2 * j, in->lattice, entry));
        for (int k = 0; k < 2; k++) entry[k] = zero_int_where(dead, entry[k]);
    }
    wide d = odd_scales(scales, codes, 16, 15, 7), sumqx = every(0), sumq2 = every(0);
    const mask none = same(d, every(0));
    wide_int high[16], words[4];
    for (int k = 0; k < 4; k++) words[k] = every_int(0);
    for (int j = 0; j < 16; j++) {
        const wide odd = to_float(int_add(shift_left(codes[j], 1), every_int(1)));
        for (int k = 0; k < 2; k++) {
            uint16_t word[LANES + 16];
            int32_t entry[LANES];
            store_int_lanes(entry, entries[2 * j + k]);
            for (int lane = 0; lane < LANES; lane++) word[lane] = in->lattice->words[entry[lane]];
            const wide_int levels = load_u16(word);
            for (int i = 0; i < 8; i++) {
                const int at = N * j + 8 * k + i;
                const wide q =
                    multiply(add(to_float(int_subtract(level_of(levels, i, 2), every_int(1))), shifts[2 * j + k]), odd);
                const wide wq = multiply(w[at], q);
                sumqx = add(sumqx, multiply(wq, in->x[at]));
                sumq2 = add(sumq2, multiply(wq, q));
            }
        }
        const wide_int minus1 = shift_left(int_and(kinds[j], every_int(2)), 2),
                       minus2 = shift_left(int_and(kinds[j], every_int(1)), 7);
        high[j] = int_or(shift_right(entries[2 * j], 8), shift_left(shift_right(entries[2 * j + 1], 8), 4));
        high[j] = int_or(high[j], zero_int_where(none, int_or(minus1, minus2)));
        words[j / 4] = int_or(words[j / 4], shift_left(codes[j], 3 * (j % 4)));
    }
    d = choose(more(sumq2, every(0)), divide(sumqx, sumq2), d);
    const wide_int half = half_of(multiply(d, every(1.1125f)));
    pack_bytes(block, 0, entries, 32);
    pack_bytes(block, 32, high, 16);
    for (int k = 0; k < 4; k++) {
        const wide_int nibble = shift_left(int_and(shift_right(half, 4 * k), every_int(15)), 12);
        pack(block, 48 + 2 * (size_t)k, zero_int_where(none, int_or(words[k], nibble)), 2);
    }
}

#endif
