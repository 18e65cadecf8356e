/* The figures of model_diff: their sums over rows, and how they are printed and drawn. */
#ifndef EXAMPLES_MODEL_DIFF_FIGURES_H
#define EXAMPLES_MODEL_DIFF_FIGURES_H

#include "files.h"

#include <math.h>

/* ---- statistics ---- */

typedef struct moments {
    int64_t count;
    double mean, squares; /* squares: of the differences from the mean */
} moments;

static void add(moments *m, double value) {
    const double off = value - m->mean;
    m->mean += off / (double)++m->count;
    m->squares += off * (value - m->mean);
}

/* The standard error of the mean; NaN of one number. */
static double standard_error(const moments *m) {
    return m->count > 1 ? sqrt(m->squares / (double)(m->count - 1) / (double)m->count) : (double)NAN;
}

static struct {
    double *kls; /* of the rows that count; sorted in the end */
    moments kl, loss[SIDES], more_loss, equal_top, squared_p_difference;
    int64_t nonfinite_rows, cut_off[SIDES];
} total;

static int compare_doubles(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Between two ranks it is interpolated. */
static double quantile(double share) {
    const double rank = share * (double)(total.kl.count - 1);
    const int64_t below = (int64_t)rank, above = below + (below + 1 < total.kl.count);
    return total.kls[below] + (rank - (double)below) * (total.kls[above] - total.kls[below]);
}

/* ---- figures ---- */

static FILE *open_output(const char *path) {
    FILE *out = path != NULL ? fopen(path, "w") : NULL;
    if (path != NULL && out == NULL)
        die(OTHER_ERROR, "%s: cannot be written: %s", path, strerror(errno));
    return out;
}

static void close_output(const char *path, FILE *out) {
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        die(OTHER_ERROR, "%s: could not be written: %s", path, strerror(errno));
}

/* Prints a figure, with its standard error if it has one, and writes it to csv if that is wanted. */
static void figure(FILE *csv, const char *name, const char *description, double value, const double *error) {
    printf("%-44s %12.7g", description, value);
    if (error != NULL)
        printf(isnan(*error) ? " +- unknown" : " +- %.3g", *error);
    printf("\n");
    if (csv != NULL)
        fprintf(csv, "%s,%.17g,", name, value);
    if (csv != NULL && error != NULL)
        fprintf(csv, "%.17g", *error);
    if (csv != NULL)
        fprintf(csv, "\n");
}

static void print_figures(FILE *csv) {
    static const struct {
        const char *name, *description;
        double share;
    } quantiles[] = {{"kl_median", "  median", 0.5}, {"kl_90", "  90 %", 0.9},       {"kl_95", "  95 %", 0.95},
                     {"kl_99", "  99 %", 0.99},      {"kl_99_9", "  99.9 %", 0.999}, {"kl_largest", "  largest", 1}};
    double error;
    size_t i;
    int side;
    if (csv != NULL)
        fprintf(csv, "figure,value,standard_error\n");
    for (side = 0; side < SIDES; side++)
        printf("%-5s  %s\n", role[side], sides[side].path);
    figure(csv, "tokens", "tokens", (double)total.kl.count, NULL);
    if (total.nonfinite_rows > 0)
        figure(csv, "nonfinite_rows", "rows left out: NaN or infinite", (double)total.nonfinite_rows, NULL);
    if (work.has_targets) {
        static const char *const names[SIDES] = {"perplexity_base", "perplexity_other"};
        for (side = 0; side < SIDES; side++) {
            const double perplexity = exp(total.loss[side].mean);
            error = perplexity * standard_error(&total.loss[side]);
            figure(csv, names[side], side == BASE ? "perplexity of BASE" : "perplexity of OTHER", perplexity, &error);
        }
        error = exp(total.more_loss.mean) * standard_error(&total.more_loss);
        figure(csv, "perplexity_ratio", "perplexity of OTHER / of BASE", exp(total.more_loss.mean), &error);
    }
    error = standard_error(&total.kl);
    figure(csv, "kl_mean", "KL(BASE || OTHER) a token, in nats: mean", total.kl.mean, &error);
    for (i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
        figure(csv, quantiles[i].name, quantiles[i].description, quantile(quantiles[i].share), NULL);
    if (work.has_targets)
        figure(csv, "p_difference_rms", "p of the true token: RMS difference", sqrt(total.squared_p_difference.mean),
               NULL);
    error = standard_error(&total.equal_top);
    figure(csv, "equal_top", "equal top tokens: share", total.equal_top.mean, &error);
    if (work.is_kld) {
        figure(csv, "cut_off_base", "true tokens at the cut-off of BASE", (double)total.cut_off[BASE], NULL);
        figure(csv, "cut_off_other", "true tokens at the cut-off of OTHER", (double)total.cut_off[OTHER], NULL);
    }
    if (!work.has_targets)
        printf("Left out without --targets: perplexities, and p of the true token.\n");
}

/* ---- histogram ---- */

/* In pixels. SMALL: the width for the bar at the left. */
enum { WIDTH = 800, HEIGHT = 460, LEFT = 80, RIGHT = 770, TOP = 120, BOTTOM = 400, SMALL_BAR = 24, SMALL = 60 };
enum { BINS_A_DECADE = 10, MOST_DECADES = 10, MOST_TICKS = 6 };

static void write_text(FILE *svg, const char *text) {
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < ' ' || c == '<' || c == '>' || c == '&')
            fprintf(svg, "&#%d;", c < ' ' ? '?' : c);
        else
            fputc(c, svg);
    }
}

