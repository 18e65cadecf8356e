/* Modules and launches of the stand-in. */
#include "fake_private.h"
#include "../../gen/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a text has it as an instruction, at the beginning of a line. */
static int has_instruction(const char *text, const char *instruction) {
    const char *at;
    for (at = strstr(text, instruction); at != NULL; at = strstr(at + 1, instruction)) {
        const char *before = at;
        while (before > text && before[-1] == ' ')
            before--;
        if (before > text && before[-1] == '\n')
            return 1;
    }
    return 0;
}

static int has_part(const char *entry, const char *const *parts) {
    for (; *parts != NULL; parts++)
        if (strstr(entry, *parts) != NULL)
            return 1;
    return 0;
}

/* The oldest driver that takes a text. */
static int driver_of(const char *ptx) {
    return strncmp(ptx, ".version 6.", 11) == 0      ? 9000
           : strncmp(ptx, ".version 7.0", 12) == 0   ? 11000
           : strncmp(ptx, ".version 8.0\n", 13) == 0 ? 12000
                                                     : 12010;
}

/* The word of that number that the library wrote into a text; returns 0 where no line is left that takes it. */
static int read_word(const char *ptx, int number, uint32_t *word) {
    char mark[8];
    const char *at;
    snprintf(mark, sizeof mark, "/*=%d*/", number);
    at = strstr(ptx, mark);
    at = at != NULL ? strstr(at, "0x") : NULL;
    *word = at != NULL ? (uint32_t)strtoul(at, NULL, 16) : 0;
    return at != NULL;
}

