/* Calls of cross-entropy that go to tiles of short rows or columns, and the threads of these. */
#include "choice.h"

/* Rows that do not all begin at vectors, and are short, go to tiles. */
static void check_short_rows(gpuloss_cross_entropy_desc base) {
    const int width = 16 / every_dtype[base.dtype - GPULOSS_F32].bytes;
    gpuloss_cross_entropy_desc d;
    base.classes = 44 * width + 1; /* it touches up to 45 vectors */
    TAKES((void)0, "row_thread");
    TAKES(d.classes = 1, "row_thread");
    TAKES(d.classes = 46 * width + 1, "row_thread");
    TAKES(d.classes = 47 * width + 1, "registers");
    TAKES(d.classes = 44 * width, "registers");
    TAKES((d.classes = 44 * width, d.logits = (const char *)d.logits + 8), "row_thread");
    TAKES(d.logits_stride = 46 * width, "registers");
    TAKES(d.logits_stride = d.classes + 2, "row_thread");
    TAKES(d.grad_logits_stride = d.classes + 2, "row_thread");
    TAKES(d.grad_logits = NULL, "row_thread");
    TAKES(d.lse_in = AT(6), "row_thread");
    TAKES(d.rows = 0, "row_thread");
    assert_int_equal(last_launch()->grid, 1);
}

static void short_rows_in_tiles(void **state) {
    (void)state;
    on_every_dtype(new_context_without_clusters(), check_short_rows);
}

/* Rows and columns with options go to tiles if one row for each thread fits, shared by at most a warp, or by 4 threads of a
 * column. */
static void check_what_fits_a_tile(gpuloss_cross_entropy_desc base) {
    const int bytes = every_dtype[base.dtype - GPULOSS_F32].bytes, width = 16 / bytes;
    const int64_t room = bytes == 8 ? 36864 : 20480;
    const int64_t most = (room / 4 / 16 - 1) / 2 * 2 + 1; /* the most vectors of a row of which 4 fit: an odd number */
    const int64_t most_of_columns = room / 32 / bytes;
    const int64_t packed = (room - 32) / 4 / bytes; /* the most classes of packed rows, which begin anywhere */
    gpuloss_cross_entropy_desc d;
    base.softcap = 2.0;
    TAKES(d.classes = most * width, "row_thread");
    assert_int_equal(last_launch()->parameters.rows.group, 32);
    TAKES((d.classes = most * width + 1, d.logits_stride = (most + 2) * width), "row_memory");
    TAKES(d.classes = packed, "row_thread");
    assert_int_equal(last_launch()->parameters.rows.group, 32);
    TAKES(d.classes = packed + 1, "row_memory");
    TAKES((d.classes = most * width, give_probabilities(&d)), "row_thread");
    TAKES((d.classes = packed + 1, give_probabilities(&d)), "row_memory");
    if (bytes == 2) { /* floats of 3 times the bytes of a row fit, too, but no more */
        const uint32_t floats = GPULOSSI_FORMAT_FLOAT_TARGETS;
        TAKES((d.classes = 840, give_probabilities(&d), d.target_dtype = GPULOSS_F32), "row_thread");
        assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & floats, floats);
        TAKES((d.classes = 848, give_probabilities(&d), d.target_dtype = GPULOSS_F32), "row_thread");
        assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & floats, 0);
    }
    base.inner = 1000;
    base.rows = 8000;
    TAKES(d.classes = most_of_columns, "row_thread");
    assert_int_equal(last_launch()->parameters.rows.group, 4);
    TAKES(d.classes = most_of_columns + 1, "row_memory");
}

/* On older GPUs only rows without options go to tiles. */
static void check_tiles_of_older_gpus(gpuloss_cross_entropy_desc base) {
    gpuloss_cross_entropy_desc d;
    base.classes = 21;
    TAKES((void)0, "row_thread");
    TAKES(d.softcap = 2.0, "row_memory");
    TAKES(give_probabilities(&d), "row_memory");
    TAKES((d.inner = 8, d.softcap = 2.0), "row_memory");
    TAKES(d.inner = 8, "row_memory");
}

static void what_fits_a_tile(void **state) {
    (void)state;
    on_every_dtype(new_context_without_clusters(), check_what_fits_a_tile);
    fake.major = 7;
    on_every_dtype(new_context(), check_what_fits_a_tile);
    fake.major = 6;
    on_every_dtype(new_context(), check_tiles_of_older_gpus);
}

