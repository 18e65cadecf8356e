#include "shapes.h"

#include <stdlib.h>

static const int64_t classes_small[] = {1,   2,   3,   5,   7,   8,    10,   31,   32,   33,   64,   100,
                                        127, 128, 129, 255, 257, 1000, 1023, 1025, 2048, 4097, 8193, 16385};
static const int64_t classes_full[] = {32000, 50257, 131073};
static const int64_t rows_any[] = {1, 2, 3, 7, 33};
static const int64_t rows_short[] = {130, 1000, 4099};

typedef struct shape {
    int64_t rows, classes;
} shape;

typedef struct shape_list {
    shape *at;
    size_t count;
} shape_list;

static void add(shape_list *shapes, int64_t rows, int64_t classes, int64_t most_elements) {
    if (rows > 1 && rows * classes > most_elements)
        return;
    shapes->at[shapes->count].rows = rows;
    shapes->at[shapes->count].classes = classes;
    shapes->count++;
}

/* A small run has one row of every length, and more rows where they are short. The dtype rotates the list, so that the
 * same shape does not meet the same strides and offsets in every type. */
static shape_list shapes_for(gpuloss_dtype dtype, bool small) {
    enum {
        SMALL = sizeof classes_small / sizeof classes_small[0],
        FULL = sizeof classes_full / sizeof classes_full[0]
    };
    enum { ANY = sizeof rows_any / sizeof rows_any[0], SHORT = sizeof rows_short / sizeof rows_short[0] };
    size_t lengths = small ? SMALL : SMALL + FULL, i, k;
    int64_t most = small ? 16400 : INT64_C(1) << 23;
    shape_list shapes = {NULL, 0};
    shapes.at = (shape *)require_memory((SMALL + FULL) * (ANY + SHORT) * sizeof *shapes.at);
    for (i = 0; i < lengths; i++) {
        size_t rotated = (i + (size_t)dtype) % lengths;
        int64_t classes = rotated < SMALL ? classes_small[rotated] : classes_full[rotated - SMALL];
        for (k = 0; k < ANY; k++)
            add(&shapes, rows_any[k], classes, most);
        for (k = 0; k < SHORT && classes <= 129; k++)
            add(&shapes, rows_short[k], classes, most);
    }
    return shapes;
}

void test_shapes(gpuloss_dtype dtype, run_shape_function *run) {
    shape_list shapes = shapes_for(dtype, harness_small);
    size_t i;
    for (i = 0; i < shapes.count; i++)
        run(dtype, shapes.at[i].rows, shapes.at[i].classes, (unsigned)i);
    free(shapes.at);
    test_done();
}
