/* plugins FIRST SECOND: whether two plugins in one process, whose names are global, each call their own gpuloss. */
#include <dlfcn.h>
#include <stdio.h>

typedef const void *buffer_of(void);

static const void *buffer(const char *path, const char *name) {
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    buffer_of *function = NULL;
    if (library != NULL)
        *(void **)&function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
    return function();
}

int main(int argc, char **argv) {
    const void *first = argc == 3 ? buffer(argv[1], "first") : NULL, *second = first ? buffer(argv[2], "second") : NULL;
    if (second == NULL)
        return 2;
    if (first == second)
        fprintf(stderr, "the plugins share one gpuloss\n");
    return first == second;
}
