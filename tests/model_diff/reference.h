/* The figures of two models in double precision, and the bounds of model_diff's differences from them. */
#ifndef TESTS_MODEL_DIFF_REFERENCE_H
#define TESTS_MODEL_DIFF_REFERENCE_H

#include "../numerics/dtypes.h"

#include <stdbool.h>
#include <stdio.h>

enum { CLASSES = 256, ROWS = 620, CHUNK_ROWS = 31 };

typedef struct model_row {
    int classes; /* CLASSES, or less */
    double logits[CLASSES];
    int64_t target;
    bool cut_off[CLASSES]; /* of a .kld file: at least 16 below the largest */
    bool left_out;         /* of the base: the row has no figures */
} model_row;

/* The figures go to `file`, and the KL of each row to `kls`; both are closed. The rows have the contents of the
 * files. */
void write_expected(FILE *file, FILE *kls, gpuloss_dtype dtype, bool is_kld, const model_row *base,
                    const model_row *other);

/* Whether the rows of two .kld files differ from the models by no more than examples/model_diff.c says. */
bool within_stated_bounds(const char *kind, const model_row *base, const model_row *other, const model_row *stored_base,
                          const model_row *stored_other);

#endif
