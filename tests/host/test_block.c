/* test_block FOLDER: the kernels embedded in this program, the texts in FOLDER and FOLDER/MANIFEST are the same ones, and
 * the usual variants of these texts cost no more than templates would. */
#define _POSIX_C_SOURCE 200809L
#define GPULOSS_STATIC
#include "../../gpuloss.h"
#include "../../gen/variants.h"

#include <dirent.h>
#include <setjmp.h>

#include <cmocka.h>

static const char *folder = "ptx";

typedef struct row {
    char sha256[65], module[64];
    long registers, spills, shared, bytes, packed;
} row;

/* Of a variant: first of the specialised text, then of the template. */
enum { SPECIALISED, TEMPLATE, WAYS };
typedef struct variant_row {
    char module[64], name[64];
    long instructions[WAYS], registers[WAYS], spills[WAYS], bytes[WAYS];
    long thousandths;
} variant_row;

static const char *module_name(int module) {
    return gpulossi_image_of(module)->entry + strlen("gpuloss_");
}

/* Texts for newer GPUs are in the first version of PTX that has what they take. */
static const char *version_of(int module) {
    const int target = gpulossi_target_of(module);
    if (strstr(module_name(module), "_row_cluster_") != NULL || strstr(module_name(module), "_clustered_") != NULL ||
        strstr(module_name(module), "_pipeline_") != NULL || strstr(module_name(module), "_logits_block_rows_") != NULL)
        return "8.1";
    return target == GPULOSSI_CLUSTER_GPU ? "8.0" : target == 80 ? "7.0" : "6.0";
}

static int is_for_clusters(int module) {
    return gpulossi_target_of(module) == GPULOSSI_CLUSTER_GPU && strstr(module_name(module), "_packed_") == NULL &&
           strstr(module_name(module), "_row_basic_") == NULL;
}

static FILE *open_in_folder(const char *name, const char *suffix) {
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix);
    file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s is missing", path);
    return file;
}

/* The line of MANIFEST after which rows are those of variants. */
static int begins_variants(const char *line) {
    return strncmp(line, "# variants: ", 12) == 0;
}

/* Rows of MANIFEST of this module; the last one is left in *found. */
static int manifest_rows(const char *name, row *found) {
    FILE *file = open_in_folder("MANIFEST", "");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        row r;
        if (begins_variants(line))
            break;
        if (line[0] == '#')
            continue;
        if (sscanf(line, "%64s %63s %ld %ld %ld %ld %ld", r.sha256, r.module, &r.registers, &r.spills, &r.shared,
                   &r.bytes, &r.packed) != 7)
            fail_msg("MANIFEST has a row that is none: %s", line);
        if (name == NULL || strcmp(r.module, name) == 0) {
            *found = r;
            count++;
        }
    }
    fclose(file);
    return count;
}

/* The next row of a variant; returns 0 where there is none. */
static int next_variant(FILE *file, variant_row *r) {
    char line[512];
    double ratio;
    do {
        if (fgets(line, sizeof line, file) == NULL)
            return 0;
    } while (line[0] == '#');
    if (sscanf(line, "%63s %63s %ld %ld %lf %ld %ld %ld %ld %ld %ld", r->module, r->name, &r->instructions[SPECIALISED],
               &r->instructions[TEMPLATE], &ratio, &r->registers[SPECIALISED], &r->registers[TEMPLATE],
               &r->spills[SPECIALISED], &r->spills[TEMPLATE], &r->bytes[SPECIALISED], &r->bytes[TEMPLATE]) != 11)
        fail_msg("MANIFEST has a row of a variant that is none: %s", line);
    r->thousandths = (long)(1000 * ratio + 0.5);
    return 1;
}

static FILE *open_variants(void) {
    FILE *file = open_in_folder("MANIFEST", "");
    char line[512];
    while (fgets(line, sizeof line, file) != NULL)
        if (begins_variants(line))
            return file;
    fail_msg("MANIFEST has no variants");
    return file;
}

/* The variant of a row of the table. USUAL_VARIANTS: none. */
static int variant_of(const variant_row *r) {
    int v;
    for (v = 0; v < USUAL_VARIANTS; v++)
        if (strcmp(r->module, usual_variants[v].module) == 0 && strcmp(r->name, usual_variants[v].name) == 0)
            break;
    return v;
}

