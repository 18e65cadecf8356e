/* The shapes that both losses go through. */
#ifndef TESTS_NUMERICS_SHAPES_H
#define TESTS_NUMERICS_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../gpuloss.h"

typedef struct shape {
    int64_t rows, classes;
} shape;

typedef struct shape_list {
    shape *at;
    size_t count;
} shape_list;

shape_list shapes_for(gpuloss_dtype dtype, bool small);
void shapes_free(shape_list *shapes);

#endif
