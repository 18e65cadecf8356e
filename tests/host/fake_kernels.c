/* Modules and launches of the stand-in. */
#include "fake_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fake_module_load(void **module, const void *image, unsigned count, int *options, void **values) {
    int code = fake_begin("cuModuleLoadDataEx", NEEDS_CONTEXT);
    const char *ptx = (const char *)image, *entry = strstr(ptx, ".entry ");
    fake_module *made = &fake.module[fake.modules];
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
    snprintf(made->entry, sizeof made->entry, "%.*s", (int)strcspn(entry + 7, "("), entry + 7);
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
    if (code == 0 && strcmp(((fake_module *)handle)->entry, name) != 0)
        code = 500;
    if (code == 0)
        *function = handle;
    return fake_end(code);
}
int fake_blocks_per_sm(int *blocks, void *function, int threads, size_t shared_bytes) {
    int code = fake_begin("cuOccupancyMaxActiveBlocksPerMultiprocessor", NEEDS_CONTEXT);
    (void)function;
    if (shared_bytes != 0)
        fake_violate("occupancy asked for with dynamic shared memory");
    if (code == 0)
        *blocks = threads > 256 ? fake.blocks_large : fake.blocks_small;
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
    if (strstr(l->entry, "kl_div") == NULL)
        return memcmp(prepared, &l->parameters.cross_entropy, sizeof *prepared) == 0;
    if (prepared->class_weights != 0 || prepared->rows.rows != rows->rows ||
        prepared->rows.flags != (rows->flags & ~not_counted))
        return 0;
    return strstr(l->entry, "sparse")
               ? prepared->targets == sparse->labels && prepared->target_type == sparse->label_type &&
                     prepared->ignore_index == sparse->ignore_index
               : prepared->targets == kl->labels && prepared->target_type == kl->label_type &&
                     prepared->ignore_index == kl->ignore_index;
}

/* What the prepare kernel leaves in the scratch is for the launch that comes next. */
static void check_prepared(const fake_launched *l) {
    const gpulossi_cross_entropy *p = &l->parameters.cross_entropy;
    int prepares = strstr(l->entry, "prepare_targets") != NULL, is_prepared = (p->rows.flags & GPULOSSI_PREPARED) != 0;
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

static int launch(void *function, const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                  struct CUstream_st *stream, void **parameters) {
    int code = fake_begin("cuLaunchKernel", NEEDS_CONTEXT);
    fake_module *module = (fake_module *)function;
    fake_launched *made = &fake.launch[fake.launches];
    if (!module->live)
        fake_violate("cuLaunchKernel of an unloaded module");
    if (fake_depth() > 0 && module->context != fake_current())
        code = 400;
    if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1 || block[0] == 0 || block[1] != 1 || block[2] != 1)
        fake_violate("cuLaunchKernel with grid %u %u %u, block %u %u %u", grid[0], grid[1], grid[2], block[0], block[1],
                     block[2]);
    if (code != 0 || !fake_room(fake.launches, "launches"))
        return fake_end(code);
    memset(made, 0, sizeof *made);
    snprintf(made->entry, sizeof made->entry, "%s", module->entry);
    made->grid = grid[0];
    made->block = block[0];
    made->shared_bytes = shared_bytes;
    made->stream = stream;
    memcpy(&made->parameters, parameters[0], parameter_bytes(module->entry));
    check_scratch(made->parameters.rows.scratch, stream);
    check_prepared(made);
    fake.launches++;
    return fake_end(0);
}
int fake_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                unsigned shared_bytes, struct CUstream_st *stream, void **parameters, void **extra) {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    if (extra != NULL)
        fake_violate("cuLaunchKernel with extra");
    return launch(function, grid, block, shared_bytes, stream, parameters);
}