/* The text of an image with all of its lines, or NULL. */
static char *whole_text(const gpulossi_image *image) {
    const size_t room = image->bytes + GPULOSSI_PHRASE_BYTES;
    char *text = (char *)malloc(room);
    unsigned char *history = (unsigned char *)malloc(gpulossi_unpacked_bytes(image));
    gpulossi_decoders *d = (gpulossi_decoders *)malloc(sizeof *d);
    size_t out = 0, count = 0;
    int is_sound;
    gpulossi_lzma_begin(&d->lzma, history);
    is_sound =
        gpulossi_unpack(&d->lzma, image) &&
        gpulossi_shortened_begin(&d->shortened, history + d->lzma.at - image->shortened_bytes, image->shortened_bytes);
    if (is_sound) {
        do {
            count = gpulossi_expand(&d->shortened, text + out, room - out);
            out += count;
        } while (count > 0);
        is_sound = out + 1 == image->bytes && gpulossi_is_expanded(&d->shortened);
        text[out] = 0;
    }
    free(d);
    free(history);
    if (!is_sound) {
        free(text);
        return NULL;
    }
    return text;
}

static void every_module_has_its_text(void **state) {
    int module;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        const gpulossi_image *image = gpulossi_image_of(module);
        char *text = whole_text(image), *read = (char *)malloc(image->bytes + 1);
        FILE *file = open_in_folder(module_name(module), ".ptx");
        char begin[64], entry[128];
        size_t count = fread(read, 1, image->bytes + 1, file);
        fclose(file);
        assert_non_null(image->words);
        assert_non_null(text);
        if (count != image->bytes - 1 || memcmp(text, read, count) != 0)
            fail_msg("%s/%s.ptx is not what gpuloss.h holds: run `make ptx`", folder, module_name(module));
        assert_int_equal(text[count], 0);
        assert_null(memchr(text, 0, count));
        snprintf(begin, sizeof begin, ".version %s\n.target sm_%d\n", version_of(module), gpulossi_target_of(module));
        assert_int_equal(strncmp(text, begin, strlen(begin)), 0);
        assert_int_equal(strstr(text, "barrier.cluster") != NULL, is_for_clusters(module));
        snprintf(entry, sizeof entry, ".entry %s(", image->entry);
        assert_non_null(strstr(text, entry));
        /* One kernel a module. */
        assert_null(strstr(strstr(text, ".entry ") + 1, ".entry "));
        free(text);
        free(read);
    }
}

/* A kernel takes the very struct that the host fills. */
static void every_kernel_takes_its_parameters(void **state) {
    int module;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        const char *name = module_name(module);
        size_t bytes = strncmp(name, "kl_div_sparse_", 14) == 0 ? sizeof(gpulossi_kl_div_sparse)
                       : strncmp(name, "kl_div_", 7) == 0       ? sizeof(gpulossi_kl_div)
                                                                : sizeof(gpulossi_cross_entropy);
        char wanted[64], text[256];
        FILE *file = open_in_folder(name, ".ptx");
        int found = 0;
        snprintf(wanted, sizeof wanted, ".param .align 8 .b8 p[%lu]\n", (unsigned long)bytes);
        while (!found && fgets(text, sizeof text, file) != NULL)
            found = strcmp(text, wanted) == 0;
        fclose(file);
        if (!found)
            fail_msg("%s does not take %lu bytes", name, (unsigned long)bytes);
    }
}

static void every_module_has_its_row(void **state) {
    static const uint32_t no_features[GPULOSSI_FEATURE_WORDS] = {0, 0, 0, 0};
    int module;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        const gpulossi_image *image = gpulossi_image_of(module);
        row r;
        if (manifest_rows(module_name(module), &r) != 1)
            fail_msg("MANIFEST has not one row of %s", module_name(module));
        assert_int_equal(r.bytes, image->bytes - 1);
        assert_int_equal(r.packed, image->packed_bytes);
        assert_in_range(r.registers, 8, 255);
        assert_in_range(r.shared, 0, 48 * 1024);
        /* The requirement on a GPU beside the slots. */
        if (gpulossi_target_of(module) >= GPULOSSI_CLUSTER_GPU && gpulossi_shared_of(module, no_features) > 0)
            assert_in_range(r.shared, 0, GPULOSSI_SHARED_BESIDES);
        if (r.spills != 0)
            fail_msg("%s spills %ld bytes", r.module, r.spills);
    }
}

/* Bytes of the arrays that a text has in shared memory, but for the one whose size is that of a launch. */
static long shared_arrays(const char *text) {
    static const char begin[] = "\n.shared .align ";
    long bytes = 0;
    for (text = strstr(text, begin); text != NULL; text = strstr(text + 1, begin)) {
        const char *size = strpbrk(text + 1, "[\n"), *type = strstr(text, *size == '[' ? ".b8 " : ".f");
        bytes += *size == '[' ? atol(size + 1) : atol(type + 2) / 8;
    }
    return bytes;
}

