/* The few driver functions that the tests call, from whichever libcuda.so.1 they are given. */
#ifndef INTERPRETER_TESTS_GPU_H
#define INTERPRETER_TESTS_GPU_H

#include <stddef.h>
#include <stdint.h>

/* The driver's numbers of launch attributes. */
enum { LAUNCH_CLUSTER = 4, LAUNCH_DEPENDENT = 6 };

struct launch_attribute {
    int id, unused;
    unsigned value[16];
};

struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct launch_attribute *attributes;
    unsigned count;
};

struct gpu {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*set_current)(void *);
    int (*synchronize)(void);
    int (*attribute)(int *, int, int);
    int (*load)(void **, const void *, unsigned, int *, void **);
    int (*unload)(void *);
    int (*function)(void **, void *, const char *);
    int (*set)(void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*launch_ex)(const struct launch_config *, void *, void **, void **); /* null on an old driver */
    int (*alloc)(uint64_t *, size_t);
    int (*release_memory)(uint64_t);
    int (*upload)(uint64_t, const void *, size_t);
    int (*download)(void *, uint64_t, size_t);
    int (*fill)(uint64_t, unsigned, size_t);
    const char *(*last_fault)(void); /* null on a real driver */
    unsigned long long (*instructions)(void);
    void *context;
    int capability;
};

/* These end the program with a message when something is not there. */
void gpu_open(struct gpu *gpu, const char *library);
/* directory may be null. */
char *read_text(const char *directory, const char *name);
void gpu_reset(struct gpu *gpu);

/* Runs a cmocka test for every .ptx file of a folder, in order of name; the test's state is that name. Returns how many
 * failed; a folder without .ptx files is a failure. */
int run_folder(const char *group, const char *folder, void (*test)(void **state));

#endif
