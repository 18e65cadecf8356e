/* Driver entry points: modules, functions, launches, memory. */
#include "driver_api.h"

#include <stdlib.h>
#include <string.h>

enum { JIT_INFO_BUFFER = 3, JIT_INFO_BYTES = 4, JIT_ERROR_BUFFER = 5, JIT_ERROR_BYTES = 6 };

enum { FAULT_LINE = 1024 };

static CUmodule modules;
static CUfunction functions;

static int leave(int error) {
    ptxsim_unlock();
    return error;
}

static bool module_ok(CUmodule module) {
    CUmodule m = modules;
    while (m && m != module)
        m = m->next;
    return m != NULL;
}

static bool function_ok(CUfunction function) {
    CUfunction f = functions;
    while (f && f != function)
        f = f->next;
    return f != NULL;
}

/* A line without the parts that the loader changes: blanks, the mark at its beginning, and the newline. */
static size_t bare(const char **line) {
    const char *end = *line + strcspn(*line, "\n"), *comment = strstr(*line, "*/");
    if (strncmp(*line, "/*", 2) == 0 && comment && comment < end)
        *line = comment + 2;
    while (*line < end && **line == ' ')
        ++*line;
    return (size_t)(end - *line);
}

/* Replaces the line with that number, which must be `sound`, with `faulty`. Returns null where it is another line, or
 * blank because this variant of a text does not have the line. */
static char *with_line(const char *text, unsigned number, const char *sound, const char *faulty, const char *path) {
    const char *line = text, *begin, *end;
    size_t length;
    for (; number > 1 && *line; number--) {
        line += strcspn(line, "\n");
        line += *line != 0;
    }
    begin = line;
    end = line + strcspn(line, "\n");
    length = bare(&line);
    if (length == 0)
        return NULL;
    if (bare(&sound) != length || memcmp(line, sound, length) != 0) {
        fprintf(stderr, "ptxsim: %s is about another line: %.*s\n", path, (int)length, line);
        return NULL;
    }
    char *changed = malloc(strlen(text) + strlen(faulty) + 1);
    if (!changed)
        abort();
    sprintf(changed, "%.*s%.*s%s", (int)(begin - text), text, (int)strcspn(faulty, "\n"), faulty, end);
    return changed;
}

/* The text with the faulty lines that the environment names; null for none. A program thus runs a faulty kernel without
 * knowing it. */
static char *with_fault(const char *image) {
    static const char entry[] = ".entry ";
    const char *name = strstr(image, entry);
    char path[4096], number[FAULT_LINE], sound[FAULT_LINE], faulty[FAULT_LINE], *text = NULL;
    if (!ptxsim_device.fault || !*ptxsim_device.fault || !name)
        return NULL;
    name += strlen(entry);
    snprintf(path, sizeof path, "%s/%.*s.fault", ptxsim_device.fault, (int)strcspn(name, "( \t\r\n"), name);
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    while (fgets(number, sizeof number, file) && fgets(sound, sizeof sound, file) &&
           fgets(faulty, sizeof faulty, file)) {
        char *more = with_line(text ? text : image, (unsigned)strtoul(number, NULL, 10), sound, faulty, path);
        if (more) {
            free(text);
            text = more;
        }
    }
    fclose(file);
    if (text)
        fprintf(stderr, "ptxsim: %s is planted\n", path);
    return text;
}

static int load(CUmodule *out, const void *image, struct parse_error *error) {
    CUcontext context;
    int code = ptxsim_enter(&context);
    const unsigned char *bytes = image;
    error->text[0] = 0;
    if (!code && (!out || !image))
        code = E_INVALID_VALUE;
    if (code)
        return leave(code);
    /* Machine code, alone or in a container, is for real devices only. */
    if (bytes[0] == 0x7f || bytes[0] == 0x50)
        return leave(E_NO_BINARY);
    char *other = with_fault(image);
    struct module *module = ptxsim_parse(other ? other : image, error);
    free(other);
    if (!module)
        return leave(error->code);
    CUmodule m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->module = module;
    m->context = context;
    m->next = modules;
    modules = m;
    *out = m;
    return leave(E_OK);
}