/* How the arrays of a tile lie, in the format word. */
static void check_layouts_of_tiles(gpuloss_cross_entropy_desc base) {
    const int bytes = every_dtype[base.dtype - GPULOSS_F32].bytes, width = 16 / bytes;
    const int word = bytes < 4 ? 4 : bytes;
    const uint32_t packed = GPULOSSI_FORMAT_PACKED, ragged = GPULOSSI_FORMAT_RAGGED, columns = GPULOSSI_FORMAT_COLUMNS;
    const gpuloss_dtype other = base.dtype == GPULOSS_F16 ? GPULOSS_BF16 : GPULOSS_F16;
    gpuloss_cross_entropy_desc d;
#define LIES(change, format)                                                                                           \
    do {                                                                                                               \
        TAKES(change, "row_thread");                                                                                   \
        assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & (packed | ragged | columns), format);    \
    } while (0)
    base.softcap = 2.0;
    base.classes = 5 * width;
    base.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    LIES((void)0, 0);
    LIES(d.logits_stride = d.grad_logits_stride = 7 * width, 0);
    LIES(d.logits_stride = 7 * width, 0);
    LIES(d.logits_stride = 5 * width + 1, ragged);
    LIES(d.grad_logits_stride = 5 * width + 1, ragged);
    LIES((d.grad_logits_stride = 5 * width + 1, d.grad_dtype = other), 0);
    LIES(d.logits = (const char *)d.logits + bytes, ragged);
    LIES((d.logits = (const char *)d.logits + bytes, d.grad_logits = (char *)d.grad_logits + bytes), ragged);
    LIES((d.classes--, d.grad_logits_stride = 5 * width), ragged);
    LIES((d.classes--, d.logits_stride = d.grad_logits_stride = 5 * width), ragged);
    LIES((d.classes--, d.logits_stride = 5 * width, d.grad_logits = NULL), ragged);
    LIES((d.classes--, d.grad_logits = (char *)d.grad_logits + bytes), ragged);
    LIES(d.classes--, bytes == 2 ? packed | ragged : packed);
    if (bytes > 4)
        base.classes++;
    LIES(d.classes -= 2, packed);
    LIES((d.classes -= 2, d.logits = (const char *)d.logits + word, d.grad_logits = (char *)d.grad_logits + word),
         packed);
    LIES((d.classes -= 2, d.logits = (const char *)d.logits + bytes, d.grad_logits = (char *)d.grad_logits + bytes),
         bytes == 2 ? packed | ragged : packed);
    LIES((d.classes -= 2, d.logits = (const char *)d.logits + word, d.grad_logits = NULL), packed);
    LIES((d.classes -= 2, d.logits = (const char *)d.logits + word, d.grad_dtype = other), packed);
    base.classes = 5 * width;
    base.inner = 6 * width;
    base.rows = 600 * width;
    LIES((void)0, columns);
    LIES(d.classes--, columns);
    LIES((d.inner = 6 * width + 1, d.rows = 100 * d.inner), columns | ragged);
    LIES(d.logits = (const char *)d.logits + bytes, columns | ragged);
    LIES(d.grad_logits = (char *)d.grad_logits + bytes, columns | ragged);
    LIES((d.grad_logits = (char *)d.grad_logits + bytes, d.grad_dtype = other), columns);
    LIES(d.logits_stride = 5 * width * d.inner + 1, columns | ragged);
#undef LIES
}

static void layouts_of_tiles(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_layouts_of_tiles);
}

