/* Random descs, chosen by libFuzzer. A desc is refused if and only if it breaks a rule of gpuloss.h, with a message
 * that names a field. The kernels of accepted descs stay inside their arrays. An input is a text:
 *     FUNCTION GPU FIELD=BITS...      GPU: compute capability. BITS: hexadecimal. Other fields are 0. */
#include "../host/fake_driver.h"
#define GPULOSS_IMPLEMENTATION
#define GPULOSS_MALLOC(bytes) fake_malloc(bytes)
#define GPULOSS_FREE(pointer) fake_free(pointer)
#include "../../gpuloss.h"

#include "rules.h"

#include <inttypes.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most_bytes, unsigned new_seed);

/* The records of the stand-in driver are few. */
enum { TEXT_BYTES = 4096, GPUS = 4, RECORDS = FAKE_RECORDS - 64, CHANGES = 4 };

static const char *const names[FUNCTIONS] = {
    "gpuloss_cross_entropy", "gpuloss_cross_entropy_combine", "gpuloss_kl_div",        "gpuloss_kl_div_sparse",
    "gpuloss_create",        "gpuloss_cross_entropy_divisor", "gpuloss_kl_div_divisor"};
static const int majors[GPUS] = {5, 7, 8, 9};

typedef struct input {
    call call;
    int gpu; /* index of majors */
} input;

/* ---- the text ---- */

/* Returns the bytes of the text. */
static size_t write_text(const input *in, char text[TEXT_BYTES]) {
    int used = snprintf(text, TEXT_BYTES, "%s %d", names[in->call.function], 10 * majors[in->gpu]);
    size_t i;
    for (i = 0; i < in->call.count; i++) {
        const field *f = &in->call.fields[i];
        uint64_t bits = 0;
        memcpy(&bits, (const char *)&in->call.desc + f->offset, f->bytes);
        if (bits != 0)
            used += snprintf(text + used, TEXT_BYTES - (size_t)used, " %s=%" PRIx64, f->name, bits);
    }
    return (size_t)used;
}

static int read_field(call *c, const char *word) {
    const size_t length = strcspn(word, "=");
    size_t i;
    for (i = 0; i < c->count; i++)
        if (strlen(c->fields[i].name) == length && strncmp(c->fields[i].name, word, length) == 0 && word[length] != 0) {
            set(&c->desc, &c->fields[i], (int64_t)strtoull(word + length + 1, NULL, 16));
            return 1;
        }
    return 0;
}

/* Returns the word that it can't read, or NULL. */
static const char *read_text(char *text, input *in) {
    const char *separators = " \n", *word = strtok(text, separators);
    int i;
    for (i = 0; i < FUNCTIONS && (word == NULL || strcmp(word, names[i]) != 0); i++)
        ;
    if (i == FUNCTIONS)
        return word != NULL ? word : "";
    in->call = some_call((enum function)i);
    memset(&in->call.desc, 0, sizeof in->call.desc);
    word = strtok(NULL, separators);
    for (i = 0; i < GPUS && (word == NULL || atoi(word) != 10 * majors[i]); i++)
        ;
    if (i == GPUS)
        return word != NULL ? word : "";
    in->gpu = i;
    for (word = strtok(NULL, separators); word != NULL; word = strtok(NULL, separators))
        if (!read_field(&in->call, word))
            return word;
    return NULL;
}

static const char *read_input(const uint8_t *data, size_t bytes, input *in) {
    static char text[TEXT_BYTES];
    if (bytes >= sizeof text)
        return "a long text";
    memcpy(text, data, bytes);
    text[bytes] = 0;
    return read_text(text, in);
}

/* ---- mutations ---- */

static const field *some_field(const call *c) {
    return &c->fields[random_below((unsigned)c->count)];
}
static const field *field_of_kind(const call *c, enum kind kind) {
    const field *f = some_field(c);
    int tries;
    for (tries = 0; tries < 100 && f->kind != kind; tries++)
        f = some_field(c);
    return f;
}
static int64_t number_of(const call *c, const field *f) {
    int64_t number = 0;
    memcpy(&number, (const char *)&c->desc + f->offset, f->bytes);
    return number;
}

/* Next to a power of two, or where it overflows with another number. */
static int64_t some_number(const call *c) {
    const uint64_t beside = (uint64_t)random_below(5) - 2, other = (uint64_t)number_of(c, field_of_kind(c, SIZE));
    switch (random_below(3)) {
    case 0:
        return (int64_t)(((uint64_t)1 << random_below(64)) + beside);
    case 1:
        return (int64_t)(other * (1 + random_below(4)) + beside);
    default:
        return (int64_t)((uint64_t)(INT64_MAX >> random_below(8)) / (other | 1) + beside);
    }
}