/* Whether a name is of a shell pattern of `*` and `[letters]`. fnmatch() takes more of a stack than a small one has. */
static int is_of(const char *pattern, const char *name) {
    const char *after_star = NULL, *tried = name;
    while (*name != 0) {
        const char *end = *pattern == '[' ? strchr(pattern, ']') : pattern;
        if (*pattern == '*') {
            after_star = ++pattern;
            tried = name;
        } else if (end == pattern ? *pattern == *name
                                  : memchr(pattern + 1, *name, (size_t)(end - pattern - 1)) != NULL) {
            pattern = end + 1;
            name++;
        } else if (after_star != NULL) {
            pattern = after_star;
            name = ++tried;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

/* The generator has left out what only words of no call need. has_words: those that the text has. */
static void check_facts(const char *entry, const uint32_t words[2], const int has_words[2]) {
    int i, k;
    for (i = 0; i < FACTS; i++) {
        int holds = is_of(facts[i].texts, entry);
        for (k = 0; holds && k < MOST_CLAUSES && facts[i].clauses[k].mask != 0; k++) {
            const fact_clause *clause = &facts[i].clauses[k];
            holds = has_words[clause->word] && ((words[clause->word] & clause->mask) != 0) == clause->is_any;
        }
        if (holds)
            fake_violate("cuModuleLoadDataEx of %s for words that fact %d excludes", entry, i);
    }
}

/* Tests call a variant by its entry. Rows or columns without options have the name of a schedule instead. */
static void name_schedule(fake_module *module) {
    const uint32_t format = module->words[GPULOSSI_FORMAT_WORD];
    const int in_registers = (format & GPULOSSI_FORMAT_REGISTERS) != 0;
    const char *schedule;
    if (strstr(module->entry, "_column_basic_") != NULL)
        schedule = in_registers ? "column_reg" : "column_smem";
    else if (strstr(module->entry, "_row_basic_") != NULL)
        schedule = (format & GPULOSSI_FORMAT_PACKED) == 0 ? "block_rows" : in_registers ? "packed_reg" : "packed_smem";
    else
        return;
    snprintf(module->entry, sizeof module->entry, "gpuloss_cross_entropy_%s_%s", schedule,
             strstr(module->entry, "_any16") != NULL ? "any16" : "f32");
}

int fake_module_load(void **module, const void *image, unsigned count, int *options, void **values) {
    int code = fake_begin("cuModuleLoadDataEx", NEEDS_CONTEXT);
    static const char *const rows[] = {"_packed_", "_pipeline_", NULL};
    const char *ptx = (const char *)image, *entry = strstr(ptx, ".entry ");
    const char *line = strstr(ptx, ".target sm_"), *bound = strstr(ptx, ".maxntid ");
    const int target = line != NULL ? atoi(line + 11) : 0;
    fake_module *made = &fake.module[fake.modules];
    int has_words[2];
    unsigned i;
    size_t log_bytes = 0;
    char *log = NULL;
    fake.loads++;
    for (i = 0; i < count; i++)
        if (options[i] == 5)
            log = (char *)values[i];
        else if (options[i] == 6)
            log_bytes = (size_t)(uintptr_t)values[i];
        else
            fake_violate("cuModuleLoadDataEx with option %d", options[i]);
    if (fake.capturing)
        fake_violate("cuModuleLoadDataEx during capture");
    if (target > 10 * fake.major + fake.minor)
        fake_violate("cuModuleLoadDataEx of a text for newer GPUs");
    if (fake.driver_version < driver_of(ptx))
        fake_violate("cuModuleLoadDataEx of a text for newer drivers");
    if (has_instruction(ptx, "griddepcontrol.") && (target < 90 || driver_of(ptx) < 12000))
        fake_violate("cuModuleLoadDataEx of a text with instructions of newer GPUs");
    if (entry == NULL || !fake_room(fake.modules, "modules"))
        code = 218;
    if (code != 0) {
        if (log != NULL && log_bytes > 0 && fake.log != NULL)
            snprintf(log, log_bytes, "%s", fake.log);
        return fake_end(code);
    }
    made->context = fake_current();
    made->live = 1;
    made->ptx = strdup(ptx);
    made->waits = has_instruction(ptx, "griddepcontrol.wait;");
    made->shared_bytes_allowed = 48 * 1024;
    snprintf(made->entry, sizeof made->entry, "%.*s", (int)strcspn(entry + 7, "("), entry + 7);
    made->most_threads = (unsigned)atoi(bound != NULL ? bound + 8 : "0");
    for (i = 0; i < 2; i++)
        has_words[i] = read_word(ptx, (int)i, &made->words[i]);
    check_facts(made->entry, made->words, has_words);
    memcpy(made->real_entry, made->entry, sizeof made->real_entry);
    name_schedule(made);
    made->for_clusters =
        fake_is_for_clusters(made->entry) || (made->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_CLUSTER) != 0;
    made->smem_rows = made->for_clusters || has_part(made->entry, rows);
    made->is_new = made->smem_rows || strstr(made->entry, "_block_rows_") != NULL;
    *module = made;
    fake.modules++;
    return fake_end(0);
}
int fake_module_unload(void *handle) {
    fake_module *module = (fake_module *)handle;
    int code = fake_begin("cuModuleUnload", NEEDS_CONTEXT);
    if (!module->live)
        fake_violate("cuModuleUnload of %s twice", module->entry);
    if (fake_depth() > 0 && module->context != fake_current())
        fake_violate("cuModuleUnload in another context");
    if (code != 0)
        module->release_failed = 1;
    else
        module->live = 0;
    return fake_end(code);
}
int fake_module_function(void **function, void *handle, const char *name) {
    int code = fake_begin("cuModuleGetFunction", NEEDS_CONTEXT);
    const char *entry = strstr(((fake_module *)handle)->ptx, ".entry ") + 7;
    if (code == 0 && (strlen(name) != strcspn(entry, "(") || strncmp(entry, name, strlen(name)) != 0))
        code = 500;
    if (code == 0)
        *function = handle;
    return fake_end(code);
}
/* Packed rows of cross-entropy, but for those in registers. */
static int has_narrow_rings(const char *entry) {
    return strstr(entry, "_packed_smem_") != NULL;
}
/* The shared memory of a block of `threads` threads. A wide block has more of both. */
static int may_be_wide(const fake_module *module) {
    return (module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_WIDE) != 0;
}
static int has_tiles(const char *entry) {
    return strstr(entry, "_row_thread_") != NULL;
}
static unsigned shared_bytes_of_block(const fake_module *module, unsigned threads) {
    if (has_tiles(module->entry))
        return strstr(module->entry, "_f64") != NULL ? 36864 : 20480;
    if (strstr(module->entry, "_sparse_memory_") != NULL)
        return 16384;
    if (!module->smem_rows)
        return 0;
    return !may_be_wide(module) ? module->shared_bytes_allowed : threads == FAKE_WIDE_BLOCK ? 98304 : 65536;
}
/* The smaller shared memory of a kernel that may be launched with less. */
static unsigned less_shared_bytes(const fake_module *module, unsigned whole) {
    const int has_options = (module->words[GPULOSSI_CALL_WORD] & GPULOSSI_CE_ROW_OPTIONS) != 0;
    if (has_narrow_rings(module->entry))
        return has_options ? 38400 : 38912;
    if (has_tiles(module->entry))
        return strstr(module->entry, "_f64") != NULL ? 24576 : 14848;
    return whole / 2;
}
int fake_blocks_per_sm(int *blocks, void *function, int threads, size_t shared_bytes) {
    int code = fake_begin("cuOccupancyMaxActiveBlocksPerMultiprocessor", NEEDS_CONTEXT);
    fake_module *module = (fake_module *)function;
    const unsigned whole = shared_bytes_of_block(module, (unsigned)threads);
    /* First with all of the shared memory, then with less. */
    if (shared_bytes != (module->occupancies == 0 ? whole : less_shared_bytes(module, whole)))
        fake_violate("occupancy of %s queried with %u bytes", module->entry, (unsigned)shared_bytes);
    if ((unsigned)threads != fake_threads_of(module->entry))
        fake_violate("occupancy of %s queried with %d threads", module->entry, threads);
    module->occupancies++;
    if (code == 0)
        *blocks = shared_bytes == 0 ? fake.blocks_small : shared_bytes < whole ? fake.blocks_less : fake.blocks_shared;
    return fake_end(code);
}

/* The zeros of a scratch come from a fill; work of another stream must not overtake it. */
static void check_scratch(uint64_t scratch, struct CUstream_st *stream) {
    int i;
    for (i = 0; i < fake.fills; i++)
        if (scratch >= fake.fill[i].base && scratch < fake.fill[i].base + fake.fill[i].bytes &&
            !fake.fill[i].finished && fake.fill[i].stream != stream)
            fake_violate("a launch uses scratch before another stream has zeroed it");
}

/* Whether a prepare kernel of these parameters is the one that a launch needs: it takes the same ones, or, where the
 * launch takes others, it counts the rows that the launch goes through. */
static int is_prepared_by(const fake_launched *l, const gpulossi_cross_entropy *prepared) {
    const gpulossi_rows *rows = &l->parameters.rows;
    const gpulossi_kl_div *kl = &l->parameters.kl_div;
    const gpulossi_kl_div_sparse *sparse = &l->parameters.kl_div_sparse;
    const uint32_t not_counted = GPULOSSI_EVEN | GPULOSSI_KEEP_ZERO_NAN;
    gpulossi_cross_entropy counted = l->parameters.cross_entropy;
    counted.rows.of.tile_rows = prepared->rows.of.tile_rows; /* chosen later, for clusters */
    if (strstr(l->entry, "kl_div") == NULL)
        return memcmp(prepared, &counted, sizeof *prepared) == 0;
    if (prepared->class_weights != 0 || prepared->rows.rows != rows->rows ||
        prepared->rows.flags != (rows->flags & ~not_counted))
        return 0;
    return strstr(l->entry, "sparse")
               ? prepared->targets == sparse->labels && prepared->target_type == sparse->label_type &&
                     prepared->ignore_index == sparse->ignore_index
               : prepared->targets == kl->labels && prepared->target_type == kl->label_type &&
                     prepared->ignore_index == kl->ignore_index;
}

static uint32_t index_format(uint32_t type) {
    static const uint32_t formats[] = {[GPULOSS_I32] = GPULOSSI_FORMAT_INDEX_I32,
                                       [GPULOSS_I16] = GPULOSSI_FORMAT_INDEX_I16,
                                       [GPULOSS_U8] = GPULOSSI_FORMAT_INDEX_U8};
    return type < sizeof formats / sizeof *formats ? formats[type] : 0;
}

/* Kernels without options, and the prepare kernel, take from their words what they are to read. */
static void check_words(const fake_launched *l) {
    static const char *const entries[] = {"prepare_targets", "cross_entropy_packed_", "cross_entropy_column_",
                                          "cross_entropy_block_rows_", NULL};
    const uint32_t types = GPULOSSI_FORMAT_INDEX_I32 | GPULOSSI_FORMAT_INDEX_I16 | GPULOSSI_FORMAT_INDEX_U8;
    const gpulossi_cross_entropy *p = &l->parameters.cross_entropy;
    const uint32_t call = l->module->words[GPULOSSI_CALL_WORD], format = l->module->words[GPULOSSI_FORMAT_WORD];
    const int is_prepare = strstr(l->entry, "prepare_targets") != NULL;
    if (strstr(l->entry, "_row_thread_") != NULL &&
        ((format & GPULOSSI_FORMAT_ONE_THREAD) != 0) != (p->rows.group == 1))
        fake_violate("%s has the format %#x for a group of %u threads", l->entry, format, p->rows.group);
    if (!has_part(l->entry, entries))
        return;
    if ((format & types) != index_format(p->target_type))
        fake_violate("%s has the format %#x for indices of type %u", l->entry, format, p->target_type);
    if (is_prepare && ((call & GPULOSSI_PREPARE_WEIGHTS) != 0) != (p->class_weights != 0))
        fake_violate("%s has the call word %#x", l->entry, call);
    if ((format & GPULOSSI_FORMAT_PACKED) != 0 &&
        ((format & GPULOSSI_FORMAT_RAGGED) != 0) != ((p->rows.flags & GPULOSSI_EVEN) == 0))
        fake_violate("%s has the format %#x and the flags %#x", l->entry, format, p->rows.flags);
}

/* The results of a prepare kernel in the scratch are for the next launch. */
static void check_prepared(const fake_launched *l) {
    const gpulossi_cross_entropy *p = &l->parameters.cross_entropy;
    const int is_prepare = strstr(l->entry, "prepare_targets") != NULL;
    const int is_output = is_prepare && (l->module->words[GPULOSSI_CALL_WORD] & GPULOSSI_PREPARE_OUTPUT) != 0;
    const int prepares = is_prepare && !is_output; /* an output is the call's: the scratch gets nothing */
    const int is_prepared = (p->rows.flags & GPULOSSI_PREPARED) != 0 && !is_output;
    int i;
    for (i = 0; i < fake.prepares && fake.prepared[i].rows.scratch != p->rows.scratch; i++)
        ;
    if (i < fake.prepares) {
        if (prepares || !is_prepared_by(l, &fake.prepared[i]))
            fake_violate("%s finds what was prepared for another launch", l->entry);
        fake.prepared[i] = fake.prepared[--fake.prepares];
    } else if (!prepares && is_prepared)
        fake_violate("%s finds nothing prepared", l->entry);
    if (prepares && fake.prepares < FAKE_PREPARED)
        fake.prepared[fake.prepares++] = *p;
}

static size_t parameter_bytes(const char *entry) {
    if (strstr(entry, "kl_div_sparse"))
        return sizeof(gpulossi_kl_div_sparse);
    return strstr(entry, "kl_div") ? sizeof(gpulossi_kl_div) : sizeof(gpulossi_cross_entropy);
}

/* The attributes of a launch, by what they are of; those that are not given have id 0. */
typedef struct fake_attributes {
    fake_attribute cluster, dependent;
} fake_attributes;
static fake_attributes attributes_of(const char *symbol, const fake_module *module, const fake_config *config) {
    fake_attributes given;
    unsigned i;
    memset(&given, 0, sizeof given);
    for (i = 0; i < config->attribute_count; i++) {
        fake_attribute attribute, *of;
        memcpy(&attribute, (const char *)config->attributes + i * sizeof attribute, sizeof attribute);
        of = attribute.id == 4 ? &given.cluster : &given.dependent;
        if ((attribute.id != 4 && attribute.id != 6) || of->id != 0)
            fake_violate("%s of %s with attribute %d as number %u", symbol, module->entry, attribute.id, i + 1);
        *of = attribute;
    }
    return given;
}

/* The checks of a real driver for a launch in clusters, or for a query about one. Returns the size of the clusters, or 0
 * where the kernel takes none of that size. */
static unsigned cluster_of(const char *symbol, const fake_module *module, const fake_config *config,
                           const fake_attribute *attribute) {
    const unsigned *cluster = attribute->value.cluster, size = cluster[0];
    if (attribute->id != 4) {
        fake_violate("%s of %s without the attribute of a cluster", symbol, module->entry);
        return 0;
    }
    if (size < 1 || size > 16 || cluster[1] != 1 || cluster[2] != 1)
        fake_violate("%s with clusters of %u %u %u", symbol, size, cluster[1], cluster[2]);
    else if (config->grid[0] % size != 0)
        fake_violate("%s with %u blocks in clusters of %u", symbol, config->grid[0], size);
    if (config->shared_bytes > module->shared_bytes_allowed)
        fake_violate("%s with %u bytes where %u are allowed", symbol, config->shared_bytes,
                     module->shared_bytes_allowed);
    return size <= 8 || module->non_portable_allowed ? size : 0;
}

/* A kernel that may come before the one before it has ended must wait for that itself, which not every driver and GPU
 * knows; and what waits may come sooner wherever that is known. */
static int is_dependent(const char *symbol, const fake_module *module, const fake_attribute *attribute) {
    if (attribute->id == 0) {
        if (module->waits && fake.driver_version >= 12030)
            fake_violate("%s of %s, which waits for nothing", symbol, module->entry);
        return 0;
    }
    if (attribute->value.dependent != 1)
        fake_violate("%s of %s, dependent by %d", symbol, module->entry, attribute->value.dependent);
    if (!module->waits)
        fake_violate("%s of %s, which does not wait", symbol, module->entry);
    if (fake.driver_version < 12030 || fake.major < 9)
        fake_violate("%s of %s, dependent on %d.%d with driver %d", symbol, module->entry, fake.major, fake.minor,
                     fake.driver_version);
    return 1;
}

int fake_is_for_clusters(const char *entry) {
    static const char *const parts[] = {"_clustered_", "_row_cluster_", "_logits_block_rows_", NULL};
    return has_part(entry, parts);
}

unsigned fake_threads_of(const char *entry) {
    static const char *const smaller[] = {"_distances_clustered_", "_logits_packed_", "_logits_block_rows_", NULL};
    const int is_small = has_part(entry, smaller) || has_narrow_rings(entry) || has_tiles(entry);
    return strstr(entry, "_row_cluster_") != NULL ? 608 : is_small ? 128 : 256;
}

static int active_clusters(const fake_config *config, unsigned size) {
    return config->block[0] == GPULOSSI_ROW_CLUSTER_THREADS ? fake.row_clusters[size]
           : config->shared_bytes == 98304                  ? fake.wide_clusters[size]
                                                            : fake.active_clusters[size];
}

static int is_block_of(const fake_module *module, unsigned threads) {
    return threads == fake_threads_of(module->entry) || (threads == FAKE_WIDE_BLOCK && may_be_wide(module));
}

int fake_function_attribute(void *function, int attribute, int value) {
    int code = fake_begin_attribute("cuFuncSetAttribute", NEEDS_CONTEXT, attribute);
    fake_module *module = (fake_module *)function;
    if (!module->live)
        fake_violate("cuFuncSetAttribute of an unloaded module");
    if (attribute == 8 && value > fake.shared_optin)
        fake_violate("cuFuncSetAttribute of %d bytes where a block has %d", value, fake.shared_optin);
    if (attribute != 8 && attribute != 9 && attribute != 14)
        fake_violate("cuFuncSetAttribute of %d", attribute);
    if (code == 0 && attribute == 8)
        module->shared_bytes_set = (int)(module->shared_bytes_allowed = (unsigned)value);
    else if (code == 0 && attribute == 14)
        module->non_portable_allowed = value;
    return fake_end(code);
}
int fake_active_clusters(int *clusters, void *function, const void *config) {
    static const char symbol[] = "cuOccupancyMaxActiveClusters";
    int code = fake_begin(symbol, NEEDS_CONTEXT);
    const fake_config *query = (const fake_config *)config;
    const fake_attributes given = attributes_of(symbol, (fake_module *)function, query);
    unsigned size = cluster_of(symbol, (fake_module *)function, query, &given.cluster);
    const unsigned threads = query->block[0];
    if (!is_block_of((fake_module *)function, threads) ||
        query->shared_bytes != shared_bytes_of_block((fake_module *)function, threads))
        fake_violate("%s of %u threads with %u bytes", symbol, threads, query->shared_bytes);
    if (given.dependent.id != 0)
        fake_violate("%s of %s, dependent", symbol, ((fake_module *)function)->entry);
    if (!((fake_module *)function)->smem_rows)
        fake_violate("%s of %s, which older drivers have to launch", symbol, ((fake_module *)function)->entry);
    if (code == 0 && size == 0)
        code = 912;
    if (code == 0)
        *clusters = active_clusters(query, size);
    return fake_end(code);
}

static int launch(const char *symbol, void *function, const fake_config *config, void **parameters, void **extra) {
    int code = fake_begin(symbol, NEEDS_CONTEXT);
    fake_module *module = (fake_module *)function;
    fake_launched *made = &fake.launch[fake.launches];
    const unsigned *grid = config->grid, *block = config->block;
    const fake_attributes given = attributes_of(symbol, module, config);
    const unsigned cluster = module->for_clusters ? cluster_of(symbol, module, config, &given.cluster) : 0;
    const int dependent = is_dependent(symbol, module, &given.dependent);
    const int has_less =
        strstr(module->entry, "_logits_packed_") != NULL || has_narrow_rings(module->entry) || has_tiles(module->entry);
    const unsigned whole = shared_bytes_of_block(module, block[0]);
    if (!module->live)
        fake_violate("%s of an unloaded module", symbol);
    if (fake_depth() > 0 && module->context != fake_current())
        code = 400;
    if (extra != NULL)
        fake_violate("%s with extra", symbol);
    if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1 || block[0] == 0 || block[1] != 1 || block[2] != 1)
        fake_violate("%s with grid %u %u %u, block %u %u %u", symbol, grid[0], grid[1], grid[2], block[0], block[1],
                     block[2]);
    if (!module->for_clusters && given.cluster.id != 0)
        fake_violate("%s of %s in clusters", symbol, module->entry);
    if (config->attribute_count == 0 && strcmp(symbol, "cuLaunchKernel") != 0)
        fake_violate("%s of %s without attributes", symbol, module->entry);
    if (fake.fail_entry != NULL && strcmp(module->entry, fake.fail_entry) == 0) {
        fake.failed = symbol;
        code = fake.fail_code;
    }
    if (config->shared_bytes != whole && (config->shared_bytes != less_shared_bytes(module, whole) || !has_less))
        fake_violate("%s of %s with %u bytes", symbol, module->entry, config->shared_bytes);
    if (block[0] > module->most_threads)
        fake_violate("%s of %s with %u threads of %u", symbol, module->entry, block[0], module->most_threads);
    if (module->for_clusters && !is_block_of(module, block[0]))
        fake_violate("%s of %s with %u threads", symbol, module->entry, block[0]);
    if (module->for_clusters && (cluster == 0 || (cluster > 1 && active_clusters(config, cluster) == 0)))
        fake_violate("%s of clusters that are too large", symbol);
    if (code != 0 || !fake_room(fake.launches, "launches"))
        return fake_end(code);
    memset(made, 0, sizeof *made);
    snprintf(made->entry, sizeof made->entry, "%s", module->entry);
    made->module = module;
    made->grid = grid[0];
    made->block = block[0];
    made->shared_bytes = config->shared_bytes;
    made->cluster = cluster;
    made->dependent = dependent;
    made->stream = config->stream;
    memcpy(&made->parameters, parameters[0], parameter_bytes(module->entry));
    check_scratch(made->parameters.rows.scratch, config->stream);
    check_words(made);
    check_prepared(made);
    fake.launches++;
    return fake_end(0);
}
int fake_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                unsigned shared_bytes, struct CUstream_st *stream, void **parameters, void **extra) {
    const fake_config config = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, NULL, 0};
    return launch("cuLaunchKernel", function, &config, parameters, extra);
}
int fake_launch_config(const void *config, void *function, void **parameters, void **extra) {
    return launch("cuLaunchKernelEx", function, (const fake_config *)config, parameters, extra);
}