/* Threads of a row, and rows of a tile: the fewest threads, unless rows are few. */
static void rows_and_threads_of_tiles(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t rows, classes;
        unsigned group, slots;
    } cases[] = {{GPULOSS_BF16, 1 << 24, 10, 1, 896},
                 {GPULOSS_BF16, 1 << 24, 16, 1, 384},
                 {GPULOSS_BF16, 1 << 24, 64, 1, 128},
                 {GPULOSS_BF16, 1 << 24, 72, 1, 128},
                 {GPULOSS_BF16, 1 << 24, 79, 1, 128},
                 {GPULOSS_BF16, 1 << 24, 80, 2, 64},
                 {GPULOSS_BF16, 1 << 24, 81, 2, 64},
                 {GPULOSS_BF16, 1 << 24, 150, 2, 64},
                 {GPULOSS_F32, 1 << 24, 10, 1, 256},
                 {GPULOSS_F32, 1 << 24, 28, 1, 128},
                 {GPULOSS_F32, 1 << 24, 29, 1, 128},
                 {GPULOSS_F32, 1 << 24, 100, 4, 32},
                 {GPULOSS_F64, 1 << 24, 21, 1, 128},
                 {GPULOSS_F64, 1 << 24, 94, 4, 32},
                 {GPULOSS_BF16, 132 * 128, 64, 1, 128},
                 {GPULOSS_BF16, 132 * 64, 64, 2, 64},
                 {GPULOSS_BF16, 132 * 64 - 1, 64, 4, 32},
                 {GPULOSS_BF16, 1, 64, 8, 16},
                 {GPULOSS_BF16, 1, 8, 1, 128},
                 {GPULOSS_BF16, 1, 9, 2, 64},
                 {GPULOSS_F32, 132 * 6 * 256, 10, 1, 256},
                 {GPULOSS_F32, 132 * 6 * 256 - 1, 10, 1, 128}};
    size_t i;
    (void)state;
    choice_context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        const gpulossi_rows *rows;
        d.dtype = cases[i].dtype;
        d.rows = cases[i].rows;
        d.classes = cases[i].classes;
        d.softcap = 2.0;
        d.grad_logits = NULL;
        rows = &expect_kernel(&d, "row_thread", __LINE__)->parameters.rows;
        if (rows->group != cases[i].group || rows->of.tile_rows != cases[i].slots)
            fail_msg("case %d: %u threads a row and %u rows a tile", (int)i, rows->group, rows->of.tile_rows);
    }
    gpuloss_destroy(choice_context);
}

/* Other arrays in a tile leave space for fewer rows. */
static void rows_beside_other_arrays(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.dtype = GPULOSS_BF16;
    base.rows = 1 << 24;
    base.classes = 10;
    base.softcap = 2.0;
    TAKES((void)0, "row_thread");
    assert_int_equal(last_launch()->parameters.rows.of.tile_rows, 896);
    TAKES(d.grad_dtype = GPULOSS_F32, "row_thread");
    assert_int_equal(last_launch()->parameters.rows.of.tile_rows, 256);
    TAKES((give_probabilities(&d), d.grad_logits = NULL), "row_thread");
    assert_int_equal(last_launch()->parameters.rows.of.tile_rows, 384);
    gpuloss_destroy(choice_context);
}

/* The types of other arrays are in the format word, and what a call computes in the call word. */
static void types_of_tiles(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    const uint32_t *words;
    (void)state;
    choice_context = new_context();
    base.classes = 20;
    base.softcap = 2.0;
    TAKES((void)0, "row_thread");
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_SM_80);
    assert_int_equal(words[GPULOSSI_CALL_WORD], GPULOSSI_CE_LOSS | GPULOSSI_CE_GRADIENT | GPULOSSI_CE_SOFTCAP);
    TAKES(d.grad_dtype = GPULOSS_F16, "row_thread");
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_F16 << GPULOSSI_FORMAT_GRADIENT_SHIFT |
                                                      GPULOSSI_FORMAT_STAGED_GRADIENT | GPULOSSI_FORMAT_SM_80);
    TAKES((give_probabilities(&d), d.target_dtype = GPULOSS_BF16), "row_thread");
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_BF16_ARRAY << GPULOSSI_FORMAT_TARGET_SHIFT);
    TAKES(give_probabilities(&d), "row_thread");
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_TWO_ARRAYS | GPULOSSI_FORMAT_SM_80);
    TAKES((give_probabilities(&d), d.inner = 8, d.rows = 8000), "row_thread");
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_COLUMNS | GPULOSSI_FORMAT_SM_80);
    gpuloss_destroy(choice_context);
}

/* Blocks whose rows of all threads fit have smaller tiles. */
static void smaller_tiles(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.softcap = 2.0;
    base.rows = 100000;
    TAKES((d.dtype = GPULOSS_F64, d.classes = 21), "row_thread");
    assert_int_equal(last_launch()->shared_bytes, 24576);
    assert_int_equal(last_launch()->parameters.rows.of.tile_rows, 128);
    TAKES((d.dtype = GPULOSS_F64, d.classes = 24), "row_thread");
    assert_int_equal(last_launch()->shared_bytes, 36864);
    TAKES(d.classes = 28, "row_thread");
    assert_int_equal(last_launch()->shared_bytes, 14848);
    TAKES(d.classes = 30, "row_thread");
    assert_int_equal(last_launch()->shared_bytes, 20480);
    gpuloss_destroy(choice_context);
}

