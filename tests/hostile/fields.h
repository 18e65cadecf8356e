/* Calls of the public functions as fields, which are changed one at a time: for descs.c and fuzz.c. C99 and C++. */
#ifndef FIELDS_H
#define FIELDS_H

#include "../../gpuloss.h"

extern uint64_t seed;
unsigned random_below(unsigned bound);

/* The kind of number that is written into a field. An enum gets numbers that an enum of one byte can hold. */
enum kind { DOUBLE, ENUM, SIZE, COUNT, POINTER, FLAGS };
typedef struct field {
    const char *name;
    size_t offset, bytes;
    enum kind kind;
} field;

/* The arguments that create a context, on a driver of tests/host. */
typedef struct creation {
    int given, current; /* of the CUcontexts; 0: none */
    int device;
    int path;   /* 0: none, 1: an empty one, else that of no file */
    int symbol; /* 0: the functions come from the path */
    unsigned flags;
    int version;
    int64_t bytes; /* of the descs */
} creation;

/* The functions of divisors write to `loss` of their desc. */
enum function { CROSS_ENTROPY, COMBINE, KL_DIV, KL_DIV_SPARSE, CREATE, DIVISOR, KL_DIV_DIVISOR, FUNCTIONS };

typedef struct call {
    enum function function;
    union {
        gpuloss_cross_entropy_desc cross_entropy;
        gpuloss_kl_div_desc kl_div;
        gpuloss_kl_div_sparse_desc sparse;
        creation created;
    } desc;
    const field *fields;
    size_t count;
} call;

enum { SIZES = 25 };
extern const int64_t sizes[SIZES];

/* A call that is accepted. */
call some_call(enum function function);
gpuloss_status launch(gpuloss_context *context, const call *c);
/* In every table of a loss the first count is `rows`, and `classes` comes next. */
size_t rows_of(const field *fields);
int is_number(const field *f);
void set(void *desc, const field *f, int64_t number);
/* Changes a field to one of the values of its kind. */
void change(void *desc, const field *f);
/* Sizes whose products overflow. Most often there are no rows and one class, so that not all calls are refused. */
void make_huge(void *desc, const field *fields, size_t count);
void change_some(void *desc, const field *fields, size_t count);

#endif