PTXSIM_EXPORT int cuModuleLoadData(CUmodule *module, const void *image) {
    struct parse_error error;
    int code = load(module, image, &error);
    if (code && error.text[0])
        fprintf(stderr, "%s\n", error.text);
    return code;
}

static void **option(unsigned n, const int *names, void **values, int wanted) {
    for (unsigned i = 0; i < n; i++)
        if (names[i] == wanted)
            return &values[i];
    return NULL;
}

static void fill_log(unsigned n, const int *names, void **values, int buffer, int bytes, const char *text) {
    void **where = option(n, names, values, buffer), **room = option(n, names, values, bytes);
    if (!where || !room || !*where || !*room)
        return;
    size_t size = (size_t)(uintptr_t)*room;
    snprintf(*where, size, "%s", text);
    *room = (void *)(uintptr_t)strlen(*where);
}

PTXSIM_EXPORT int cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *names, void **values) {
    struct parse_error error;
    if (n && (!names || !values))
        return E_INVALID_VALUE;
    int code = load(module, image, &error);
    fill_log(n, names, values, JIT_INFO_BUFFER, JIT_INFO_BYTES, "");
    fill_log(n, names, values, JIT_ERROR_BUFFER, JIT_ERROR_BYTES, error.text);
    return code;
}

static void unload(CUmodule *place) {
    CUmodule module = *place;
    *place = module->next;
    for (CUfunction *f = &functions; *f;) {
        CUfunction gone = *f;
        if (gone->owner == module) {
            *f = gone->next;
            free(gone);
        } else {
            f = &gone->next;
        }
    }
    ptxsim_note_executed(module->module);
    ptxsim_module_free(module->module);
    free(module);
}

void ptxsim_drop_modules(CUcontext context) {
    for (CUmodule *m = &modules; *m;) {
        if ((*m)->context == context)
            unload(m);
        else
            m = &(*m)->next;
    }
}

PTXSIM_EXPORT int cuModuleUnload(CUmodule module) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    CUmodule *m = &modules;
    while (*m && *m != module)
        m = &(*m)->next;
    if (!*m)
        return leave(error ? error : E_INVALID_HANDLE);
    unload(m);
    return leave(error);
}

PTXSIM_EXPORT int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && (!function || !name))
        error = E_INVALID_VALUE;
    if (!error && !module_ok(module))
        error = E_INVALID_HANDLE;
    if (error)
        return leave(error);
    for (struct kernel *k = module->module->kernels; k; k = k->next) {
        if (strcmp(k->name, name) != 0)
            continue;
        CUfunction f = functions;
        while (f && f->kernel != k)
            f = f->next;
        if (!f) {
            f = calloc(1, sizeof *f);
            if (!f)
                abort();
            f->kernel = k;
            f->owner = module;
            f->next = functions;
            functions = f;
        }
        *function = f;
        return leave(E_OK);
    }
    return leave(E_NOT_FOUND);
}

PTXSIM_EXPORT int cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && !name)
        error = E_INVALID_VALUE;
    if (!error && !module_ok(module))
        error = E_INVALID_HANDLE;
    if (error)
        return leave(error);
    for (struct variable *v = module->module->variables; v; v = v->next) {
        if (v->space == SP_SHARED || strcmp(v->name, name) != 0)
            continue;
        if (address)
            *address = v->address;
        if (bytes)
            *bytes = v->bytes;
        return leave(E_OK);
    }
    return leave(E_NOT_FOUND);
}

/* Numbers of CUfunction_attribute. */
enum {
    FA_MAX_THREADS,
    FA_SHARED,
    FA_CONST,
    FA_LOCAL,
    FA_REGISTERS,
    FA_PTX_VERSION,
    FA_BINARY_VERSION,
    FA_CACHE_CA,
    FA_MAX_DYNAMIC,
    FA_CARVEOUT,
    FA_CLUSTER_REQUIRED,
    FA_CLUSTER_X,
    FA_CLUSTER_Y,
    FA_CLUSTER_Z,
    FA_NON_PORTABLE,
    FA_CLUSTER_POLICY
};

