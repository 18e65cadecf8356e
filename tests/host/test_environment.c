/* Each way in which a machine can be unfit has a message of its own, which helps. */
#include "check.h"

static void create_fails(const gpuloss_create_desc *desc, gpuloss_status expected, const char *word) {
    gpuloss_context *context = (gpuloss_context *)(void *)&fake;
    expect_error(gpuloss_create(&context, desc), expected, "gpuloss_create", word);
    assert_null(context);
}

static void no_library(void **state) {
    gpuloss_create_desc desc;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.driver_path = "no/such/libcuda.so.1";
    create_fails(&desc, GPULOSS_ERROR_NO_DRIVER,
                 "driver_path: the NVIDIA driver library could not be loaded (got no no/such");
    assert_null(strstr(gpuloss_last_error(), "install"));
    desc.driver_path = "";
    create_fails(&desc, GPULOSS_ERROR_INVALID_ARGUMENT, "driver_path: names no file (got \"\")");
}

/* Why is what the system says. */
static void a_file_that_is_no_library(void **state) {
    gpuloss_create_desc desc;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.driver_path = "./README.md";
    create_fails(&desc, GPULOSS_ERROR_NO_DRIVER, "; the system says: ./README.md: ");
}

static void a_library_that_is_no_driver(void **state) {
    gpuloss_create_desc desc;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.driver_path = "libm.so.6";
    create_fails(&desc, GPULOSS_ERROR_NO_DRIVER, "driver_path: is not the NVIDIA driver (got neither cuInit nor");
    desc = fake_desc();
    fake.missing[0] = "cuInit";
    fake.missing[1] = "cuDriverGetVersion";
    create_fails(&desc, GPULOSS_ERROR_NO_DRIVER, "symbol: is not the NVIDIA driver");
}

/* The primary context of the requested GPU is released, whatever the failed call has written. */
static void a_context_without_a_device(void **state) {
    gpuloss_create_desc desc = fake_desc();
    (void)state;
    fake_set_current(NULL);
    desc.device = 1;
    fake.fail_symbol = "cuCtxGetDevice";
    create_fails(&desc, GPULOSS_ERROR_DRIVER, "asking for the GPU's attributes");
    assert_int_equal(fake.retains, 1);
    assert_int_equal(fake.context[1].retained, 0);
}

/* A symbol is required exactly when the library could not do its work without it. */
static void missing_symbols(void **state) {
    static const struct {
        const char *name;
        int required;
    } symbols[] = {
        {"cuGetErrorName", 1},
        {"cuGetErrorString", 1},
        {"cuInit", 1},
        {"cuDriverGetVersion", 1},
        {"cuDeviceGetCount", 1},
        {"cuDeviceGet", 1},
        {"cuDeviceGetName", 1},
        {"cuDeviceGetAttribute", 1},
        {"cuDevicePrimaryCtxRetain", 1},
        {"cuDevicePrimaryCtxRelease_v2", 0},
        {"cuDevicePrimaryCtxRelease", 0},
        {"cuCtxGetCurrent", 1},
        {"cuCtxPushCurrent_v2", 1},
        {"cuCtxPopCurrent_v2", 1},
        {"cuCtxGetDevice", 1},
        {"cuCtxSynchronize", 1},
        {"cuModuleLoadDataEx", 1},
        {"cuModuleUnload", 1},
        {"cuModuleGetFunction", 1},
        {"cuLaunchKernel", 1},
        {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 0},
        {"cuLaunchKernelEx", 0},
        {"cuFuncSetAttribute", 0},
        {"cuOccupancyMaxActiveClusters", 0},
        {"cuMemAlloc_v2", 1},
        {"cuMemFree_v2", 1},
        {"cuMemcpyHtoDAsync_v2", 1},
        {"cuMemcpyDtoHAsync_v2", 1},
        {"cuMemsetD32Async", 1},
        {"cuStreamCreate", 1},
        {"cuStreamDestroy_v2", 1},
        {"cuStreamSynchronize", 1},
        {"cuStreamIsCapturing", 0},
        {"cuPointerGetAttribute", 0},
    };
    gpuloss_create_desc desc = fake_desc();
    size_t i;
    (void)state;
    for (i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        fake_reset();
        fake.missing[0] = symbols[i].name;
        if (symbols[i].required) {
            create_fails(&desc, GPULOSS_ERROR_DRIVER_TOO_OLD, symbols[i].name);
            assert_int_equal(fake.calls, 0);
        } else {
            gpuloss_cross_entropy_desc d = some_cross_entropy();
            gpuloss_context *context = new_context();
            expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
            assert_int_equal(fake.launches, 2);
            d.classes = 100000;
            expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
            assert_int_equal(fake.launches, 4);
            gpuloss_destroy(context);
            assert_int_equal(fake_leaks(), 0);
        }
    }
}

static void old_driver(void **state) {
    gpuloss_create_desc desc = fake_desc();
    (void)state;
    fake.driver_version = 8000;
    create_fails(&desc, GPULOSS_ERROR_DRIVER_TOO_OLD, "8.0");
    assert_non_null(strstr(gpuloss_last_error(), "9.0"));
    fake.driver_version = 9000;
    gpuloss_destroy(new_context());
}

static void no_device(void **state) {
    gpuloss_create_desc desc = fake_desc();
    (void)state;
    fake_set_current(NULL);
    fake.devices = 0;
    create_fails(&desc, GPULOSS_ERROR_NO_DEVICE, "cuInit");
    fake.devices = FAKE_DEVICES;
    fake.fail_symbol = "cuDeviceGetCount";
    fake.fail_code = 100;
    create_fails(&desc, GPULOSS_ERROR_NO_DEVICE, "100");
}

