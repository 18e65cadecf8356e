#include "vectors.h"

#include <stdlib.h>
#include <string.h>

/* A number, or nan, inf, -inf, like strtod reads them. */
static int read_number(FILE *file, double *value) {
    char word[64], *end;
    if (fscanf(file, "%63s", word) != 1)
        return -1;
    *value = strtod(word, &end);
    return *end == '\0' ? 0 : -1;
}

static int read_field(FILE *file, const char *name, vector_field *field) {
    size_t i;
    if (fscanf(file, "%zu", &field->count) != 1 || field->count == 0 || field->count > 100000)
        return -1;
    (void)snprintf(field->name, sizeof field->name, "%s", name);
    field->values = (double *)malloc(field->count * sizeof *field->values);
    for (i = 0; i < field->count && field->values; i++)
        if (read_number(file, &field->values[i]) != 0)
            return -1;
    return field->values ? 0 : -1;
}

int vector_read(FILE *file, vector_case *c) {
    char word[VECTOR_NAME];
    memset(c, 0, sizeof *c);
    if (fscanf(file, "%63s", word) != 1)
        return feof(file) ? 0 : -1;
    if (strcmp(word, "case") != 0 || fscanf(file, "%63s %63s", c->loss, c->name) != 2)
        return -1;
    while (fscanf(file, "%63s", word) == 1) {
        if (strcmp(word, "end") == 0)
            return 1;
        if (c->fields == VECTOR_FIELDS || read_field(file, word, &c->field[c->fields++]) != 0)
            return -1;
    }
    return -1;
}

void vector_free(vector_case *c) {
    size_t i;
    for (i = 0; i < c->fields; i++)
        free(c->field[i].values);
    memset(c, 0, sizeof *c);
}

const double *vector_values(const vector_case *c, const char *name, size_t count) {
    size_t i;
    for (i = 0; i < c->fields; i++)
        if (strcmp(c->field[i].name, name) == 0 && c->field[i].count == count)
            return c->field[i].values;
    return NULL;
}

double vector_number(const vector_case *c, const char *name, double otherwise) {
    const double *value = vector_values(c, name, 1);
    return value ? *value : otherwise;
}

int64_t vector_integer(const vector_case *c, const char *name, int64_t otherwise) {
    const double *value = vector_values(c, name, 1);
    return value ? (int64_t)*value : otherwise;
}