/* The interpreter does not know how many registers a compiler would allocate. This number never limits a launch. */
enum { REGISTERS = 32 };

static uint32_t max_threads(const struct kernel *k) {
    return k->max_ntid && k->max_ntid < ptxsim_device.threads_per_block ? k->max_ntid : ptxsim_device.threads_per_block;
}

static uint32_t max_dynamic(const struct kernel *k) {
    if (k->max_dynamic)
        return k->max_dynamic;
    return k->shared_bytes < ptxsim_device.shared_per_block ? ptxsim_device.shared_per_block - k->shared_bytes : 0;
}

static int function_enter(CUfunction function, CUcontext *context) {
    int error = ptxsim_enter(context);
    return error ? error : function_ok(function) ? E_OK : E_INVALID_HANDLE;
}

PTXSIM_EXPORT int cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CUcontext context;
    int error = function_enter(function, &context);
    if (!error && !value)
        error = E_INVALID_VALUE;
    if (error)
        return leave(error);
    const struct kernel *k = function->kernel;
    switch (attribute) {
    case FA_MAX_THREADS:
        *value = (int)max_threads(k);
        break;
    case FA_SHARED:
        *value = (int)k->shared_bytes;
        break;
    case FA_CONST:
        *value = (int)k->const_bytes;
        break;
    case FA_LOCAL:
        *value = (int)k->local_bytes;
        break;
    case FA_REGISTERS:
        *value = REGISTERS;
        break;
    case FA_PTX_VERSION:
        *value = (int)k->module->target;
        break;
    case FA_BINARY_VERSION:
        *value = (int)ptxsim_device.sm;
        break;
    case FA_MAX_DYNAMIC:
        *value = (int)max_dynamic(k);
        break;
    case FA_CLUSTER_REQUIRED:
        *value = k->req_cluster[0] != 0;
        break;
    case FA_CLUSTER_X:
    case FA_CLUSTER_Y:
    case FA_CLUSTER_Z:
        *value = (int)k->req_cluster[attribute - FA_CLUSTER_X];
        break;
    case FA_NON_PORTABLE:
        *value = k->nonportable_cluster;
        break;
    case FA_CACHE_CA:
    case FA_CARVEOUT:
    case FA_CLUSTER_POLICY:
        *value = attribute == FA_CARVEOUT ? -1 : 0;
        break;
    default:
        error = E_INVALID_VALUE;
    }
    return leave(error);
}

PTXSIM_EXPORT int cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    CUcontext context;
    int error = function_enter(function, &context);
    if (error)
        return leave(error);
    struct kernel *k = function->kernel;
    switch (attribute) {
    case FA_MAX_DYNAMIC:
        if (value < 0 || (uint32_t)value + k->shared_bytes > ptxsim_device.shared_optin)
            error = E_INVALID_VALUE;
        else
            k->max_dynamic = (uint32_t)value;
        break;
    case FA_NON_PORTABLE:
        k->nonportable_cluster = value != 0;
        break;
    case FA_CARVEOUT:
    case FA_CLUSTER_POLICY:
        break;
    default:
        error = E_INVALID_VALUE;
    }
    return leave(error);
}

/* Blocks that a multiprocessor takes at a time. Registers are not looked at: how many there are is the assembler's
 * choice. */
static uint32_t blocks_at_a_time(const struct kernel *k, uint32_t threads, uint64_t dynamic) {
    const struct device *d = &ptxsim_device;
    uint32_t warps = (threads + PTXSIM_WARP - 1) / PTXSIM_WARP;
    uint64_t shared = k->shared_bytes + dynamic + d->shared_reserved;
    uint64_t n = d->threads_per_sm / (warps * PTXSIM_WARP);
    n = n > d->blocks_per_sm ? d->blocks_per_sm : n;
    if (shared && n > d->shared_per_sm / shared)
        n = d->shared_per_sm / shared;
    return threads > max_threads(k) || dynamic > max_dynamic(k) ? 0 : (uint32_t)n;
}

