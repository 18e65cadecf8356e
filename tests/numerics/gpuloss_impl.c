/* The library, compiled once for the test program. Also accesses to device memory for the tests, by the driver that it
 * found. */
#define GPULOSS_IMPLEMENTATION
#include "../../gpuloss.h"

#include "device_bytes.h"
#include "harness.h"

enum { THREADS = 256 };

/* Each thread has a byte. */
#define KERNEL_OF_BYTES(name, body)                                                                                    \
    ".visible .entry " name "(.param .u64 to, .param .u64 from, .param .u64 bytes, .param .u64 differing)\n"           \
    "{\n"                                                                                                              \
    ".reg .pred %p<3>;\n.reg .b16 %rs<3>;\n.reg .b32 %r<4>;\n.reg .b64 %rd<9>;\n"                                      \
    "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n"                                            \
    "mul.wide.u32 %rd1, %r1, %r2;\ncvt.u64.u32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\n"                                \
    "ld.param.u64 %rd4, [bytes];\nsetp.ge.u64 %p1, %rd3, %rd4;\n@%p1 bra END;\n"                                       \
    "ld.param.u64 %rd5, [to];\nadd.s64 %rd6, %rd5, %rd3;\n"                                                            \
    "ld.param.u64 %rd7, [from];\nadd.s64 %rd8, %rd7, %rd3;\n"                                                          \
    "ld.global.u8 %rs1, [%rd8];\n" body "END:\nret;\n}\n"
static const char text[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n" KERNEL_OF_BYTES("copy_bytes", "st.global.u8 [%rd6], %rs1;\n")
        KERNEL_OF_BYTES("compare_bytes", "ld.global.u8 %rs2, [%rd6];\nsetp.eq.s16 %p2, %rs1, %rs2;\n@%p2 bra END;\n"
                                         "ld.param.u64 %rd1, [differing];\natom.add.u64 %rd2, [%rd1], 1;\n");

static void require_driver(gpulossi_result code, const char *action) {
    require_ok(code == 0 ? GPULOSS_OK : gpulossi_driver_fail(&harness_context->driver, "device_bytes", action, code));
}

void device_bytes_open(device_bytes *d) {
    const gpulossi_driver *driver = &harness_context->driver;
    const unsigned long long none = 0;
    gpulossi_scope scope;
    require_ok(gpulossi_enter(harness_context, "device_bytes", &scope));
    require_driver(driver->module_load(&d->module, text, 0, NULL, NULL), "loading");
    require_driver(driver->module_function(&d->copy, d->module, "copy_bytes"), "finding copy_bytes");
    require_driver(driver->module_function(&d->compare, d->module, "compare_bytes"), "finding compare_bytes");
    gpulossi_leave(harness_context, &scope);
    require_ok(gpuloss_alloc(harness_context, &d->differing, sizeof none));
    require_ok(gpuloss_upload(harness_context, d->differing, &none, sizeof none, NULL));
}

void device_bytes_close(device_bytes *d) {
    gpulossi_scope scope;
    require_ok(gpuloss_free(harness_context, d->differing));
    require_ok(gpulossi_enter(harness_context, "device_bytes", &scope));
    require_driver(harness_context->driver.module_unload(d->module), "unloading");
    gpulossi_leave(harness_context, &scope);
}

static void launch(const device_bytes *d, void *kernel, const void *one, const void *other, size_t bytes) {
    uint64_t at[] = {(uint64_t)(uintptr_t)one, (uint64_t)(uintptr_t)other, bytes, (uint64_t)(uintptr_t)d->differing};
    void *parameters[] = {&at[0], &at[1], &at[2], &at[3]};
    gpulossi_scope scope;
    require_ok(gpulossi_enter(harness_context, "device_bytes", &scope));
    require_driver(harness_context->driver.launch(kernel, (unsigned)((bytes + THREADS - 1) / THREADS), 1, 1, THREADS, 1,
                                                  1, 0, NULL, parameters, NULL),
                   "launching");
    gpulossi_leave(harness_context, &scope);
}

void device_bytes_copy(const device_bytes *d, void *to, const void *from, size_t bytes) {
    launch(d, d->copy, to, from, bytes);
}

void device_bytes_compare(const device_bytes *d, const void *one, const void *other, size_t bytes) {
    launch(d, d->compare, one, other, bytes);
}

bool device_bytes_differ(const device_bytes *d) {
    unsigned long long differing;
    require_ok(gpuloss_download(harness_context, &differing, d->differing, sizeof differing, NULL));
    return differing != 0;
}
