/* Strings, files and commands for the generator. */
#include "gen.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("gen: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void *grown(void *old, size_t bytes) {
    void *grown = realloc(old, bytes);
    if (grown == NULL)
        fail("out of memory");
    return grown;
}

void text_add_bytes(text *t, const char *bytes, size_t length) {
    if (t->length + length + 1 > t->room) {
        t->room = 2 * (t->length + length + 1);
        t->bytes = grown(t->bytes, t->room);
    }
    memcpy(t->bytes + t->length, bytes, length);
    t->length += length;
    t->bytes[t->length] = 0;
}

void text_add(text *t, const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof line)
        fail("a line is too long: %.60s...", line);
    text_add_bytes(t, line, (size_t)length);
}

void text_free(text *t) {
    free(t->bytes);
    memset(t, 0, sizeof *t);
}

static text read_all(FILE *file) {
    text t = {0};
    char part[65536];
    size_t got;
    text_add_bytes(&t, "", 0);
    while ((got = fread(part, 1, sizeof part, file)) > 0)
        text_add_bytes(&t, part, got);
    return t;
}

text read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail("%s: can't be read", path);
    text t = read_all(file);
    fclose(file);
    return t;
}

void write_file(const char *path, const char *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, length, file) != length || fclose(file) != 0)
        fail("%s: can't be written", path);
}

static FILE *begin(const char *command) {
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        fail("can't run: %s", command);
    return pipe;
}

static text end(FILE *pipe, const char *command) {
    text t = read_all(pipe);
    if (pclose(pipe) != 0)
        fail("failed: %s\n%s", command, t.bytes);
    return t;
}

text run(const char *format, ...) {
    char command[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return end(begin(command), command);
}

void run_all(const text *commands, text *outputs, size_t count) {
    FILE **pipes = grown(NULL, count * sizeof *pipes);
    size_t begun = 0, processors = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t ended = 0; ended < count; ended++) {
        for (; begun < count && begun < ended + processors; begun++)
            pipes[begun] = begin(commands[begun].bytes);
        outputs[ended] = end(pipes[ended], commands[ended].bytes);
    }
    free(pipes);
}