/* A tile has other arrays, too: probabilities that lie like the logits, and gradients of another type without gaps or
 * of whole vectors. Probabilities of columns are in it if a column needs no more threads then. */
static void check_arrays_of_tiles(gpuloss_cross_entropy_desc base) {
    const int bytes = every_dtype[base.dtype - GPULOSS_F32].bytes, width = 16 / bytes;
    const gpuloss_dtype other = base.dtype == GPULOSS_F16 ? GPULOSS_BF16 : GPULOSS_F16;
    const uint32_t two = GPULOSSI_FORMAT_TWO_ARRAYS, staged = GPULOSSI_FORMAT_STAGED_GRADIENT;
    const uint32_t floats = bytes == 2 ? two | GPULOSSI_FORMAT_FLOAT_TARGETS : 0;
    const int64_t fit = ((bytes == 8 ? 36864 : 20480) - 32) / 128 / 2 / bytes, rows = base.rows;
    gpuloss_cross_entropy_desc d;
#define HAS(change, format)                                                                                            \
    do {                                                                                                               \
        TAKES(change, "row_thread");                                                                                   \
        assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & (two | staged | floats), format);        \
    } while (0)
#define SHIFTED(array, by) array = GPULOSS_PTR((uintptr_t)(array) + (uintptr_t)(by))
    base.softcap = 2.0;
    base.classes = 40;
    base.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    HAS((void)0, 0);
    HAS(d.grad_dtype = other, staged);
    HAS((d.grad_dtype = other, d.grad_logits_stride = 48), staged);
    HAS((d.grad_dtype = other, d.grad_logits_stride = 41), 0);
    HAS((d.grad_dtype = other, SHIFTED(d.grad_logits, 2)), staged);
    HAS((d.grad_dtype = other, SHIFTED(d.grad_logits, 2), d.grad_logits_stride = 48), 0);
    HAS((d.grad_dtype = other, d.inner = 8, d.rows = 8000), 0);
    HAS((d.grad_dtype = other, d.classes = 33), staged);
    HAS((d.grad_dtype = other, d.classes = 33, d.grad_logits_stride = 40), 0);
    HAS((d.grad_dtype = other, d.classes = 47 * width), staged);
    HAS(d.grad_logits = NULL, 0);
    base.grad_logits = NULL;
    give_probabilities(&base);
    HAS((void)0, two);
    HAS((d.target_dtype = other), 0);
    HAS((d.target_probabilities_stride = 48), two);
    HAS((d.target_probabilities_stride = 41), 0);
    HAS(SHIFTED(d.target_probabilities, bytes), 0);
    HAS(d.logits_stride = 41, 0);
    HAS(d.target_dtype = GPULOSS_F32, bytes == 4 ? two : floats);
    HAS((d.target_dtype = GPULOSS_F32, d.target_probabilities_stride = 44), bytes == 4 ? two : floats);
    HAS((d.target_dtype = GPULOSS_F32, d.target_probabilities_stride = 41), 0);
    HAS((d.target_dtype = GPULOSS_F32, SHIFTED(d.target_probabilities, 4)), floats);
    HAS((d.target_dtype = GPULOSS_F32, SHIFTED(d.target_probabilities, 4), d.target_probabilities_stride = 44), 0);
    HAS((d.target_dtype = GPULOSS_F32, d.logits_stride = 41), floats);
    HAS((d.target_dtype = GPULOSS_F32, d.inner = 8, d.rows = 8000), 0);
    HAS((d.target_dtype = GPULOSS_F32, d.classes = 47 * width), bytes == 4 ? two : floats);
    HAS((d.target_dtype = GPULOSS_F32, d.classes = 24, d.rows = 1 << 24), bytes == 4 ? two : floats);
    if (bytes == 2) /* 128 rows of 3 and 7 vectors fill a tile, but floats may begin within a vector */
        assert_int_equal(last_launch()->parameters.rows.group, 2);
    base.inner = 8;
    base.rows = 9 << 20;
    HAS(d.classes = fit, two);
    assert_int_equal(last_launch()->parameters.rows.group, 1);
    HAS(d.classes = fit + 1, 0);
    HAS((d.classes = fit, SHIFTED(d.target_probabilities, bytes)), 0);
    HAS((d.classes = fit, d.target_probabilities_stride = 8 * fit + 1), width > 1 ? 0 : two);
    HAS((d.classes = fit, SHIFTED(d.target_probabilities, bytes), SHIFTED(d.logits, bytes)), two);
    HAS((d.classes = fit, d.inner = 9), two);
    base.inner = 1;
    base.rows = rows;
    if (width > 1)
        base.classes = 39;
    HAS((void)0, width > 1 ? two : 0);
    HAS((d.target_probabilities_stride = 40), 0);
    HAS(SHIFTED(d.target_probabilities, bytes), 0);
    HAS((SHIFTED(d.target_probabilities, bytes), SHIFTED(d.logits, bytes)), two);
    HAS((d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56), d.grad_dtype = other), two | staged);