PTXSIM_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                              size_t dynamic) {
    CUcontext context;
    int error = function_enter(function, &context);
    if (!error && (!blocks || threads <= 0))
        error = E_INVALID_VALUE;
    if (error)
        return leave(error);
    *blocks = (int)blocks_at_a_time(function->kernel, (uint32_t)threads, dynamic);
    return leave(E_OK);
}

static int check_cluster(const struct launch *launch) {
    const struct kernel *k = launch->kernel;
    const uint32_t *c = launch->cluster;
    uint32_t size = c[0] * c[1] * c[2];
    if (size > 1 && ptxsim_device.cluster_max == 1)
        return E_NOT_SUPPORTED;
    if (size > (k->nonportable_cluster ? ptxsim_device.cluster_max : ptxsim_device.cluster_portable))
        return E_CLUSTER_SIZE;
    if (k->max_cluster_rank && size > k->max_cluster_rank)
        return E_CLUSTER_SIZE;
    for (int n = 0; n < 3; n++) {
        if (c[n] == 0 || launch->grid[n] % c[n])
            return E_INVALID_VALUE;
        if (k->req_cluster[0] && c[n] != k->req_cluster[n])
            return E_CLUSTER_SIZE;
    }
    return E_OK;
}

static int check_launch(const struct launch *launch) {
    const struct kernel *k = launch->kernel;
    const uint32_t *g = launch->grid, *b = launch->block;
    const struct device *d = &ptxsim_device;
    if (!g[0] || !g[1] || !g[2] || g[0] > 2147483647u || g[1] > 65535 || g[2] > 65535)
        return E_INVALID_VALUE;
    if (!b[0] || !b[1] || !b[2] || b[0] > 1024 || b[1] > 1024 || b[2] > 64)
        return E_INVALID_VALUE;
    uint32_t threads = b[0] * b[1] * b[2];
    if (threads > d->threads_per_block)
        return E_INVALID_VALUE;
    if (k->max_ntid && threads > k->max_ntid)
        return E_INVALID_VALUE;
    for (int n = 0; n < 3; n++)
        if (k->req_ntid[0] && b[n] != k->req_ntid[n])
            return E_INVALID_VALUE;
    if (launch->dynamic_bytes > max_dynamic(k))
        return E_INVALID_VALUE;
    if (k->shared_bytes > d->shared_per_block)
        return E_INVALID_VALUE;
    return check_cluster(launch);
}

/* Packs the parameters: either one pointer each, or the caller's own packed buffer. */
static int take_params(const struct kernel *k, uint8_t *to, void **params, void **extra) {
    if (params) {
        for (uint32_t i = 0; i < k->param_count; i++) {
            if (!params[i])
                return E_INVALID_VALUE;
            memcpy(to + k->param_offset[i], params[i], k->param_size[i]);
        }
        return E_OK;
    }
    const void *buffer = NULL;
    const size_t *bytes = NULL;
    for (; extra && extra[0]; extra += 2) {
        if ((uintptr_t)extra[0] == 1)
            buffer = extra[1];
        else if ((uintptr_t)extra[0] == 2)
            bytes = extra[1];
        else
            return E_INVALID_VALUE;
    }
    if (k->param_count == 0)
        return E_OK;
    if (!buffer || !bytes || *bytes < k->param_bytes)
        return E_INVALID_VALUE;
    memcpy(to, buffer, k->param_bytes);
    return E_OK;
}

static int set_kernel(struct launch *launch, struct kernel *k) {
    launch->kernel = k;
    if (!launch->cluster[0])
        for (int n = 0; n < 3; n++)
            launch->cluster[n] = k->req_cluster[0] ? k->req_cluster[n] : 1;
    return check_launch(launch);
}