/* At an array, in it, or at its end. */
static int64_t beside_an_array(const call *c) {
    arrays a;
    const array *of;
    if (broken_rule(c, sizeof(gpulossi_scratch), &a) != NULL && a.count == 0)
        return number_of(c, field_of_kind(c, POINTER));
    if (a.count == 0)
        return 0;
    of = &a.all[random_below((unsigned)a.count)];
    return (int64_t)(of->at + (random_below(2) != 0 ? (uint64_t)of->bytes : 0) +
                     (uint64_t)of->alignment * (uint64_t)((int64_t)random_below(3) - 1));
}

static void mutate(call *c) {
    const field *f = some_field(c);
    switch (random_below(7)) {
    case 0:
        set(&c->desc, f, 0);
        break;
    case 1:
        set(&c->desc, f, number_of(c, f) ^ (int64_t)((uint64_t)1 << random_below(8 * (unsigned)f->bytes)));
        break;
    case 2:
        set(&c->desc, field_of_kind(c, random_below(2) != 0 ? SIZE : COUNT), some_number(c));
        break;
    case 3:
        set(&c->desc, field_of_kind(c, POINTER), beside_an_array(c));
        break;
    case 4:
        if (c->function != CREATE)
            make_huge(&c->desc, c->fields, c->count);
        break;
    default:
        change(&c->desc, f);
    }
}

static int is_broken(const call *c) {
    arrays a;
    return broken_rule(c, sizeof(gpulossi_scratch), &a) != NULL;
}

/* Most calls keep to the rules. A refused call ends early, and nearly all calls would be refused. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most_bytes, unsigned new_seed) {
    static char text[TEXT_BYTES];
    input in;
    size_t text_bytes;
    unsigned left;
    seed = new_seed;
    if (read_input(data, bytes, &in) != NULL) {
        in.call = some_call((enum function)random_below(FUNCTIONS));
        in.gpu = (int)random_below(GPUS);
    } else if (is_broken(&in.call) && random_below(4) != 0)
        in.call = some_call(in.call.function);
    for (left = 1 + random_below(CHANGES); left > 0; left--) {
        call changed = in.call;
        mutate(&changed);
        if (!is_broken(&changed) || random_below(8) == 0)
            in.call = changed;
    }
    if (random_below(10) == 0)
        in.gpu = (int)random_below(GPUS);
    text_bytes = write_text(&in, text);
    if (text_bytes > most_bytes)
        return bytes;
    memcpy(data, text, text_bytes);
    return text_bytes;
}

/* ---- the findings ---- */

static const input *current;

static void found(const char *what, const char *more) {
    static char text[TEXT_BYTES];
    write_text(current, text);
    fprintf(stderr, "FAILED: %s: %s\n%s\n", what, more, text);
    abort();
}

/* ---- contexts, one for each GPU ---- */

static gpuloss_context *contexts[GPUS];

static void check_driver(void) {
    if (fake.violation[0] != 0)
        found("the driver was misused", fake.violation);
}

static void use_gpu(int gpu) {
    fake.major = majors[gpu];
    fake_set_current(&fake.context[2]);
}

static void close_contexts(void) {
    int i;
    for (i = 0; i < GPUS; i++) {
        use_gpu(i);
        gpuloss_destroy(contexts[i]);
        contexts[i] = NULL;
    }
    check_driver();
    if (fake_leaks() != 0)
        found("a leak", "of a context that is destroyed");
    fake_reset();
}

static gpuloss_context *context_of(int gpu) {
    const gpuloss_create_desc desc = fake_desc();
    if (fake.devices == 0)
        fake_reset();
    if (fake.modules >= RECORDS || fake.memories >= RECORDS)
        close_contexts();
    use_gpu(gpu);
    if (contexts[gpu] == NULL && gpuloss_create(&contexts[gpu], &desc) != GPULOSS_OK)
        found("no context", gpuloss_last_error());
    return contexts[gpu];
}

/* ---- statuses and messages ---- */

static int is_field(const call *c, const char *name, size_t length) {
    static const char *const of_create[] = {"version", "driver_path", "driver", "symbol", "device", "flags"};
    size_t i;
    for (i = 0; i < c->count; i++)
        if (strlen(c->fields[i].name) == length && strncmp(c->fields[i].name, name, length) == 0)
            return 1;
    for (i = 0; c->function == CREATE && i < sizeof of_create / sizeof of_create[0]; i++)
        if (strlen(of_create[i]) == length && strncmp(of_create[i], name, length) == 0)
            return 1;
    return 0;
}

