/* Reports how much of the PTX in a folder was executed, from the files that the interpreter wrote for PTXSIM_COVERAGE.
 *
 *   coverage [-v] PTX_FOLDER REASONS FILE...
 *
 * A file has a line `kernel line executed text` for each instruction of each loaded module. An instruction was executed
 * if any file says so. The loader makes variants of a text with marks (gen/mark.c), which blank some of its lines.
 * Variants are added up, and a conditional line need not be in a file. REASONS explains what cannot be executed here:
 * `kernels|instruction|reason`, the first a shell pattern and the second an extended regular expression. Between labels
 * and branches all instructions are executed or none, but for conditional ones. A reason for one instruction therefore
 * explains the whole block. A block that is only reached from explained blocks is explained, too. An expression that
 * begins with a number of a feature word is about the conditions of the marks instead. It explains the lines with a
 * clause that it matches. -v lists what is explained, too.
 *
 * Fails if an .entry of the folder was never executed, if a file is not about the texts of the folder, or if a reason
 * explains nothing any more. Also fails if less than 98.5 % was executed or explained. */
#define _POSIX_C_SOURCE 200809L
#include <fnmatch.h>
#include <glob.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 128, LINE = 1024, KERNELS = 256, REASONS = 64, CONDITIONS = 1025 };
static const double required = 98.5;

/* Values besides the numbers of reasons. */
enum { NONE = -1, ASSUMED = -2 };

struct line {
    char *text;
    bool instruction, newer, recorded, executed;
    int conditions[2]; /* of its block and its own: it is not in every variant; 0: none */
    bool has_word;     /* the loader writes a feature word into it */
    int block;
};

/* Instructions that are executed one after the other, without a branch. */
struct block {
    int first, last; /* lines */
    int target;      /* block that its branch leads to, or -1 */
    bool falls;      /* whether the block after it may follow */
    bool executed;
    int reason; /* why not */
};

struct kernel {
    char name[NAME];
    struct line *lines; /* from 1 */
    struct block *blocks;
    char *clauses[CONDITIONS]; /* by number, which is from 1 */
    int block_count, count, instructions, executed, explained;
};

struct reason {
    char kernels[NAME], instruction[LINE], why[LINE];
    regex_t expression;
    int used;
};

static struct kernel kernels[KERNELS];
static struct reason reasons[REASONS];
static int kernel_count, reason_count, errors;

static void complain(const char *what, const char *name, int line) {
    if (++errors <= 20)
        printf("  %s: %s, line %d\n", what, name, line);
}

static void *must(void *memory) {
    if (!memory)
        abort();
    return memory;
}

/* The text from its first letter to its last. */
static char *trimmed(char *text) {
    size_t length;
    text += strspn(text, " \t");
    length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        text[--length] = 0;
    return text;
}

