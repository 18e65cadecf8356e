#!/bin/bash
# first_loss.sh [ROWS CLASSES]: the time to the first loss, each in a process of its own. Cold, the driver has to
# compile. Warm, it finds the kernels of an earlier process in its cache.
set -e
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
cat <<'END'
time to the first loss in milliseconds, data in place: init: finding the driver, and cuInit; context: the GPU's primary context;
create: gpuloss_create; load: unpacking and loading the kernels, of which the driver's: its own part; call: a later call until
its result is on the host; all: init, create, load and call. cold: nothing is in the driver's cache; warm: the kernels are
END
printf '%-5s %s\n' cache "$("$BUILD/first_loss")"
for what in 'cross_entropy f32' 'gradient bf16' 'options bf16' 'kl_div f32'; do
    # Two words on purpose, here and below.
    # shellcheck disable=SC2086
    line=$(CUDA_CACHE_DISABLE=1 "$BUILD/first_loss" $what "$@")
    printf '%-5s %s\n' cold "$line"
    for cache_is in empty full; do
        # shellcheck disable=SC2086
        line=$(CUDA_CACHE_DISABLE=0 CUDA_CACHE_PATH=$cache "$BUILD/first_loss" $what "$@")
        [ $cache_is = empty ] || printf '%-5s %s\n' warm "$line"
    done
done