/* "FUNCTION: FIELD, FIELD: TEXT (got TEXT" */
static void check_message(const call *c, const char *message) {
    const size_t length = strlen(names[c->function]);
    const char *at = message + length;
    if (strncmp(message, names[c->function], length) != 0 || strncmp(at, ": ", 2) != 0)
        found("a message without its function", message);
    if (strstr(message, " (got ") == NULL)
        found("a message without its value", message);
    do {
        at += strspn(at, ":, ");
        if (!is_field(c, at, strcspn(at, ":,")))
            found("a message without its field", message);
        at += strcspn(at, ":,");
    } while (*at == ',');
}

/* Messages of two functions on the same desc. */
static int are_alike(const char *one, const char *other) {
    return strcmp(one + strcspn(one, ":"), other + strcspn(other, ":")) == 0;
}

static long calls, accepted;

static void check_status(const call *c, const char *broken, gpuloss_status status) {
    calls++;
    accepted += status == GPULOSS_OK;
    if ((broken == NULL) != (status == GPULOSS_OK))
        found(broken != NULL ? "accepted with a broken rule" : "refused without a broken rule",
              broken != NULL ? broken : gpuloss_last_error());
    if (status == GPULOSS_OK)
        return;
    if (gpuloss_group_of(status) != GPULOSS_GROUP_USAGE && (c->function != CREATE || status != GPULOSS_ERROR_NO_DRIVER))
        found("a refusal that is no error of usage", gpuloss_status_name(status));
    check_message(c, gpuloss_last_error());
}

/* ---- calls ---- */

static gpuloss_status workspace_of(gpuloss_context *context, const call *c, size_t *bytes) {
    switch (c->function) {
    case KL_DIV:
        return gpuloss_kl_div_workspace(context, &c->desc.kl_div, bytes);
    case KL_DIV_SPARSE:
        return gpuloss_kl_div_sparse_workspace(context, &c->desc.sparse, bytes);
    default:
        return gpuloss_cross_entropy_workspace(context, &c->desc.cross_entropy, bytes);
    }
}
static gpuloss_status preload_of(gpuloss_context *context, const call *c) {
    switch (c->function) {
    case KL_DIV:
        return gpuloss_kl_div_preload(context, &c->desc.kl_div, NULL);
    case KL_DIV_SPARSE:
        return gpuloss_kl_div_sparse_preload(context, &c->desc.sparse, NULL);
    default:
        return gpuloss_cross_entropy_preload(context, &c->desc.cross_entropy, NULL);
    }
}

static void check_launches(const call *c, size_t workspace_bytes, arrays *a) {
    int i;
    if ((fake.launches == 0) != is_empty(c))
        found("launches", fake.launches == 0 ? "none" : "although there is nothing to do");
    for (i = 0; i < fake.launches; i++) {
        const char *broken = broken_bounds(c, workspace_bytes, a, &fake.launch[i]);
        if (broken != NULL)
            found(fake.launch[i].entry, broken);
    }
    for (i = 0; i < a->count && fake.launches > 0; i++)
        if (!a->all[i].is_given && a->all[i].bytes > 0)
            found("an array is given to no kernel", a->all[i].field);
}

static int is_same(const fake_launched *one, const fake_launched *other) {
    return strcmp(one->entry, other->entry) == 0 && one->module == other->module && one->grid == other->grid &&
           one->block == other->block && one->shared_bytes == other->shared_bytes && one->cluster == other->cluster &&
           one->dependent == other->dependent && one->stream == other->stream &&
           memcmp(&one->parameters, &other->parameters, sizeof one->parameters) == 0;
}

/* The same call again launches the same. */
static void repeat(gpuloss_context *context, const call *c, gpuloss_status status) {
    char message[TEXT_BYTES];
    const int launches = fake.launches;
    int i;
    snprintf(message, sizeof message, "%s", gpuloss_last_error());
    if (launch(context, c) != status || (status != GPULOSS_OK && strcmp(message, gpuloss_last_error()) != 0))
        found("another status of the same call", gpuloss_last_error());
    if (fake.launches != 2 * launches)
        found("another number of launches of the same call", names[c->function]);
    for (i = 0; i < launches; i++)
        if (!is_same(&fake.launch[i], &fake.launch[launches + i]))
            found("another launch of the same call", fake.launch[i].entry);
}

