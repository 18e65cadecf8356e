/* What the parts of the generator share. */
#ifndef GPULOSSI_GEN_H
#define GPULOSSI_GEN_H

#include <stddef.h>

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

/* The PTX that nvcc wrote, as it is embedded: header lines of the image for GPUs of this compute capability (times ten)
 * and newer, 70 being also for all that are older; no comments, no blanks, short names. */
text lower(const char *ptx, const char *entry, int target);

/* The same text with marks of lines that it needs only for some feature words, for gpulossi_specialise of gpuloss.h. A
 * text without feature words stays as it is. Ends the program where another one has a flow that can't be followed. */
text mark(const char *ptx, const char *entry);

/* A text in which a byte stands for each name of a register or label; gpulossi_lengthen of gpuloss.h is the inverse. */
text shorten(const text *ptx);

/* The last of these texts as LZMA, each continuing the one before; gpulossi_unpack of gpuloss.h is the inverse. */
text pack(const text *const *texts, size_t count);

/* Which text each of these continues, so that they pack into few bytes: its index in after[], or -1. No more than
 * most_texts are unpacked for any of them. */
void choose_order(const text *const *texts, size_t count, size_t most_texts, int *after);

#endif
