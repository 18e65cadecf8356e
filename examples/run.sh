#!/bin/sh
# run.sh BUILD: the digits example on the GPU, or on the PTX interpreter of the tests when there is no driver.
"$1/02_digits" && exit 0
status=$?
[ $status = 2 ] || exit $status
echo "No usable NVIDIA driver: the same program now runs its kernels on the tests' PTX interpreter, on the CPU."
LD_LIBRARY_PATH="$1/interpreter" exec "$1/02_digits"
