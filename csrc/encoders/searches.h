/* The searches behind ggml's quantizers, LANES groups side by side: which scale, minimum and codes lose least.
 * ggufx/codec/reference/searches.py explains each; the order of every sum is ggml's. */
#ifndef GGUFX_ENCODERS_SEARCHES_H
#define GGUFX_ENCODERS_SEARCHES_H

#include "arithmetic.h"

/* A symmetric group: scale, the inverse scale that made the codes, and where there was nothing to code. */
typedef struct {
    wide scale, inverse;
    mask dead;
} signed_fit;

INLINE wide signed_code(wide x, wide inverse, int nmax) {
    return within(nearest(multiply(inverse, x)), (float)-nmax, (float)(nmax - 1));
}

/* make_qx_quants, rmse type 1, with weights w. Steps don't depend on each other, so two run side by side. */
INLINE signed_fit search_signed_scale(const wide *x, const wide *w, int n, int nmax) {
    const peak top = first_peak(x, n);
    wide wx[32];
    wide iscale = divide(every((float)-nmax), top.value), sumlx = every(0), suml2 = every(0);
    UNROLL(4)
    for (int i = 0; i < n; i++) {
        const wide l = signed_code(x[i], iscale, nmax);
        wx[i] = multiply(w[i], x[i]);
        sumlx = add(sumlx, multiply(wx[i], l));
        suml2 = add(suml2, multiply(multiply(w[i], l), l));
    }
    signed_fit fit = {choose(differs(suml2, every(0)), divide(sumlx, suml2), every(0)), iscale,
                      less(top.size, every(TINY))};
    wide best = multiply(fit.scale, sumlx);
    for (int step = -9; step <= 9; step += step == -1 ? 2 : 1) {
        int next = step + 1 + (step == -1);
        const wide iscale1 = divide(every(-((float)nmax + 0.1f * (float)step)), top.value);
        const wide iscale2 = divide(every(-((float)nmax + 0.1f * (float)next)), top.value);
        wide sumlx1 = every(0), suml21 = every(0), sumlx2 = every(0), suml22 = every(0);
        UNROLL(4)
        for (int i = 0; i < n; i++) {
            const wide l1 = signed_code(x[i], iscale1, nmax), l2 = signed_code(x[i], iscale2, nmax);
            sumlx1 = add(sumlx1, multiply(wx[i], l1));
            sumlx2 = add(sumlx2, multiply(wx[i], l2));
            suml21 = add(suml21, multiply(multiply(w[i], l1), l1));
            suml22 = add(suml22, multiply(multiply(w[i], l2), l2));
        }
        step = next;
#define OFFER(k)                                                                                                       \
    {                                                                                                                  \
        const mask better =                                                                                            \
            mask_and(more(suml2##k, every(0)), more(multiply(sumlx##k, sumlx##k), multiply(best, suml2##k)));          \
        fit.scale = choose(better, divide(sumlx##k, suml2##k), fit.scale);                                             \
        best = choose(better, multiply(fit.scale, sumlx##k), best);                                                    \
        fit.inverse = choose(better, iscale##k, fit.inverse);                                                          \
    }
        OFFER(1)
        OFFER(2)
#undef OFFER
    }
    fit.scale = zero_where(fit.dead, fit.scale);
    return fit;
}

/* Codes 0 to 2*nmax-1 of a searched group. */
INLINE wide searched_code(wide x, const signed_fit *fit, int nmax) {
    return zero_where(fit->dead, add(signed_code(x, fit->inverse, nmax), every((float)nmax)));
}

/* make_q3_quants for REFINED groups of sixteen, one after the other in x: their scales, and codes -nmax to nmax-1, or
 * -nmax in groups of nothing. Each code waits for the sums of the one before, a division included; groups that wait
 * side by side hide that. */
enum { REFINED = 4 };

INLINE void search_refined_scales(const wide *x, wide *codes, wide *scales, int nmax) {
    wide w[16 * REFINED], wx[16 * REFINED], sumlx[REFINED], suml2[REFINED];
    mask dead[REFINED], active[REFINED], some = every_mask(0);
    for (int g = 0; g < REFINED; g++) {
        const peak top = first_peak(x + 16 * g, 16);
        const wide iscale = divide(every((float)-nmax), top.value);
        dead[g] = less(top.size, every(TINY));
        active[g] = mask_not(dead[g]);
        some = mask_or(some, active[g]);
        sumlx[g] = suml2[g] = every(0);
        UNROLL(4)
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            const wide l = codes[i] = signed_code(x[i], iscale, nmax);
            w[i] = multiply(x[i], x[i]);
            wx[i] = multiply(w[i], x[i]);
            sumlx[g] = add(sumlx[g], multiply(wx[i], l));
            suml2[g] = add(suml2[g], multiply(multiply(w[i], l), l));
        }
    }
    for (int pass = 0; pass < 5 && any(some); pass++) {
        mask changed[REFINED];
        UNROLL(REFINED)
        for (int g = 0; g < REFINED; g++) changed[g] = every_mask(0);
        for (int i = 0; i < 16; i++) {
            UNROLL(REFINED)
            for (int g = 0; g < REFINED; g++) {
                const int at = 16 * g + i;
                const wide l = codes[at];
                wide slx = subtract(sumlx[g], multiply(wx[at], l));
                wide sl2 = subtract(suml2[g], multiply(multiply(w[at], l), l));
                const wide m = within(nearest(divide(multiply(x[at], sl2), slx)), (float)-nmax, (float)(nmax - 1));
                mask better = mask_and(mask_and(active[g], more(slx, every(0))), differs(m, l));
                slx = add(slx, multiply(wx[at], m));
                sl2 = add(sl2, multiply(multiply(w[at], m), m));
                const wide now = multiply(multiply(slx, slx), suml2[g]);
                const wide then = multiply(multiply(sumlx[g], sumlx[g]), sl2);
                better = mask_and(better, mask_and(more(sl2, every(0)), more(now, then)));
                codes[at] = choose(better, m, l);
                sumlx[g] = choose(better, slx, sumlx[g]);
                suml2[g] = choose(better, sl2, suml2[g]);
                changed[g] = mask_or(changed[g], better);
            }
        }
        some = every_mask(0);
        UNROLL(REFINED)
        for (int g = 0; g < REFINED; g++) some = mask_or(some, active[g] = mask_and(active[g], changed[g]));
    }
    for (int g = 0; g < REFINED; g++) {
        for (int i = 16 * g; i < 16 * g + 16; i++) codes[i] = choose(dead[g], every((float)-nmax), codes[i]);
        scales[g] =
            zero_where(mask_not(mask_and(mask_not(dead[g]), more(suml2[g], every(0)))), divide(sumlx[g], suml2[g]));
    }
}

/* An offset group: scale, negated minimum, and what made the codes: inverse scale, and the minimum of that time. */
typedef struct {
    wide scale, below, inverse, origin;
} offset_fit;

INLINE wide offset_code(wide x, wide inverse, wide origin, int nmax) {
    return within(nearest(multiply(inverse, subtract(x, origin))), 0, (float)nmax);
}

/* make_qkx2_quants and make_qkx3_quants. A step that improves moves the minimum that later steps start from. */
INLINE offset_fit search_min_and_scale(const wide *x, const wide *w, int n, int nmax, float rmin, float rdelta,
                                       int steps, int absolute) {
    wide low = x[0], high = x[0], sum_w = w[0], sum_x = multiply(w[0], x[0]);
    for (int i = 1; i < n; i++) {
        low = smaller(x[i], low);
        high = larger(x[i], high);
        sum_w = add(sum_w, w[i]);
        sum_x = add(sum_x, multiply(w[i], x[i]));
    }
    low = zero_where(more(low, every(0)), low);
    const mask flat = at_least(low, high);
    wide iscale = divide(every((float)nmax), subtract(high, low)), l[32], best = every(0), least = low;
    offset_fit fit = {divide(every(1), iscale), low, iscale, low};
    for (int i = 0; i < n; i++) {
        const wide code = offset_code(x[i], iscale, low, nmax);
        const wide diff = subtract(add(multiply(fit.scale, code), low), x[i]);
        best = add(best, multiply(w[i], absolute ? magnitude(diff) : multiply(diff, diff)));
    }
    for (int step = 0; step <= steps; step++) {
        iscale = divide(every(rmin + rdelta * (float)step + (float)nmax), subtract(high, least));
        wide sum_l = every(0), sum_l2 = every(0), sum_xl = every(0), loss = every(0);
        UNROLL(4)
        for (int i = 0; i < n; i++) {
            l[i] = offset_code(x[i], iscale, least, nmax);
            const wide wl = multiply(w[i], l[i]);
            sum_l = add(sum_l, wl);
            sum_l2 = add(sum_l2, multiply(wl, l[i]));
            sum_xl = add(sum_xl, multiply(wl, x[i]));
        }
        const wide det = subtract(multiply(sum_w, sum_l2), multiply(sum_l, sum_l));
        wide scale = divide(subtract(multiply(sum_w, sum_xl), multiply(sum_x, sum_l)), det);
        wide start = divide(subtract(multiply(sum_l2, sum_x), multiply(sum_l, sum_xl)), det);
        const mask positive = more(start, every(0));
        start = zero_where(positive, start);
        scale = choose(positive, divide(sum_xl, sum_l2), scale);
        UNROLL(4)
        for (int i = 0; i < n; i++) {
            const wide diff = subtract(add(multiply(scale, l[i]), start), x[i]);
            loss = add(loss, multiply(w[i], absolute ? magnitude(diff) : multiply(diff, diff)));
        }
        const mask better = mask_and(more(det, every(0)), less(loss, best));
        best = choose(better, loss, best);
        fit.inverse = choose(better, iscale, fit.inverse);
        fit.origin = choose(better, least, fit.origin);
        fit.scale = choose(better, scale, fit.scale);
        least = choose(better, start, least);
    }
    fit.scale = zero_where(flat, fit.scale);
    fit.below = negate(choose(flat, low, least));
    /* Nothing to code: every code becomes nearest(0 * (x - 0)). */
    fit.inverse = zero_where(flat, fit.inverse);
    fit.origin = zero_where(flat, fit.origin);
    return fit;
}

INLINE wide as_byte(wide code) { return to_float(int_and(to_int(code), every_int(255))); }

/* make_qp_quants. ggml keeps the codes in bytes: -1 takes part in its first sums as -1 and in later ones as 255. */
INLINE wide search_positive_scale(const wide *x, const wide *w, wide *codes, int n, int nmax) {
    const wide high = highest_positive(x, n), top = every((float)nmax);
    const mask dead = less(high, every(TINY));
    wide best_iscale = divide(top, high), best = every(0), sumlx = every(0), suml2 = every(0);
    const wide first = divide(every(1), best_iscale);
    for (int i = 0; i < n; i++) {
        const wide diff = subtract(x[i], multiply(first, as_byte(nearest(multiply(best_iscale, x[i])))));
        best = add(best, multiply(multiply(w[i], diff), diff));
    }
    for (int step = -4; step <= 4; step++) {
        if (!step) continue;
        const wide iscale = divide(every(0.1f * (float)step + (float)nmax), high), scale = divide(every(1), iscale);
        wide loss = every(0);
        for (int i = 0; i < n; i++) {
            const wide diff = subtract(x[i], multiply(scale, smaller(top, nearest(multiply(iscale, x[i])))));
            loss = add(loss, multiply(multiply(w[i], diff), diff));
        }
        const mask better = less(loss, best);
        best = choose(better, loss, best);
        best_iscale = choose(better, iscale, best_iscale);
    }
    for (int i = 0; i < n; i++) {
        const wide l = smaller(top, nearest(multiply(best_iscale, x[i])));
        sumlx = add(sumlx, multiply(multiply(w[i], x[i]), l));
        suml2 = add(suml2, multiply(multiply(w[i], l), l));
        codes[i] = as_byte(l);
    }
    mask active = mask_not(dead);
    for (int pass = 0; pass < 5 && any(active); pass++) {
        mask changed = every_mask(0);
        for (int i = 0; i < n; i++) {
            const wide l = codes[i], wx = multiply(w[i], x[i]);
            wide slx = subtract(sumlx, multiply(wx, l));
            wide sl2 = subtract(suml2, multiply(multiply(w[i], l), l));
            const wide m = smaller(top, nearest(divide(multiply(x[i], sl2), slx)));
            mask better = mask_and(mask_and(active, differs(m, l)), mask_and(more(slx, every(0)), more(sl2, every(0))));
            slx = add(slx, multiply(wx, m));
            sl2 = add(sl2, multiply(multiply(w[i], m), m));
            const wide now = multiply(multiply(slx, slx), suml2), then = multiply(multiply(sumlx, sumlx), sl2);
            better = mask_and(better, more(now, then));
            codes[i] = choose(better, as_byte(m), l);
            sumlx = choose(better, slx, sumlx);
            suml2 = choose(better, sl2, suml2);
            changed = mask_or(changed, better);
        }
        active = mask_and(active, changed);
    }
    for (int i = 0; i < n; i++) codes[i] = zero_where(dead, codes[i]);
    return zero_where(mask_not(mask_and(mask_not(dead), more(suml2, every(0)))), divide(sumlx, suml2));
}

#endif
