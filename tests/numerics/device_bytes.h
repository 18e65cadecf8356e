/* Bytes of device memory, copied and compared on the device. Otherwise calls that are repeated some thousand times
 * would spend most of their time on copies to the host. */
#ifndef TESTS_NUMERICS_DEVICE_BYTES_H
#define TESTS_NUMERICS_DEVICE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct device_bytes {
    void *module, *copy, *compare;
    void *differing; /* on the device: the number of bytes that differed */
} device_bytes;

void device_bytes_open(device_bytes *d);
void device_bytes_close(device_bytes *d);

/* Copies and compares on the default stream, one after the other. */
void device_bytes_copy(const device_bytes *d, void *to, const void *from, size_t bytes);
void device_bytes_compare(const device_bytes *d, const void *one, const void *other, size_t bytes);
/* Whether any compared bytes differ. Waits for all comparisons. */
bool device_bytes_differ(const device_bytes *d);

#endif