/* The workspace and the preload of a call agree with it. Both functions of cross-entropy have one function that plans, by
 * `shards`. */
static void check_planning(gpuloss_context *context, const call *c, gpuloss_status status, gpuloss_status workspace) {
    const int combines = c->function == COMBINE, is_other = combines != (c->desc.cross_entropy.shards != 0);
    const int launches = fake.launches;
    char message[TEXT_BYTES];
    if (c->function <= COMBINE && is_other)
        return;
    if (workspace != (status == GPULOSS_ERROR_WORKSPACE_TOO_SMALL ? GPULOSS_OK : status))
        found("another status of its workspace", gpuloss_status_name(workspace));
    snprintf(message, sizeof message, "%s", gpuloss_last_error());
    if (preload_of(context, c) != status || (status != GPULOSS_OK && !are_alike(message, gpuloss_last_error())))
        found("another status of its preload", gpuloss_last_error());
    if (fake.launches != launches)
        found("a launch of a preload", names[c->function]);
}

static size_t given_workspace_bytes(const call *c) {
    switch (c->function) {
    case KL_DIV:
    case KL_DIV_DIVISOR:
        return c->desc.kl_div.workspace != NULL ? c->desc.kl_div.workspace_bytes : SIZE_MAX;
    case KL_DIV_SPARSE:
        return c->desc.sparse.workspace != NULL ? c->desc.sparse.workspace_bytes : SIZE_MAX;
    default:
        return c->desc.cross_entropy.workspace != NULL ? c->desc.cross_entropy.workspace_bytes : SIZE_MAX;
    }
}

static void check_call(gpuloss_context *context, const call *c) {
    const int fills = fake.fills, is_divisor = c->function == DIVISOR || c->function == KL_DIV_DIVISOR;
    size_t needed = sizeof(gpulossi_scratch);
    const gpuloss_status workspace = is_divisor ? GPULOSS_OK : workspace_of(context, c, &needed);
    const gpuloss_status status = launch(context, c);
    arrays a;
    const char *broken = broken_rule(c, needed, &a);
    if (broken == NULL && !is_empty(c) && given_workspace_bytes(c) < needed)
        broken = "workspace_bytes";
    check_status(c, broken, status);
    if (status != GPULOSS_OK && fake.launches != 0)
        found("a call that is refused", "launches");
    if (status == GPULOSS_OK)
        check_launches(c, needed, &a);
    repeat(context, c, status);
    if (!is_divisor)
        check_planning(context, c, status, workspace);
    fake.launches = fake.prepares = 0;
    fake.fills = fills;
}

static void check_creation(const creation *given) {
    static const char *const paths[] = {NULL, "", "no such file"};
    const int leaks = fake_leaks();
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context = (gpuloss_context *)&desc;
    arrays none;
    gpuloss_status status;
    desc.cuda_context = given->given != 0 ? &fake.context[2 + (unsigned)given->given % 2] : NULL;
    desc.device = given->device;
    desc.flags = given->flags;
    /* The paths name no file, so that the test opens no driver of the machine. */
    desc.driver_path = given->path != 0 || given->symbol == 0 ? paths[1 + (given->path == 1 ? 0 : 1)] : NULL;
    if (given->symbol == 0)
        desc.symbol = NULL;
    fake_set_current(given->current != 0 ? &fake.context[2] : NULL);
    status = gpuloss_create_versioned(&context, &desc, (unsigned)given->version, (size_t)given->bytes);
    check_status(&current->call, broken_rule(&current->call, 0, &none), status);
    if ((status == GPULOSS_OK) != (context != NULL))
        found("create", "leaves a context that is none, or none");
    if (fake_current() != (given->current != 0 ? &fake.context[2] : NULL))
        found("create", "leaves another CUcontext current");
    gpuloss_destroy(context);
    if (fake_leaks() != leaks)
        found("a leak", "of create");
}

static void print_counts(void) {
    fprintf(stderr, "calls: %ld calls, %ld accepted\n", calls, accepted);
}
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return atexit(print_counts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static input in;
    const char *wrong = read_input(data, bytes, &in);
    gpuloss_context *context;
    if (bytes == 0 || (bytes == 1 && data[0] == '\n')) /* libFuzzer begins with these inputs */
        return 0;
    if (wrong != NULL) {
        fprintf(stderr, "FAILED: an input that can't be read: %s\n", wrong);
        abort();
    }
    current = &in;
    context = context_of(in.gpu);
    if (in.call.function == CREATE)
        check_creation(&in.call.desc.created);
    else
        check_call(context, &in.call);
    check_driver();
    return 0;
}
