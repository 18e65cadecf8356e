/* As much of mmap as the interpreter of the tests needs, for Windows: memory of its own, in whole mappings. */
#ifndef TESTS_PLATFORMS_WINDOWS_SYS_MMAN_H
#define TESTS_PLATFORMS_WINDOWS_SYS_MMAN_H

#include <string.h>
#include <windows.h>

#define MAP_FAILED NULL

enum { PROT_NONE = PAGE_NOACCESS, PROT_READ = PAGE_READWRITE, PROT_WRITE = PAGE_READWRITE };
enum { MAP_PRIVATE, MAP_ANONYMOUS = 0, MAP_NORESERVE = 0, MAP_FIXED_NOREPLACE = 0, MADV_DONTNEED = 0 };

static inline void *mmap(void *at, size_t bytes, int protection, int flags, int file, int offset) {
    (void)flags, (void)file, (void)offset;
    return VirtualAlloc(at, bytes, protection == PROT_NONE ? MEM_RESERVE : MEM_RESERVE | MEM_COMMIT, protection);
}

static inline int madvise(void *memory, size_t bytes, int advice) {
    (void)advice;
    memset(memory, 0, bytes);
    return 0;
}

#endif