/* A kernel that faults leaves its error in the context, like on a device: the launch itself has succeeded. */
static int run(CUfunction function, struct launch *launch, CUstream stream, void **params, void **extra) {
    CUcontext context;
    int error = function_enter(function, &context);
    if (!error && (function->owner->context != context || !ptxsim_stream_ok(stream)))
        error = E_INVALID_HANDLE;
    /* All but the default streams are of one context. */
    if (!error && (uintptr_t)stream > 2 && stream->context != context)
        error = E_INVALID_HANDLE;
    if (error)
        return leave(error);
    struct kernel *k = function->kernel;
    error = set_kernel(launch, k);
    if (error)
        return leave(error);
    launch->params = calloc(k->param_bytes + 1u, 1);
    if (!launch->params)
        abort();
    launch->step_limit = ptxsim_device.steps;
    error = take_params(k, launch->params, params, extra);
    if (!error) {
        ptxsim_run(launch);
        context->sticky = launch->error;
    }
    free(launch->params);
    return leave(error);
}

PTXSIM_EXPORT int cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    struct launch launch = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .dynamic_bytes = shared};
    return run(function, &launch, stream, params, extra);
}

enum {
    LA_IGNORE = 0,
    LA_COOPERATIVE = 2,
    LA_CLUSTER = 4,
    LA_CLUSTER_POLICY = 5,
    LA_SERIALIZATION = 6,
    LA_PRIORITY = 8
};

struct launch_attribute {
    int id;
    int unused;
    union {
        char room[64];
        unsigned cluster[3];
        int number;
    } value;
};

struct launch_config {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    const struct launch_attribute *attributes;
    unsigned count;
};

static int take_config(struct launch *launch, const struct launch_config *config) {
    if (!config || (config->count && !config->attributes))
        return E_INVALID_VALUE;
    memcpy(launch->grid, config->grid, sizeof launch->grid);
    memcpy(launch->block, config->block, sizeof launch->block);
    launch->dynamic_bytes = config->shared;
    for (unsigned i = 0; i < config->count; i++) {
        const struct launch_attribute *a = &config->attributes[i];
        switch (a->id) {
        case LA_CLUSTER:
            memcpy(launch->cluster, a->value.cluster, sizeof launch->cluster);
            if (!launch->cluster[0] || !launch->cluster[1] || !launch->cluster[2])
                return E_INVALID_VALUE;
            break;
        case LA_COOPERATIVE:
            if (a->value.number)
                return E_NOT_SUPPORTED;
            break;
        case LA_SERIALIZATION:
            launch->dependent = a->value.number != 0;
            break;
        case LA_IGNORE:
        case LA_CLUSTER_POLICY:
        case LA_PRIORITY:
            break;
        default:
            return E_NOT_SUPPORTED;
        }
    }
    return E_OK;
}

PTXSIM_EXPORT int cuLaunchKernelEx(const struct launch_config *config, CUfunction function, void **params,
                                   void **extra) {
    struct launch launch = {.dynamic_bytes = 0};
    int error = take_config(&launch, config);
    return error ? error : run(function, &launch, config->stream, params, extra);
}

/* However few multiprocessors are played, a cluster of a size that the device has finds room: one runs at a time. */
PTXSIM_EXPORT int cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const struct launch_config *config) {
    struct launch launch = {.dynamic_bytes = 0};
    CUcontext context;
    int error = function_enter(function, &context);
    if (!error)
        error = clusters ? take_config(&launch, config) : E_INVALID_VALUE;
    if (!error)
        error = set_kernel(&launch, function->kernel);
    if (error)
        return leave(error);
    const uint32_t *b = launch.block, *c = launch.cluster;
    uint32_t blocks = blocks_at_a_time(launch.kernel, b[0] * b[1] * b[2], launch.dynamic_bytes);
    uint32_t n = blocks * ptxsim_device.sms / (c[0] * c[1] * c[2]);
    *clusters = (int)(blocks && !n ? 1 : n);
    return leave(E_OK);
}

PTXSIM_EXPORT int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && !address)
        error = E_INVALID_VALUE;
    uint64_t at = 0;
    if (!error)
        error = ptxsim_alloc(bytes, context, &at);
    if (!error)
        *address = at;
    return leave(error);
}

