/* Declarations that the files of the stand-in share. */
#ifndef FAKE_PRIVATE_H
#define FAKE_PRIVATE_H

#include "fake_driver.h"

enum { NEEDS_NOTHING, NEEDS_CONTEXT };

/* Notes what a real driver would not have taken; the first one stays. */
void fake_violate(const char *format, ...);
/* Takes the lock; returns what the call is made to fail with, or 0. */
int fake_begin(const char *symbol, int needs);
int fake_begin_attribute(const char *symbol, int needs, int attribute);
/* Gives the lock back; returns the code. */
int fake_end(int code);
/* Whether there is room for one more record. */
int fake_room(int count, const char *what);

/* CUlaunchConfig and CUlaunchAttribute, as a driver reads them. */
typedef struct fake_attribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        unsigned cluster[3];
        int dependent;
    } value;
} fake_attribute;
typedef struct fake_config {
    unsigned grid[3], block[3], shared_bytes;
    struct CUstream_st *stream;
    const void *attributes;
    unsigned attribute_count;
} fake_config;

/* In the table of functions, by their rows; what takes a config is given it as no type. */
int fake_module_load(void **module, const void *image, unsigned count, int *options, void **values);
int fake_module_unload(void *handle);
int fake_module_function(void **function, void *handle, const char *name);
int fake_blocks_per_sm(int *blocks, void *function, int threads, size_t shared_bytes);
int fake_function_attribute(void *function, int attribute, int value);
int fake_active_clusters(int *clusters, void *function, const void *config);
int fake_launch_config(const void *config, void *function, void **parameters, void **extra);
int fake_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                unsigned shared_bytes, struct CUstream_st *stream, void **parameters, void **extra);

#endif