static void bad_ordinal(void **state) {
    gpuloss_create_desc desc = fake_desc();
    (void)state;
    fake_set_current(NULL);
    desc.device = FAKE_DEVICES;
    create_fails(&desc, GPULOSS_ERROR_INVALID_ARGUMENT, "device: there is no such GPU (got 2 of 2)");
    desc.device = -1;
    create_fails(&desc, GPULOSS_ERROR_INVALID_ARGUMENT, "(got -1 of 2)");
    assert_int_equal(fake.retains, 0);
}

static void old_gpu(void **state) {
    gpuloss_create_desc desc = fake_desc();
    (void)state;
    fake_set_current(NULL);
    fake.major = 3;
    fake.minor = 5;
    create_fails(&desc, GPULOSS_ERROR_GPU_TOO_OLD, "3.5");
    assert_int_equal(fake.retains, fake.releases);
    fake.major = 5;
    fake.minor = 0;
    gpuloss_destroy(new_context());
}

static void init_fails(void **state) {
    gpuloss_create_desc desc = fake_desc();
    (void)state;
    fake.fail_symbol = "cuInit";
    fake.fail_code = 999;
    create_fails(&desc, GPULOSS_ERROR_NO_DRIVER, "999");
    fake.fail_code = 100;
    create_fails(&desc, GPULOSS_ERROR_NO_DEVICE, "100");
}

/* A kernel that can't be loaded: by the driver's code. The context works again when the cause has gone. */
static void load_errors(void **state) {
    static const struct {
        int code;
        gpuloss_status status;
        const char *word;
    } errors[] = {
        {221, GPULOSS_ERROR_NO_JIT, "libnvidia-ptxjitcompiler"},
        {222, GPULOSS_ERROR_DRIVER_TOO_OLD, "driver of CUDA"},
        {223, GPULOSS_ERROR_JIT_DISABLED, "CUDA_DISABLE_PTX_JIT"},
        {218, GPULOSS_ERROR_COMPILE, "218"},
        {209, GPULOSS_ERROR_GPU_TOO_OLD, "driver of CUDA"},
        {2, GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY, "2: "},
        {719, GPULOSS_ERROR_DRIVER, "CUDA_ERROR_LAUNCH_FAILED (got error 719: unspecified launch failure"},
    };
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc d = some_kl_div();
    size_t i;
    (void)state;
    fake.log = "ptxas application ptx input, line 9; fatal : a log of the compiler";
    for (i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        fake.fail_symbol = "cuModuleLoadDataEx";
        fake.fail_code = errors[i].code;
        expect_error(gpuloss_kl_div(context, &d, NULL), errors[i].status, "gpuloss_kl_div", errors[i].word);
        assert_non_null(strstr(gpuloss_last_error(), fake.log));
        assert_non_null(strstr(gpuloss_last_error(), "gpuloss_kl_div_probabilities_f32"));
        assert_int_equal(fake.launches, 0);
        assert_int_equal(fake_live_modules(), 0);
    }
    fake.log = NULL; /* a driver that says nothing */
    expect_error(gpuloss_kl_div(context, &d, NULL), GPULOSS_ERROR_DRIVER, "gpuloss_kl_div", "719");
    assert_null(strstr(gpuloss_last_error(), "log"));
    fake.fail_symbol = NULL;
    expect_ok(gpuloss_kl_div(context, &d, NULL));
    gpuloss_destroy(context);
}

/* A log as long as the driver likes is cut, not overrun. */
static void long_log(void **state) {
    static char log[5000];
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc d = some_kl_div();
    (void)state;
    memset(log, 'x', sizeof log - 1);
    fake.log = log;
    fake.fail_symbol = "cuModuleLoadDataEx";
    fake.fail_code = 218;
    expect_error(gpuloss_kl_div(context, &d, NULL), GPULOSS_ERROR_COMPILE, "gpuloss_kl_div", "xxxxxxxx");
    assert_true(strlen(gpuloss_last_error()) < 1024);
    gpuloss_destroy(context);
}

static void out_of_device_memory(void **state) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context;
    void *memory = &desc;
    (void)state;
    fake.fail_symbol = "cuMemAlloc_v2";
    fake.fail_code = 2;
    create_fails(&desc, GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY, "scratch");
    fake.fail_symbol = NULL;
    context = new_context();
    fake.fail_symbol = "cuMemAlloc_v2";
    expect_error(gpuloss_alloc(context, &memory, 1000), GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY, "gpuloss_alloc", "bytes: ");
    assert_null(memory);
    assert_non_null(strstr(gpuloss_last_error(), "got 1000"));
    fake.fail_symbol = NULL;
    gpuloss_destroy(context);
}

/* 9.0 was the last version in which a driver may have only the names without a suffix. */
static void old_release_function(void **state) {
    (void)state;
    fake_set_current(NULL);
    fake.missing[0] = "cuDevicePrimaryCtxRelease_v2";
    gpuloss_destroy(new_context());
    assert_int_equal(fake.retains, 1);
    assert_int_equal(fake.releases, 1);
}

int environment_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(no_library),
        TEST(a_file_that_is_no_library),
        TEST(a_context_without_a_device),
        TEST(a_library_that_is_no_driver),
        TEST(missing_symbols),
        TEST(old_driver),
        TEST(no_device),
        TEST(bad_ordinal),
        TEST(old_gpu),
        TEST(init_fails),
        TEST(load_errors),
        TEST(long_log),
        TEST(out_of_device_memory),
        TEST(old_release_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