PTXSIM_EXPORT int cuMemFree_v2(CUdeviceptr address) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && address)
        error = ptxsim_free(address);
    return leave(error);
}

PTXSIM_EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && (!left || !total))
        error = E_INVALID_VALUE;
    if (!error) {
        *total = ptxsim_device.memory;
        *left = ptxsim_device.memory - ptxsim_memory_used();
    }
    return leave(error);
}

static int copy(CUdeviceptr to, CUdeviceptr from, void *host_to, const void *host_from, size_t bytes, CUstream stream) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    uint8_t *data_to = host_to, *data_from = NULL, *shadow_to = NULL, *shadow_from = NULL;
    if (!error && !ptxsim_stream_ok(stream))
        error = E_INVALID_HANDLE;
    if (error || !bytes)
        return leave(error);
    if (from)
        error = ptxsim_host_range(from, bytes, &data_from, &shadow_from);
    if (!error && to)
        error = ptxsim_host_range(to, bytes, &data_to, &shadow_to);
    if (!error && (!data_to || (!data_from && !host_from)))
        error = E_INVALID_VALUE;
    if (error)
        return leave(error);
    memmove(data_to, data_from ? data_from : host_from, bytes);
    /* A copied byte is as initialised as the one that it was copied from. */
    for (size_t i = 0; shadow_to && i < bytes; i++) {
        uint8_t init = shadow_from ? shadow_from[i] & SH_INIT : SH_INIT;
        shadow_to[i] = (uint8_t)((shadow_to[i] & ~SH_INIT) | init);
    }
    return leave(E_OK);
}

PTXSIM_EXPORT int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return to ? copy(to, 0, NULL, from, bytes, NULL) : E_INVALID_VALUE;
}
PTXSIM_EXPORT int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return from ? copy(0, from, to, NULL, bytes, NULL) : E_INVALID_VALUE;
}
PTXSIM_EXPORT int cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return to && from ? copy(to, from, NULL, NULL, bytes, NULL) : E_INVALID_VALUE;
}
PTXSIM_EXPORT int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return to ? copy(to, 0, NULL, from, bytes, stream) : E_INVALID_VALUE;
}
PTXSIM_EXPORT int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return from ? copy(0, from, to, NULL, bytes, stream) : E_INVALID_VALUE;
}
PTXSIM_EXPORT int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return to && from ? copy(to, from, NULL, NULL, bytes, stream) : E_INVALID_VALUE;
}

static int fill(CUdeviceptr to, uint32_t value, size_t count, size_t each, CUstream stream) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    uint8_t *data, *shadow;
    if (!error && !ptxsim_stream_ok(stream))
        error = E_INVALID_HANDLE;
    if (!error && (to % each || count > SIZE_MAX / each))
        error = E_INVALID_VALUE;
    if (!error && count)
        error = ptxsim_host_range(to, count * each, &data, &shadow);
    if (error || !count)
        return leave(error);
    for (size_t i = 0; i < count; i++)
        memcpy(data + i * each, &value, each);
    for (size_t i = 0; i < count * each; i++)
        shadow[i] |= SH_INIT;
    return leave(E_OK);
}

PTXSIM_EXPORT int cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill(to, value, count, 1, NULL);
}
PTXSIM_EXPORT int cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill(to, value, count, 4, NULL);
}
PTXSIM_EXPORT int cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(to, value, count, 1, stream);
}
PTXSIM_EXPORT int cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(to, value, count, 4, stream);
}

__attribute__((destructor)) static void at_end(void) {
    for (CUmodule m = modules; m; m = m->next)
        ptxsim_note_executed(m->module);
    ptxsim_write_executed();
    if (ptxsim_device.speed)
        fprintf(stderr, "ptxsim: %.1f million thread instructions in %.2f s of kernels: %.0f million a second\n",
                (double)ptxsim_total_instructions * 1e-6, ptxsim_total_seconds,
                (double)ptxsim_total_instructions * 1e-6 / (ptxsim_total_seconds > 0 ? ptxsim_total_seconds : 1));
}
