/* Bytes of device memory, copied and compared where they lie: calls that are repeated some thousand times would otherwise
 * take most of their time to bring them to the host. */
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

/* On the default stream, one after the other. */
void device_bytes_copy(const device_bytes *d, void *to, const void *from, size_t bytes);
void device_bytes_compare(const device_bytes *d, const void *one, const void *other, size_t bytes);
/* Of all that were compared. Waits for that. */
bool device_bytes_differ(const device_bytes *d);

#endif
