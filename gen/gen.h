/* Functions and types that the parts of the generator share. */
#ifndef GPULOSSI_GEN_H
#define GPULOSSI_GEN_H

#include <stddef.h>
#include <stdint.h>

/* A growing string. */
typedef struct text {
    char *bytes;
    size_t length;
    size_t room;
} text;

void text_add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(text *t, const char *bytes, size_t length);
void text_free(text *t);

/* Ends the program with a message. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* realloc, which must succeed. */
void *grown(void *old, size_t bytes);

text read_file(const char *path);
void write_file(const char *path, const char *bytes, size_t length);

/* The output of a shell command, which must succeed. */
text run(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The outputs of shell commands, which must succeed. As many run at a time as there are processors. */
void run_all(const text *commands, text *outputs, size_t count);

/* Adds the command that compiles a kernel to PTX; `more` has further options for nvcc, each after a blank. */
void add_nvcc(text *command, const char *loss, const char *kernel, const char *dtype, int target, const char *more,
              const char *path);

/* A figure of ptxas -v: the number before `unit`. */
long figure(const char *log, const char *unit);

/* The instructions of a kernel in a cubin of compute capability 7.0 or newer. */
long instructions_of(const char *path, const char *entry);

/* The PTX that nvcc wrote, ready to be embedded: without comments and blanks, with short names. Its header lines are
 * for GPUs of this compute capability (times ten) and newer. 70 also covers all older GPUs. */
text lower(const char *ptx, const char *entry, int target);

/* The same text with marks of lines that it needs only for some feature words, for gpulossi_specialise of gpuloss.h. A
 * text without feature words stays as it is. Ends the program where another one has a flow that can't be followed. */
text mark(const char *ptx, const char *entry);

/* The same text with names of registers and labels that have new numbers. */
text renumber(const char *ptx);

/* Whether a character may be in a name after its first one. */
int is_symbol(char c);

/* A text in which bytes stand for names of registers and labels, and for frequent phrases; gpulossi_expand of gpuloss.h is
 * the inverse. */
text shorten(const text *ptx);

/* The last of these texts as LZMA, each continuing the one before; gpulossi_unpack of gpuloss.h is the inverse. */
text pack(const text *const *texts, size_t count);

/* Chooses the text that each text but the root continues, so that all of them pack into few bytes and need few others: its
 * index in after[], or -1. At most most_texts are unpacked for any text. */
void choose_order(const text *const *texts, size_t count, size_t root, size_t most_texts, int *after);

/* Specialises a marked text for these feature words, like gpuloss.h. */
void specialise(text *marked, const uint32_t *words);

/* Changes the target of a text for every GPU to one that has all its instructions. */
void set_target(text *ptx);

/* The checksum by which gpuloss.h knows a shortened text. */
uint64_t sum_of(const text *shortened);

/* Builds the usual variants in the scratch folder, both ways, and adds their rows to MANIFEST. The texts are in folder/ptx. */
void add_variants(text *manifest, const char *scratch, const char *folder);

#endif
