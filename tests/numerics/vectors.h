/* Reads the files of tests/vectors: see make_vectors.py for the format. */
#ifndef TESTS_NUMERICS_VECTORS_H
#define TESTS_NUMERICS_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { VECTOR_FIELDS = 32, VECTOR_NAME = 64 };

typedef struct vector_field {
    char name[VECTOR_NAME];
    size_t count;
    double *values;
} vector_field;

typedef struct vector_case {
    char loss[VECTOR_NAME], name[VECTOR_NAME];
    size_t fields;
    vector_field field[VECTOR_FIELDS];
} vector_case;

/* The next case: 1; the end of the file: 0; anything else: -1. */
int vector_read(FILE *file, vector_case *c);
void vector_free(vector_case *c);

/* The values of a field that must have `count` of them; NULL if the case does not have the field. */
const double *vector_values(const vector_case *c, const char *name, size_t count);
/* A field of one number, or `otherwise`. */
double vector_number(const vector_case *c, const char *name, double otherwise);
int64_t vector_integer(const vector_case *c, const char *name, int64_t otherwise);

#endif