#undef SHIFTED
#undef HAS
}

static void arrays_of_tiles(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_arrays_of_tiles);
}

/* A text for every GPU knows whether its GPU is 8.0 or newer, and has the target for its instructions. */
static void texts_of_newer_gpus(void **state) {
    static const struct {
        int major, minor;
        const char *version, *target;
        int is_newer;
    } cases[] = {{6, 0, ".version 6.0", ".target sm_50", 0}, {7, 0, ".version 6.0", ".target sm_70", 0},
                 {7, 5, ".version 6.0", ".target sm_70", 0}, {8, 0, ".version 7.0", ".target sm_80", 1},
                 {8, 9, ".version 7.0", ".target sm_80", 1}, {9, 0, ".version 8.0", ".target sm_90", 1}};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        fake.major = cases[i].major;
        fake.minor = cases[i].minor;
        choice_context = new_context();
        d.classes = 21;
        d.inner = 1 << 20;
        d.rows = 1 << 20;
        d.class_weights = AT(6);
        d.dtype = GPULOSS_BF16;
        expect_kernel(&d, cases[i].major < 7 ? "row_memory" : "row_thread", __LINE__);
        assert_int_equal(has_format(last_launch(), GPULOSSI_FORMAT_SM_80), cases[i].is_newer);
        if (strstr(last_launch()->module->ptx, cases[i].version) == NULL ||
            strstr(last_launch()->module->ptx, cases[i].target) == NULL)
            fail_msg("case %d: the text begins with %.40s", (int)i, last_launch()->module->ptx);
        gpuloss_destroy(choice_context);
    }
}

/* Each block has a tile, also where more blocks are resident than tiles were made for. */
static void blocks_with_tiles(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    fake.blocks_less = 32;
    choice_context = new_context();
    d.classes = 10;
    d.softcap = 2.0;
    d.grad_logits = NULL;
    d.rows = 132 * 6 * 256;
    assert_int_equal(expect_kernel(&d, "row_thread", __LINE__)->parameters.rows.of.tile_rows, 256);
    assert_int_equal(last_launch()->grid, 132 * 6);
    d.rows++;
    expect_kernel(&d, "row_thread", __LINE__);
    assert_int_equal(last_launch()->grid, 132 * 6 + 1);
    gpuloss_destroy(choice_context);
}

/* The weights of the targets are summed along with a loss. A gradient needs them before. */
static void weights_of_tiles(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.classes = 10;
    base.grad_logits = NULL;
    base.reduction = GPULOSS_MEAN;
    base.softcap = 2.0;
    TAKES((void)0, "row_thread");
    assert_int_equal(fake.launches, 1);
    assert_false(last_launch()->parameters.rows.flags & GPULOSSI_PREPARED);
    TAKES(d.class_weights = AT(6), "row_thread");
    assert_int_equal(fake.launches, 1);
    assert_int_equal(last_launch()->module->words[GPULOSSI_CALL_WORD] & GPULOSSI_CE_COUNTS, GPULOSSI_CE_COUNTS);
    TAKES((d.class_weights = AT(6), d.grad_logits = AT(4)), "row_thread");
    assert_int_equal(fake.launches, 2);
    assert_true(last_launch()->parameters.rows.flags & GPULOSSI_PREPARED);
    TAKES((d.class_weights = AT(6), d.divisor = 3.0), "row_thread");
    assert_int_equal(fake.launches, 1);
    gpuloss_destroy(choice_context);
}

int tile_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(short_rows_in_tiles),       TEST(what_fits_a_tile), TEST(layouts_of_tiles),
        TEST(rows_and_threads_of_tiles), TEST(types_of_tiles),   TEST(blocks_with_tiles),
        TEST(weights_of_tiles),          TEST(arrays_of_tiles),  TEST(rows_beside_other_arrays),
        TEST(texts_of_newer_gpus),       TEST(smaller_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
