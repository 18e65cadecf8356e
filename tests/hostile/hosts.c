/* Hosts that leave a library little, on the stand-in driver:
 *     hosts stack             threads with stacks of 16 KiB create a context, make calls, fail, and destroy it
 *     hosts plugin FILE       a plugin with a gpuloss of its own is loaded, used by a thread, and unloaded before that thread ends
 * C99 and POSIX. */
#define _GNU_SOURCE
#include "../../gpuloss.h"
#include "../host/fake_driver.h"
#define GPULOSS_IMPLEMENTATION
#include "../../gpuloss.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The calls take 5.6 KB, printf included, which may take more with another C library. */
enum { STACK_BYTES = 16384, CALLS_BYTES = 7168, BELOW_BYTES = 65536, ROUNDS = 20 };

static int fail(const char *what) {
    fprintf(stderr, "error: %s: %s\n", what, gpuloss_last_error());
    return 1;
}

/* Whether the driver was used well, in the end. */
static int has_ended_well(void) {
    if (fake.violation[0] == 0 && fake_leaks() == 0)
        return 1;
    fprintf(stderr, "error: %d leaks; %s\n", fake_leaks(), fake.violation);
    return 0;
}

/* ---- small stacks ---- */

/* The descs are not on the stack, which is measured. */
static int calls(gpuloss_context *gpu) {
    static gpuloss_cross_entropy_desc ce = GPULOSS_CROSS_ENTROPY_DEFAULTS, combined = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    static gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
    static gpuloss_kl_div_sparse_desc sparse = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    ce.logits = GPULOSS_PTR(0x7100000000);
    ce.targets = GPULOSS_PTR(0x7200000000);
    ce.target_type = GPULOSS_I64;
    ce.dtype = GPULOSS_BF16;
    ce.rows = ce.classes = 1000;
    ce.label_smoothing = 0.1;
    ce.class_weights = GPULOSS_PTR(0x7600000000);
    ce.loss = GPULOSS_PTR(0x7300000000);
    ce.grad_logits = GPULOSS_PTR(0x7400000000);
    combined.shard_rows = (gpuloss_shard_row *)GPULOSS_PTR(0x7100000000);
    combined.targets = ce.targets;
    combined.target_type = ce.target_type;
    combined.dtype = ce.dtype;
    combined.rows = combined.classes = 1000;
    combined.shards = 4;
    combined.loss = ce.loss;
    kl.input = ce.logits;
    kl.target = GPULOSS_PTR(0x7500000000);
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    kl.dtype = GPULOSS_F32;
    kl.rows = 1000;
    kl.classes = 100000;
    kl.loss = ce.loss;
    sparse.logits = ce.logits;
    sparse.indices = ce.targets;
    sparse.values = kl.target;
    sparse.index_type = GPULOSS_I32;
    sparse.value_kind = GPULOSS_PROBABILITIES;
    sparse.residual = GPULOSS_BUCKET;
    sparse.dtype = GPULOSS_F32;
    sparse.rows = sparse.classes = 1000;
    sparse.k = 16;
    sparse.loss = ce.loss;
    if (gpuloss_cross_entropy(gpu, &ce, NULL) != GPULOSS_OK ||
        gpuloss_cross_entropy_combine(gpu, &combined, NULL) != GPULOSS_OK ||
        gpuloss_kl_div(gpu, &kl, NULL) != GPULOSS_OK || gpuloss_kl_div_sparse(gpu, &sparse, NULL) != GPULOSS_OK)
        return fail("a call");
    ce.label_smoothing = 1e300; /* the longest messages have numbers */
    if (gpuloss_cross_entropy(gpu, &ce, NULL) != GPULOSS_ERROR_INVALID_ARGUMENT)
        return fail("a wrong call");
    kl.dtype = GPULOSS_F64;
    fake.fail_symbol = "cuModuleLoadDataEx";
    fake.log = "a log of the compiler";
    if (gpuloss_kl_div(gpu, &kl, NULL) != GPULOSS_ERROR_DRIVER || strstr(gpuloss_last_error(), fake.log) == NULL)
        return fail("a kernel that is not loaded");
    fake.fail_symbol = NULL;
    return 0;
}