/* Kernels of older GPUs are allowed no more shared memory than every GPU gives. */
static void shared_memory_of_every_gpu(void **state) {
    static gpuloss_context context;
    int module, v;
    (void)state;
    context.compute_capability = 50;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++)
        for (v = 0; v < USUAL_VARIANTS; v++) {
            const variant *of = &usual_variants[v];
            char *text;
            if (gpulossi_target_of(module) >= GPULOSSI_CLUSTER_GPU || strcmp(of->module, module_name(module)) != 0)
                continue;
            assert_int_equal(gpulossi_text_of(&context, "", gpulossi_image_of(module), of->words, &text), GPULOSS_OK);
            assert_in_range(shared_arrays(text) + gpulossi_shared_of(module, of->words), 1, 48 * 1024);
            free(text);
        }
}

static void the_sums_are_right(void **state) {
    int module;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        char command[640], sum[65] = "";
        FILE *pipe;
        row r;
        assert_int_equal(manifest_rows(module_name(module), &r), 1);
        snprintf(command, sizeof command, "sha256sum '%s/%s.ptx'", folder, module_name(module));
        pipe = popen(command, "r");
        assert_non_null(pipe);
        assert_int_equal(fscanf(pipe, "%64s", sum), 1);
        pclose(pipe);
        assert_string_equal(sum, r.sha256);
    }
}

static void there_is_nothing_more(void **state) {
    DIR *directory = opendir(folder);
    struct dirent *entry;
    row r;
    int files = 0;
    (void)state;
    assert_int_equal(manifest_rows(NULL, &r), GPULOSSI_MODULE_COUNT);
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL)
        files += entry->d_name[0] != '.';
    closedir(directory);
    assert_int_equal(files, GPULOSSI_MODULE_COUNT + 1);
}

static void every_text_of_16_bits_has_variants(void **state) {
    int module, v;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        const char *name = module_name(module);
        int variants = 0;
        for (v = 0; v < USUAL_VARIANTS; v++)
            variants += strcmp(name, usual_variants[v].module) == 0;
        if (strstr(name, "_any16") != NULL && variants < 2)
            fail_msg("%s has %d variants", name, variants);
    }
}

static void every_variant_has_its_row(void **state) {
    FILE *file = open_variants();
    int rows[USUAL_VARIANTS + 1] = {0}, v;
    variant_row r;
    (void)state;
    while (next_variant(file, &r)) {
        v = variant_of(&r);
        if (v == USUAL_VARIANTS)
            fail_msg("MANIFEST has a row of the variant %s of %s, which is none", r.name, r.module);
        rows[v]++;
    }
    fclose(file);
    for (v = 0; v < USUAL_VARIANTS; v++)
        if (rows[v] != 1)
            fail_msg("MANIFEST has not one row of the variant %s of %s", usual_variants[v].name,
                     usual_variants[v].module);
}

/* Whether a variant has wide blocks in a cluster, which wait for a register that spills. */
static int has_wide_blocks(const variant_row *r) {
    const int v = variant_of(r);
    return v < USUAL_VARIANTS && strcmp(usual_variants[v].kernel, "row_pipeline") == 0 &&
           (usual_variants[v].words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_WIDE) != 0;
}

/* No more than 1.03 of the instructions of its template, or 1.05 of a divergence, and no registers in memory where that
 * has none there, or in wide blocks. */
static void variants_cost_no_more_than_templates(void **state) {
    FILE *file = open_variants();
    variant_row r;
    (void)state;
    while (next_variant(file, &r)) {
        const long *instructions = r.instructions;
        if (r.thousandths > (strncmp(r.module, "kl_div_", 7) == 0 ? 1050 : 1030))
            fail_msg("the variant %s of %s takes %ld thousandths of its template's instructions", r.name, r.module,
                     r.thousandths);
        if (1000 * instructions[SPECIALISED] > r.thousandths * instructions[TEMPLATE])
            fail_msg("the variant %s of %s has another ratio than its instructions", r.name, r.module);
        if (r.spills[SPECIALISED] > 0 && r.spills[TEMPLATE] == 0)
            fail_msg("the variant %s of %s spills %ld bytes, its template none", r.name, r.module,
                     r.spills[SPECIALISED]);
        if (r.spills[SPECIALISED] > 0 && has_wide_blocks(&r))
            fail_msg("the variant %s of %s has wide blocks and spills %ld bytes", r.name, r.module,
                     r.spills[SPECIALISED]);
    }
    fclose(file);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_module_has_its_text), cmocka_unit_test(every_kernel_takes_its_parameters),
        cmocka_unit_test(every_module_has_its_row),  cmocka_unit_test(the_sums_are_right),
        cmocka_unit_test(there_is_nothing_more),     cmocka_unit_test(every_text_of_16_bits_has_variants),
        cmocka_unit_test(every_variant_has_its_row), cmocka_unit_test(variants_cost_no_more_than_templates),
        cmocka_unit_test(shared_memory_of_every_gpu)};
    if (count > 1)
        folder = arguments[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
