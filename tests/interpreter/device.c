/* The devices that can be simulated, with the limits of real ones. The environment selects one:
 *
 *   PTXSIM_DEVICE          sm_50, sm_60, sm_70, sm_80, sm_90 (the default) or sm_120
 *   PTXSIM_DEVICES         how many of it, 1 to 8, with contexts of their own over one memory; 1 where not given
 *   PTXSIM_SMS             multiprocessors, 4 where not given
 *   PTXSIM_MEMORY          bytes of device memory
 *   PTXSIM_DRIVER_VERSION  as 12040 for 12.4
 *   PTXSIM_STEPS           instructions of the warps of a block or cluster, before it counts as endless
 *   PTXSIM_SEED            shuffles blocks, warps and arrivals of bulk copies, otherwise for each number but 0 and launch
 *   PTXSIM_APPROX          lg2.approx and ex2.approx are off by up to their documented errors, otherwise for each number but 0
 *   PTXSIM_COVERAGE        file that gets a line for each instruction of each module: whether it was executed
 *   PTXSIM_FAULT           folder: NAME.fault in it is planted in a module whose kernel is NAME: the number of a line, that
 *                          line, and what takes its place, over and over
 *   PTXSIM_SPEED           1: prints the instructions a second at the end
 */
#include "ptxsim.h"

#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static const struct device models[] = {
    {"ptxsim sm_50", 50,  1024, 2048, 32, 49152, 49152, 65536, 0, 1, 1, 2097152, 1189000,
     3505000,        128, 0,    0,    0,  0,     0,     0,     0, 0, 0, 0},
    {"ptxsim sm_60", 60,   1024, 2048, 32, 49152, 49152, 65536, 0, 1, 1, 4194304, 1328500,
     715000,         4096, 0,    0,    0,  0,     0,     0,     0, 0, 0, 0},
    {"ptxsim sm_70", 70,   1024, 2048, 32, 49152, 98304, 98304, 0, 1, 1, 6291456, 1530000,
     877000,         4096, 0,    0,    0,  0,     0,     0,     0, 0, 0, 0},
    {"ptxsim sm_80", 80,   1024, 2048, 32, 49152, 166912, 167936, 1024, 1, 1, 41943040, 1410000,
     1215000,        5120, 0,    0,    0,  0,     0,      0,      0,    0, 0, 0},
    {"ptxsim sm_90", 90,   1024, 2048, 32, 49152, 232448, 233472, 1024, 8, 16, 52428800, 1980000,
     2619000,        5120, 0,    0,    0,  0,     0,      0,      0,    0, 0,  0},
    {"ptxsim sm_120", 120, 1024, 1536, 24, 49152, 101376, 102400, 1024, 8, 8, 100663296, 2407000,
     14001000,        512, 0,    0,    0,  0,     0,      0,      0,    0, 0, 0},
};

struct device ptxsim_device;

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* Returns false where the model does not exist, or not in this number: the machine then has no device. */
bool ptxsim_device_init(void) {
#if defined(__GLIBC__)
    /* Every launch needs about the same memory. The allocator keeps it, instead of requesting it from the system each
     * time. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
    const char *name = getenv("PTXSIM_DEVICE");
    const struct device *model = NULL;
    if (!name || !*name)
        name = "sm_90";
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].name + strlen("ptxsim "), name) == 0)
            model = &models[i];
    ptxsim_device = model ? *model : models[0];
    ptxsim_device.sms = (uint32_t)setting("PTXSIM_SMS", 4);
    ptxsim_device.devices = (uint32_t)setting("PTXSIM_DEVICES", 1);
    ptxsim_device.memory = setting("PTXSIM_MEMORY", 1ull << 30);
    ptxsim_device.steps = setting("PTXSIM_STEPS", 200000000);
    ptxsim_device.seed = setting("PTXSIM_SEED", 0);
    ptxsim_device.approx = setting("PTXSIM_APPROX", 0);
    ptxsim_device.driver_version = (int)setting("PTXSIM_DRIVER_VERSION", 13000);
    ptxsim_device.coverage = getenv("PTXSIM_COVERAGE");
    ptxsim_device.fault = getenv("PTXSIM_FAULT");
    ptxsim_device.speed = setting("PTXSIM_SPEED", 0) != 0;
    if (ptxsim_device.sms == 0)
        ptxsim_device.sms = 1;
    return model != NULL && ptxsim_device.devices >= 1 && ptxsim_device.devices <= PTXSIM_MOST_DEVICES;
}

/* The newest PTX, times ten, that the played driver's version reads. */
uint32_t ptxsim_driver_isa(void) {
    static const struct {
        int driver;
        uint32_t isa;
    } known[] = {{9000, 60},  {9010, 61},  {9020, 62},  {10000, 63}, {10010, 64}, {10020, 65}, {11000, 70},
                 {11010, 71}, {11020, 72}, {11030, 73}, {11040, 74}, {11050, 75}, {11060, 76}, {11070, 77},
                 {11080, 78}, {12000, 80}, {12010, 81}, {12020, 82}, {12030, 83}, {12040, 84}, {12050, 85},
                 {12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}, {13010, 91}};
    uint32_t isa = 50;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (ptxsim_device.driver_version >= known[i].driver)
            isa = known[i].isa;
    return isa;
}

/* The value of an attribute, by the numbers of CUdevice_attribute. */
int ptxsim_device_attribute(int attribute, int *value) {
    const struct device *d = &ptxsim_device;
    const struct {
        int attribute;
        uint32_t value;
    } table[] = {
        {1, d->threads_per_block},
        {2, 1024},
        {3, 1024},
        {4, 64},
        {5, 2147483647},
        {6, 65535},
        {7, 65535},
        {8, d->shared_per_block},
        {9, 65536},
        {10, PTXSIM_WARP},
        {11, 2147483647},
        {12, 65536},
        {13, d->clock_khz},
        {14, 512},
        {15, 1},
        {16, d->sms},
        {17, 0},
        {18, 0},
        {19, 0},
        {20, 0},
        {31, 1},
        {32, 0},
        {33, 1},
        {34, 0},
        {35, 0},
        {36, d->memory_khz},
        {37, d->bus_bits},
        {38, d->l2_bytes},
        {39, d->threads_per_sm},
        {40, 1},
        {41, 1},
        {50, 0},
        {75, d->sm / 10},
        {76, d->sm % 10},
        {78, 0},
        {79, 1},
        {80, 1},
        {81, d->shared_per_sm},
        {82, 65536},
        {83, 0},
        {84, 0},
        {95, 0},
        {97, d->shared_optin},
        {106, d->blocks_per_sm},
        {111, d->shared_reserved},
        {115, 0},
        {120, d->cluster_max > 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].attribute == attribute) {
            *value = (int)table[i].value;
            return E_OK;
        }
    return E_INVALID_VALUE;
}
