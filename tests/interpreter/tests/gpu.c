#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *symbol(void *library, const char *name, int required) {
    void *address = dlsym(library, name);
    if (!address && required) {
        fprintf(stderr, "%s is missing\n", name);
        exit(1);
    }
    return address;
}

#define FIND(field, name, required)                                                                                    \
    do {                                                                                                               \
        void *address = symbol(library, name, required);                                                               \
        memcpy(&gpu->field, &address, sizeof address);                                                                 \
    } while (0)

static void must(int error, const char *what) {
    if (error) {
        fprintf(stderr, "%s: error %d\n", what, error);
        exit(1);
    }
}

void gpu_open(struct gpu *gpu, const char *path) {
    int major, minor;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    FIND(init, "cuInit", 1);
    FIND(retain, "cuDevicePrimaryCtxRetain", 1);
    FIND(release, "cuDevicePrimaryCtxRelease_v2", 1);
    FIND(set_current, "cuCtxSetCurrent", 1);
    FIND(synchronize, "cuCtxSynchronize", 1);
    FIND(attribute, "cuDeviceGetAttribute", 1);
    FIND(load, "cuModuleLoadDataEx", 1);
    FIND(unload, "cuModuleUnload", 1);
    FIND(function, "cuModuleGetFunction", 1);
    FIND(set, "cuFuncSetAttribute", 1);
    FIND(launch, "cuLaunchKernel", 1);
    FIND(launch_ex, "cuLaunchKernelEx", 0);
    FIND(alloc, "cuMemAlloc_v2", 1);
    FIND(release_memory, "cuMemFree_v2", 1);
    FIND(upload, "cuMemcpyHtoD_v2", 1);
    FIND(download, "cuMemcpyDtoH_v2", 1);
    FIND(fill, "cuMemsetD8_v2", 1);
    FIND(last_fault, "ptxsim_last_fault", 0);
    FIND(instructions, "ptxsim_instructions_executed", 0);
    must(gpu->init(0), "cuInit");
    must(gpu->attribute(&major, 75, 0), "cuDeviceGetAttribute");
    must(gpu->attribute(&minor, 76, 0), "cuDeviceGetAttribute");
    gpu->capability = 10 * major + minor;
    must(gpu->retain(&gpu->context, 0), "cuDevicePrimaryCtxRetain");
    must(gpu->set_current(gpu->context), "cuCtxSetCurrent");
}

/* A kernel that faulted has spoilt its context. */
void gpu_reset(struct gpu *gpu) {
    gpu->release(0);
    must(gpu->retain(&gpu->context, 0), "cuDevicePrimaryCtxRetain");
    must(gpu->set_current(gpu->context), "cuCtxSetCurrent");
}

char *read_text(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", directory ? directory : "", directory ? "/" : "", name);
    FILE *file = fopen(path, "rb");
    size_t size = 0, room = 1 << 20;
    char *text = malloc(room);
    if (!file || !text) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    size = fread(text, 1, room - 1, file);
    text[size] = 0;
    fclose(file);
    return text;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int run_folder(const char *group, const char *folder, void (*test)(void **state)) {
    enum { FILES = 128 };
    struct CMUnitTest tests[FILES];
    char *files[FILES];
    size_t n = 0;
    int failed;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length <= 4 || strcmp(entry->d_name + length - 4, ".ptx") != 0)
            continue;
        if (n == FILES) {
            fprintf(stderr, "%s: more than %d files\n", folder, FILES);
            exit(1);
        }
        files[n++] = strdup(entry->d_name);
    }
    if (n == 0) {
        fprintf(stderr, "%s: no .ptx files\n", folder);
        exit(1);
    }
    closedir(directory);
    qsort(files, n, sizeof *files, by_name);
    memset(tests, 0, sizeof tests);
    for (size_t i = 0; i < n; i++) {
        tests[i].name = files[i];
        tests[i].test_func = test;
        tests[i].initial_state = files[i];
    }
    failed = _cmocka_run_group_tests(group, tests, n, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        free(files[i]);
    return failed;
}