static void write_bar(FILE *svg, double x, double width, int64_t count, double height, double from, double to) {
    fprintf(svg, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#3465a4\">", x, BOTTOM - height,
            width, height);
    fprintf(svg, "<title>%.3g to %.3g nats, tokens: %lld</title></rect>\n", from, to, (long long)count);
}

/* Bars of equal width on a logarithmic axis. The bar at the left has the numbers that are 0, or MOST_DECADES below the
 * largest. */
static void write_svg(FILE *svg) {
    static const struct {
        const char *name;
        double share;
    } marks[] = {{"median", 0.5}, {"90 %", 0.9}, {"99 %", 0.99}};
    const double largest = total.kls[total.kl.count - 1];
    const int high = largest > 0 ? (int)floor(log10(largest)) + 1 : 0;
    int64_t counts[MOST_DECADES * BINS_A_DECADE] = {0}, small = 0, most = 0, at, step;
    int low, bins, bin;
    double pixels_a_decade, pixels_a_token, x;
    size_t i;
    for (at = 0; at + 1 < total.kl.count && total.kls[at] <= 0; at++)
        continue;
    low = total.kls[at] > 0 ? (int)floor(log10(total.kls[at])) : high - 1;
    if (low < high - MOST_DECADES)
        low = high - MOST_DECADES;
    bins = (high - low) * BINS_A_DECADE;
    for (at = 0; at < total.kl.count; at++) {
        const double place = total.kls[at] > 0 ? floor((log10(total.kls[at]) - low) * BINS_A_DECADE) : -1;
        if (place < 0)
            small++;
        else
            counts[place < bins ? (int)place : bins - 1]++;
    }
    for (bin = 0, most = small; bin < bins; bin++)
        most = counts[bin] > most ? counts[bin] : most;
    pixels_a_decade = (double)(RIGHT - LEFT - SMALL) / (high - low);
    pixels_a_token = (double)(BOTTOM - TOP) / (double)most;

    fprintf(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" ", WIDTH,
            HEIGHT, WIDTH, HEIGHT);
    fprintf(svg,
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    fprintf(svg, "<text x=\"%d\" y=\"26\" font-size=\"18\">KL(BASE || OTHER) of %lld tokens, mean %.4g</text>\n", LEFT,
            (long long)total.kl.count, total.kl.mean);
    for (i = 0; i < SIDES; i++) {
        fprintf(svg, "<text x=\"%d\" y=\"%d\">%s: ", LEFT, 46 + 16 * (int)i, role[i]);
        write_text(svg, sides[i].path);
        fprintf(svg, "</text>\n");
    }
    /* The least of 1, 2, 5, 10, 20, 50, ... with no more ticks than wanted. */
    for (step = 1, i = 0; most / step > MOST_TICKS; i++)
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    for (at = 0; at <= most; at += step) {
        const double y = BOTTOM - pixels_a_token * (double)at;
        fprintf(svg, "<path d=\"M%d %.2fH%d\" stroke=\"#ddd\"/>", LEFT, y, RIGHT);
        fprintf(svg, "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%lld</text>\n", LEFT - 6, y + 4, (long long)at);
    }
    for (bin = 0; bin < bins; bin++)
        if (counts[bin] > 0)
            write_bar(svg, LEFT + SMALL + pixels_a_decade * bin / BINS_A_DECADE, pixels_a_decade / BINS_A_DECADE - 0.5,
                      counts[bin], pixels_a_token * (double)counts[bin], pow(10, low + (double)bin / BINS_A_DECADE),
                      pow(10, low + (bin + 1.0) / BINS_A_DECADE));
    if (small > 0) {
        write_bar(svg, LEFT, SMALL_BAR, small, pixels_a_token * (double)small, 0, pow(10, low));
        fprintf(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">less</text>\n", LEFT + SMALL_BAR / 2, BOTTOM + 18);
    }
    for (bin = low; bin <= high; bin++) {
        x = LEFT + SMALL + pixels_a_decade * (bin - low);
        fprintf(svg, "<path d=\"M%.2f %dv5\" stroke=\"#000\"/>", x, BOTTOM);
        fprintf(svg, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">1e%d</text>\n", x, BOTTOM + 18, bin);
    }
    fprintf(svg, "<path d=\"M%d %dH%d\" stroke=\"#000\"/>\n", LEFT, BOTTOM, RIGHT);
    for (i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const double value = quantile(marks[i].share);
        if (value < pow(10, low))
            continue;
        x = LEFT + SMALL + pixels_a_decade * (log10(value) - low);
        fprintf(svg, "<path d=\"M%.2f %dV%d\" stroke=\"#c00\" stroke-dasharray=\"4 3\"/>", x, TOP - 10 * (int)i,
                BOTTOM);
        fprintf(svg, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"%s\" fill=\"#c00\">%s %.3g</text>\n",
                x < (LEFT + RIGHT) / 2 ? x + 3 : x - 3, TOP - 2 - 12 * (int)i, x < (LEFT + RIGHT) / 2 ? "start" : "end",
                marks[i].name, value);
    }
    fprintf(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">KL of a token, in nats</text>\n", (LEFT + RIGHT) / 2,
            BOTTOM + 42);
    fprintf(svg, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">tokens</text>\n</svg>\n",
            (TOP + BOTTOM) / 2);
}

#endif
