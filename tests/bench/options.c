#include "options.h"

#include "bench.h"

#include <stdlib.h>
#include <string.h>

static const bench_option *find(const bench_option *options, const char *name) {
    while (options->name != NULL && strcmp(options->name, name) != 0)
        options++;
    return options;
}

static int set(const bench_option *option, const char *value) {
    char *end;
    if (value == NULL)
        return bench_fail("%s: nothing follows it", option->name);
    if (option->text != NULL) {
        *option->text = value;
        return 0;
    }
    *option->number = strtoll(value, &end, 10);
    return (end == value || *end != 0) && bench_fail("%s %s: not a whole number", option->name, value);
}

static int set_unnamed(const char *value, bench_options *o) {
    const char **unnamed = o->ceilings == NULL ? &o->ceilings : &o->loss;
    if (value[0] == '-' || *unnamed != NULL)
        return bench_fail("%s: no such option", value);
    *unnamed = value;
    return 0;
}

/* 0 where it does not fit. */
static int small(long long number) {
    return number < 0 || number > INT32_MAX ? 0 : (int)number;
}

int bench_parse(char **arguments, const bench_option *own, int runs, bench_options *o) {
    const bench_option common[] = {{"--bytes", &o->bytes, NULL, NULL},
                                   {"--most", &o->most, NULL, NULL},
                                   {"--as", &o->as, NULL, NULL},
                                   {"--runs", &o->runs, NULL, NULL},
                                   {0}};
    *o = (bench_options){NULL, NULL, 1LL << 30, INT64_MAX, runs, 0};
    while (*++arguments != NULL) {
        const bench_option *option = find(common, *arguments);
        if (option->name == NULL)
            option = find(own, *arguments);
        if (option->given != NULL)
            *option->given = 1;
        else if (option->name != NULL ? set(option, *++arguments) : set_unnamed(*arguments, o))
            return 1;
    }
    if (o->ceilings == NULL)
        return bench_fail("the file of the ceilings' PTX is required");
    return (o->as != 0 && bench_as(small(o->as))) || bench_use_runs(small(o->runs));
}
