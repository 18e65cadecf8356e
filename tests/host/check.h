/* Helpers that the host tests share. */
#ifndef CHECK_H
#define CHECK_H

#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Before every test: a fresh driver whose third context is current. After it: nothing is left, and no call was made that
 * a real driver refuses. */
int begin_test(void **state);
int finish_test(void **state);
#define TEST(function) cmocka_unit_test_setup_teardown(function, begin_test, finish_test)

gpuloss_context *new_context(void);
/* The GPU has none for the rest of the test. */
gpuloss_context *new_context_without_clusters(void);

/* The status, and a message that begins with the function's name and holds each of the words. */
void expect_error_(gpuloss_status got, gpuloss_status expected, const char *function, const char *word, int line);
#define expect_error(got, expected, function, word) expect_error_((got), (expected), (function), (word), __LINE__)
#define expect_ok(got) expect_ok_((got), __LINE__)
void expect_ok_(gpuloss_status got, int line);

/* A device address that nobody reads, 256 TiB from the next one. */
#define AT(n) GPULOSS_PTR(0x7000000000 + (n)*0x1000000000000)
#define ADDRESS(n) ((uint64_t)(uintptr_t)AT(n))

typedef struct some_dtype {
    gpuloss_dtype dtype;
    const char *name;
    int bytes;
} some_dtype;
enum { DTYPES = 4 };
extern const some_dtype every_dtype[DTYPES];
/* The dtype in the name of a kernel: both types of 16 bits have one. */
const char *text_dtype(gpuloss_dtype dtype);
/* The last launch is of the text of that name and dtype, and of the variant for this type of 16 bits. */
void expect_module(const char *name, gpuloss_dtype dtype, int line);

/* Whether the text of a launch is specialised for a feature of the format word. */
int has_format(const fake_launched *l, uint32_t feature);

/* Bytes of a tile of that many rows, with all arrays that are in it. */
int64_t tile_bytes_of(const fake_launched *l, int64_t rows);

/* f32, i64 targets, mean with ignore_index, loss and gradient: the call that does most. */
gpuloss_cross_entropy_desc some_cross_entropy(void);
/* Makes probabilities its targets. */
void give_probabilities(gpuloss_cross_entropy_desc *d);
/* The same rows in four shards, of which this is one. Its shard_rows are the only output. */
gpuloss_cross_entropy_desc some_shard(void);
/* The same rows of four shards, for gpuloss_cross_entropy_combine: the loss. */
gpuloss_cross_entropy_desc some_combine(void);
/* f32, both sides probabilities, batchmean, loss and gradient. */
gpuloss_kl_div_desc some_kl_div(void);
/* The same of logits and 16 probabilities a row, the rest in a bucket. */
gpuloss_kl_div_sparse_desc some_kl_div_sparse(void);
/* Leaves the rows out of either one whose label is -100. */
#define GIVE_LABELS(d)                                                                                                 \
    ((d)->labels = AT(21), (d)->label_type = GPULOSS_I64, (d)->flags |= (unsigned)GPULOSS_USE_IGNORE_INDEX,            \
     (d)->ignore_index = -100)

/* The kernel that runs before another one, for what must be known of all rows first. */
#define PREPARE_KERNEL "gpuloss_common_prepare_targets"

struct CUstream_st *stream_number(int n);
const fake_launched *last_launch(void);
/* The kernel after the prepare kernel was not launched on that stream; of so many fills the last took back what was counted. */
void expect_cleared(int fills, struct CUstream_st *stream);
/* The divisor of the last launch. `flags` say where it comes from; `divisor` and `scale`, the factor of the gradient, are
 * those that the host knows. `prepares`: a launch before it counts the rows. */
enum { BY_DATA = GPULOSSI_DATA_DIVISOR, BY_PREPARED = GPULOSSI_DATA_DIVISOR | GPULOSSI_PREPARED };
void expect_divisor(unsigned flags, double divisor, double scale, int prepares, int line);
/* Blocks of a launch without clusters that run at once, and the bytes of shared memory of each. */
unsigned blocks_at_once(const fake_launched *l);
unsigned shared_bytes_of(const fake_launched *l);
/* Those have more memory in clusters than the pipeline of cross-entropy. */
int is_pipeline_of_divergences(const char *entry);
/* `group` threads share a row. There are as many blocks as the rows take, or as run at once. */
void expect_row_group(const fake_launched *l, int64_t rows, unsigned group, int line);

int lifecycle_tests(void);
int failure_tests(void);
int environment_tests(void);
int loading_tests(void);
int preload_tests(void);
int scratch_tests(void);
int launch_tests(void);
int choice_tests(void);
int divisor_tests(void);
int combine_tests(void);
int refusal_tests(void);
int parameter_tests(void);
int kl_choice_tests(void);
int kl_parameter_tests(void);
int kl_divisor_tests(void);
int chunk_tests(void);
int kl_refusal_tests(void);
int sparse_tests(void);
int unpack_tests(void);
int specialise_tests(void);
int cluster_tests(void);
int pipeline_tests(void);
int pair_tests(void);
int variant_tests(void);
int fact_tests(void);
int row_cluster_tests(void);
int overlap_tests(void);
int thread_tests(void);

#endif
