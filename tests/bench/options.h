/* The command lines of bench, schedules and compare: CEILINGS_PTX [--bytes N] [--most N] [--as CC] [--runs N] [LOSS],
 * and the options of each program. */
#ifndef GPULOSSI_BENCH_OPTIONS_H
#define GPULOSSI_BENCH_OPTIONS_H

/* An option that takes a whole number, a text, or nothing. The pointer to its value is not NULL. */
typedef struct bench_option {
    const char *name;
    long long *number;
    const char **text;
    int *given;
} bench_option;

typedef struct bench_options {
    const char *ceilings, *loss; /* NULL: none in particular */
    long long bytes, most, runs;
    long long as; /* 0: the GPU's own */
} bench_options;

/* `own`: the program's options, up to one without a name. `runs`: how many it has usually. Returns 0, or 1 and bench_failure
 * says why. */
int bench_parse(char **arguments, const bench_option *own, int runs, bench_options *options);

#endif