/* The line without the mark that it may begin with, which is a comment. */
static char *without_mark(char *text) {
    char *end = strstr(text, "*/");
    if (strncmp(text, "/*", 2) != 0 || end == NULL)
        return text;
    return end + 2 + strspn(end + 2, " ");
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_conditional(const struct line *line) {
    return line->conditions[0] || line->conditions[1];
}

/* Whether a variant has this text instead of a line. */
static bool is_variant_of(const struct line *line, const char *text) {
    const char *word = line->has_word ? strstr(line->text, "0x00000000") : NULL;
    return word ? strncmp(line->text, text, (size_t)(word - line->text)) == 0 : strcmp(line->text, text) == 0;
}

/* Also the first and the last line of several in braces, which declare registers of their own, unless that is all they do. */
static bool starts_instruction(const char *text) {
    size_t length = strlen(text);
    if (strncmp(text, "{ .reg ", 7) == 0 && strchr(text, ';') == text + length - 1)
        return false;
    if (length > 3 && strcmp(text + length - 3, "; }") == 0)
        length -= 2;
    return length > 1 && text[length - 1] == ';' &&
           (*text == '@' || (*text >= 'a' && *text <= 'z') || strncmp(text, "{ ", 2) == 0);
}

/* An instruction for newer GPUs only: a comment that the library takes away there. */
static const char newer[] = "//griddepcontrol.";
static bool is_newer(const char *text) {
    return strncmp(text, newer, sizeof newer - 1) == 0;
}

static bool is_label(const char *text) {
    return *text && text[strlen(text) - 1] == ':';
}

/* Where a branch leads: the last word of the line. */
static int target_of(const struct kernel *k, const char *text) {
    char label[LINE];
    const char *bra = strstr(text, "bra"), *word = strrchr(text, ' ');
    if (!bra || !word || (bra != text && bra[-1] != ' '))
        return -1;
    (void)snprintf(label, sizeof label, "%.*s:", (int)strcspn(word + 1, ";"), word + 1);
    for (int i = 1; i <= k->count; i++)
        if (strcmp(k->lines[i].text, label) == 0)
            return k->lines[i].block;
    return -1;
}

static bool ends_block(const char *text) {
    return *text == '@' || strncmp(text, "bra", 3) == 0 || strncmp(text, "ret", 3) == 0 ||
           strncmp(text, "exit", 4) == 0;
}

static bool leads_to(const struct block *from, int number, int to) {
    return from->target == to || (from->falls && number + 1 == to);
}

/* A label that follows a branch or a label opens no second block. */
static void make_blocks(struct kernel *k) {
    int current = 0, last = 0;
    k->blocks = must(calloc((size_t)k->count + 1, sizeof *k->blocks));
    for (int i = 1; i <= k->count; i++) {
        struct line *line = &k->lines[i];
        if (is_label(line->text) && last)
            current++, last = 0;
        line->block = current;
        if (!line->instruction)
            continue;
        if (!last)
            k->blocks[current].first = i;
        k->blocks[current].last = last = i;
        k->block_count = current + 1;
        if (ends_block(line->text))
            current++, last = 0;
    }
    for (int b = 0; b < k->block_count; b++) {
        const char *text = k->lines[k->blocks[b].last].text;
        k->blocks[b].target = target_of(k, text);
        k->blocks[b].falls = !ends_block(text) || *text == '@';
    }
}

/* One module a file, one kernel a module. */
static bool read_ptx(const char *path) {
    struct kernel *k = &kernels[kernel_count];
    int room = 0;
    int condition = 0;
    char buffer[LINE];
    FILE *file = fopen(path, "r");
    if (!file || kernel_count == KERNELS)
        return false;
    while (fgets(buffer, sizeof buffer, file)) {
        char *marked = trimmed(buffer), *text = without_mark(marked);
        const char *entry = strstr(text, ".entry ");
        if (begins(text, "//!"))
            condition = atoi(text + 3);
        if (begins(text, "//?") && atoi(text + 3) < CONDITIONS)
            k->clauses[atoi(text + 3)] = must(strdup(text));
        if (k->count + 2 > room) {
            room = 2 * room + 256;
            k->lines = must(realloc(k->lines, (size_t)room * sizeof *k->lines));
        }
        struct line *line = &k->lines[++k->count];
        memset(line, 0, sizeof *line);
        line->has_word = begins(marked, "/*=");
        line->conditions[0] = condition;
        line->conditions[1] = text != marked ? atoi(marked + 2) : 0;
        line->newer = is_newer(text);
        line->text = must(strdup(text + (line->newer ? strlen("//") : 0)));
        line->instruction = starts_instruction(text);
        k->instructions += line->instruction;
        if (entry)
            (void)snprintf(k->name, sizeof k->name, "%.*s", (int)strcspn(entry + 7, "( "), entry + 7);
    }
    fclose(file);
    if (!k->name[0] || !k->instructions)
        return false;
    make_blocks(k);
    kernel_count++;
    return true;
}

static bool read_reasons(const char *path) {
    char buffer[LINE];
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    while (fgets(buffer, sizeof buffer, file)) {
        struct reason *r = &reasons[reason_count];
        char *text = trimmed(buffer);
        bool bad;
        if (!*text || *text == '#')
            continue;
        char *second = strchr(text, '|'), *last = strrchr(text, '|');
        if (reason_count == REASONS || !second || second == last || last[1] == 0)
            bad = true;
        else {
            (void)snprintf(r->kernels, sizeof r->kernels, "%.*s", (int)(second - text), text);
            (void)snprintf(r->instruction, sizeof r->instruction, "%.*s", (int)(last - second - 1), second + 1);
            (void)snprintf(r->why, sizeof r->why, "%s", last + 1);
            bad = regcomp(&r->expression, r->instruction, REG_EXTENDED | REG_NOSUB) != 0;
        }
        if (bad) {
            printf("  not a reason: %s\n", text);
            errors++;
            continue;
        }
        reason_count++;
    }
    fclose(file);
    return true;
}

static struct kernel *kernel_of(const char *name) {
    static int last;
    if (last < kernel_count && strcmp(kernels[last].name, name) == 0)
        return &kernels[last];
    for (last = 0; last < kernel_count; last++)
        if (strcmp(kernels[last].name, name) == 0)
            return &kernels[last];
    return NULL;
}

/* Modules that are not of the folder do not count. */
static bool read_coverage(const char *path) {
    char buffer[LINE], name[NAME];
    int line, executed, text;
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    while (fgets(buffer, sizeof buffer, file)) {
        struct kernel *k;
        if (sscanf(buffer, "%127s %d %d %n", name, &line, &executed, &text) != 3) {
            complain("not a line of coverage", path, 0);
            break;
        }
        k = kernel_of(name);
        if (!k)
            continue;
        if (line < 1 || line > k->count || !is_variant_of(&k->lines[line], without_mark(trimmed(buffer + text)))) {
            complain("another text was executed", name, line);
            break;
        }
        if (k->lines[line].newer && !k->lines[line].instruction) {
            k->lines[line].instruction = true;
            k->instructions++;
        }
        k->lines[line].recorded = true;
        k->lines[line].executed = k->lines[line].executed || executed;
    }
    fclose(file);
    return true;
}

static bool is_about(const struct reason *r, const struct kernel *k) {
    return fnmatch(r->kernels, k->name, 0) == 0;
}

static bool is_about_conditions(const struct reason *r) {
    return *r->instruction >= '0' && *r->instruction <= '9';
}

static int direct_reason(const struct kernel *k, const struct block *block) {
    for (int r = 0; r < reason_count; r++)
        for (int i = block->first; is_about(&reasons[r], k) && !is_about_conditions(&reasons[r]) && i <= block->last;
             i++)
            if (k->lines[i].instruction && regexec(&reasons[r].expression, k->lines[i].text, 0, NULL, 0) == 0)
                return r;
    return NONE;
}

static int reason_of_conditions(const struct kernel *k, const struct line *line) {
    for (int r = 0; r < reason_count; r++)
        for (int c = 0; is_about(&reasons[r], k) && is_about_conditions(&reasons[r]) && c < 2; c++) {
            const char *clauses = k->clauses[line->conditions[c]];
            if (clauses && regexec(&reasons[r].expression, clauses, 0, NULL, 0) == 0)
                return r;
        }
    return NONE;
}

static int reason_of(const struct kernel *k, const struct line *line) {
    const int reason = reason_of_conditions(k, line);
    return reason == NONE ? k->blocks[line->block].reason : reason;
}

/* Removes the assumption that a block is explained, if an unexplained block leads to it. */
static bool doubt(struct kernel *k, int b) {
    struct block *block = &k->blocks[b];
    if (block->executed || block->reason != ASSUMED)
        return false;
    for (int from = 0; from < k->block_count; from++)
        if (leads_to(&k->blocks[from], from, b) && (k->blocks[from].executed || k->blocks[from].reason == NONE)) {
            block->reason = NONE;
            return true;
        }
    return false;
}

/* Gives a block the reason of one that leads to it. */
static bool inherit(struct kernel *k, int b) {
    struct block *block = &k->blocks[b];
    for (int from = 0; block->reason == ASSUMED && from < k->block_count; from++)
        if (leads_to(&k->blocks[from], from, b) && k->blocks[from].reason >= 0) {
            block->reason = k->blocks[from].reason;
            return true;
        }
    return false;
}

static void explain(struct kernel *k) {
    bool changed;
    for (int b = 0; b < k->block_count; b++) {
        struct block *block = &k->blocks[b];
        for (int i = block->first; i <= block->last; i++)
            block->executed = block->executed || k->lines[i].executed;
        block->reason = block->executed ? NONE : direct_reason(k, block);
        if (!block->executed && block->reason == NONE)
            block->reason = reason_of_conditions(k, &k->lines[block->first]);
        if (!block->executed && block->reason == NONE)
            block->reason = ASSUMED;
    }
    do {
        changed = false;
        for (int b = 0; b < k->block_count; b++)
            changed = doubt(k, b) || changed;
    } while (changed);
    do {
        changed = false;
        for (int b = 0; b < k->block_count; b++)
            changed = inherit(k, b) || changed;
    } while (changed);
}

static void summarise(struct kernel *k) {
    explain(k);
    for (int i = 1; i <= k->count; i++) {
        struct line *line = &k->lines[i];
        int reason = reason_of(k, line);
        if (!line->instruction)
            continue;
        if (line->executed)
            k->executed++;
        else if (reason >= 0)
            k->explained++, reasons[reason].used++;
    }
    if (k->executed == 0)
        complain("never executed", k->name, 1);
    else
        for (int i = 1; i <= k->count; i++)
            if (k->lines[i].instruction != k->lines[i].recorded &&
                !(is_conditional(&k->lines[i]) && k->lines[i].instruction))
                complain("the interpreter and this program do not see the same instructions", k->name, i);
}

static void list(const struct kernel *k, bool verbose) {
    int shown = NONE;
    printf("%-40s %5d instructions, %6.2f %% executed", k->name, k->instructions,
           100.0 * k->executed / k->instructions);
    printf(k->explained ? ", %.2f %% explained\n" : "\n", 100.0 * k->explained / k->instructions);
    if (k->executed == 0)
        return;
    for (int i = 1; i <= k->count; i++) {
        const struct line *line = &k->lines[i];
        int reason = reason_of(k, line);
        if (!line->instruction || line->executed || (reason >= 0 && !verbose))
            continue;
        if (line->block != shown)
            printf("    %s:\n", reason >= 0 ? reasons[reason].why : "no reason is known");
        shown = line->block;
        printf("      %5d %s\n", i, line->text);
    }
}

int main(int argc, char **argv) {
    long instructions = 0, executed = 0, explained = 0;
    char pattern[4096];
    glob_t files;
    bool verbose = argc > 1 && strcmp(argv[1], "-v") == 0, enough;
    argv += verbose, argc -= verbose;
    if (argc < 4) {
        fprintf(stderr, "usage: coverage [-v] PTX_FOLDER REASONS FILE...\n");
        return 2;
    }
    (void)snprintf(pattern, sizeof pattern, "%s/*.ptx", argv[1]);
    if (glob(pattern, 0, NULL, &files) != 0)
        complain("no PTX", argv[1], 0);
    else
        for (size_t i = 0; i < files.gl_pathc; i++)
            if (!read_ptx(files.gl_pathv[i]))
                complain("not a kernel", files.gl_pathv[i], 0);
    if (!read_reasons(argv[2]))
        complain("cannot be read", argv[2], 0);
    for (int i = 3; i < argc; i++)
        if (!read_coverage(argv[i]))
            complain("cannot be read", argv[i], 0);
    for (int k = 0; k < kernel_count; k++) {
        summarise(&kernels[k]);
        list(&kernels[k], verbose);
        instructions += kernels[k].instructions;
        executed += kernels[k].executed;
        explained += kernels[k].explained;
    }
    for (int r = 0; r < reason_count; r++) {
        printf("  %5d not executed: %s\n", reasons[r].used, reasons[r].why);
        if (reasons[r].used == 0)
            complain("explains nothing", reasons[r].instruction, r + 1);
    }
    enough = instructions > 0 && 100.0 * (double)(executed + explained) >= required * (double)instructions;
    if (instructions > 0)
        printf("coverage: %ld of %ld instructions of %d kernels executed (%.1f %%), %ld explained, %ld neither%s\n",
               executed, instructions, kernel_count, 100.0 * (double)executed / (double)instructions, explained,
               instructions - executed - explained, enough && !errors ? "" : ": FAILED");
    return enough && !errors ? 0 : 1;
}