/* The stack is the end of some painted memory. The paint is gone where a thread has been. */
typedef struct painted {
    unsigned char *memory, *caller; /* the frame that calls the library */
    int failed;
} painted;
enum { PAINT = 0xa5 };

static void *on_small_stack(void *given) {
    painted *stack = (painted *)given;
    const gpuloss_create_desc desc = fake_desc();
    gpuloss_context *gpu;
    stack->caller = (unsigned char *)__builtin_frame_address(0);
    fake_set_current(&fake.context[2]);
    stack->failed = gpuloss_create(&gpu, &desc) != GPULOSS_OK ? fail("create") : calls(gpu);
    gpuloss_destroy(gpu);
    return NULL;
}

static int run_on_small_stack(void) {
    const long least = sysconf(_SC_THREAD_STACK_MIN);
    const size_t bytes = least > STACK_BYTES ? (size_t)least : STACK_BYTES;
    painted stack = {NULL, NULL, 1};
    const unsigned char *deepest;
    void *memory;
    pthread_attr_t attributes;
    pthread_t thread;
    fake_reset();
    if (posix_memalign(&memory, STACK_BYTES, BELOW_BYTES + bytes) != 0)
        return fail("no memory for a stack");
    stack.memory = (unsigned char *)memset(memory, PAINT, BELOW_BYTES + bytes);
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstack(&attributes, stack.memory + BELOW_BYTES, bytes) != 0 ||
        pthread_create(&thread, &attributes, on_small_stack, &stack) != 0 || pthread_join(thread, NULL) != 0)
        return fail("pthread");
    pthread_attr_destroy(&attributes);
    for (deepest = stack.memory; *deepest == PAINT; deepest++)
        ;
    if (deepest < stack.memory + BELOW_BYTES || stack.caller - deepest > CALLS_BYTES) {
        fprintf(stderr, "error: the calls take %ld bytes of a stack, of which there are %ld\n",
                (long)(stack.caller - deepest), (long)(stack.caller - stack.memory - BELOW_BYTES));
        stack.failed = 1;
    }
    free(memory);
    return stack.failed || !has_ended_well();
}

/* ---- plugins ---- */

typedef int plugin_function(const gpuloss_create_desc *desc);

static struct {
    plugin_function *use;
    gpuloss_create_desc desc;
    sem_t used, unloaded;
    int failed;
} plugin;

static void *use_plugin(void *unused) {
    fake_set_current(&fake.context[2]);
    plugin.failed = plugin.use(&plugin.desc);
    sem_post(&plugin.used);
    sem_wait(&plugin.unloaded);
    return unused;
}

/* The end of the thread must not touch the memory of a plugin that is gone. */
static int run_plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *use = library != NULL ? dlsym(library, "use") : NULL;
    pthread_t thread;
    if (use == NULL) {
        fprintf(stderr, "error: %s\n", dlerror());
        return 1;
    }
    memcpy(&plugin.use, &use, sizeof use);
    plugin.desc = fake_desc();
    fake_reset();
    if (sem_init(&plugin.used, 0, 0) != 0 || sem_init(&plugin.unloaded, 0, 0) != 0 ||
        pthread_create(&thread, NULL, use_plugin, NULL) != 0)
        return fail("pthread");
    sem_wait(&plugin.used);
    if (dlclose(library) != 0 || dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL) {
        fprintf(stderr, "error: %s is not unloaded\n", path);
        plugin.failed = 1;
    }
    sem_post(&plugin.unloaded);
    if (pthread_join(thread, NULL) != 0)
        return fail("pthread");
    return plugin.failed || !has_ended_well();
}

int main(int argc, char **argv) {
    int i, failed = argc < 2;
    for (i = 0; i < ROUNDS && !failed; i++)
        failed = argc == 2 ? run_on_small_stack() : run_plugin(argv[2]);
    return failed;
}
