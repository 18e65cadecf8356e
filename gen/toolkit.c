/* Runs the commands of the CUDA toolkit, and reads its reports on the kernels. */
#include "gen.h"

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void add_nvcc(text *command, const char *loss, const char *kernel, const char *dtype, int target, const char *more,
              const char *path) {
    text_add(command,
             "nvcc -ptx -arch=compute_75 -std=c++17 -Werror all-warnings -DMODULE_KERNEL=%s -DMODULE_DTYPE=%s "
             "-DMODULE_TARGET=%d -DMODULE_ENTRY=gpuloss_%s_%s_%s%s gen/kernels/entry/%s.cu -o %s 2>&1",
             kernel, dtype, target, loss, kernel, dtype, more, loss, path);
}

long figure(const char *log, const char *unit) {
    const char *at = strstr(log, unit);
    if (at == NULL)
        return 0;
    while (at > log && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9')))
        at--;
    return strtol(at, NULL, 10);
}

/* A part of a file, copied because nothing in a file is aligned for certain. */
static void copy_part(void *to, const text *file, uint64_t at, size_t bytes, const char *path) {
    if (at > file->length || bytes > file->length - at)
        fail("%s: ends too early for what its headers say", path);
    memcpy(to, file->bytes + at, bytes);
}

static Elf64_Shdr section_of(const text *file, const Elf64_Ehdr *header, uint64_t number, const char *path) {
    Elf64_Shdr section;
    copy_part(&section, file, header->e_shoff + number * sizeof section, sizeof section, path);
    return section;
}

/* The instructions of a section, of 16 bytes each. ptxas fills the end with some that do nothing, which do not count. */
static long count_instructions(const text *file, const Elf64_Shdr *section, const char *path) {
    enum { BYTES = 16, OPCODE = 0xfff, NOP = 0x918 };
    uint64_t count = section->sh_size / BYTES, word = NOP;
    while (count > 0) {
        copy_part(&word, file, section->sh_offset + (count - 1) * BYTES, sizeof word, path);
        if ((word & OPCODE) != NOP)
            break;
        count--;
    }
    return (long)count;
}

long instructions_of(const char *path, const char *entry) {
    text file = read_file(path);
    Elf64_Ehdr header;
    char wanted[256];
    long count = 0;
    copy_part(&header, &file, 0, sizeof header, path);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        fail("%s: is no ELF file", path);
    const Elf64_Shdr names = section_of(&file, &header, header.e_shstrndx, path);
    snprintf(wanted, sizeof wanted, ".text.%s", entry);
    for (uint64_t i = 0; i < header.e_shnum; i++) {
        const Elf64_Shdr section = section_of(&file, &header, i, path);
        const uint64_t name = names.sh_offset + section.sh_name;
        if (name < file.length && strcmp(file.bytes + name, wanted) == 0)
            count += count_instructions(&file, &section, path);
    }
    text_free(&file);
    if (count == 0)
        fail("%s: has no instructions of %s", path, entry);
    return count;
}
