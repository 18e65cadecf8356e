#!/bin/bash
# examples.sh [EXAMPLE...]: the examples in C++, with the CUDA toolkit and in chunks, on the interpreter, without a
# driver and on the GPU. EXAMPLE: 04_raii, 05_cuda_driver, 06_cuda_runtime, 07_chunks, 08_cublas or 09_nccl, and all
# without one. Examples are skipped if the machine lacks something. With GPULOSS_REQUIRE_GPU, only the lack of a second
# GPU is skipped. Scratch in $BUILD/examples.
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/check.sh
build=$(realpath -m "${BUILD:-build}")
out=$build/examples
rm -rf "$out" && mkdir -p "$out/no_driver" || exit 2
make -s BUILD="$build" "$build/interpreter/libcuda.so.1" || exit 2
CXX=${CXX:-g++}
# A driver library that cannot be loaded, on a machine that has one too.
: >"$out/no_driver/libcuda.so.1"

compiles() { make -s BUILD="$out" "$out/$1"; }
interpreted() { env LD_LIBRARY_PATH="$out:$build/interpreter" "$@"; }
without_driver() { env LD_LIBRARY_PATH="$out:$out/no_driver" "$@"; }
# on_gpu EXAMPLE: without a GPU it ends with 2, or the linker of the system with 127, and names the missing part.
on_gpu() {
    local status=0
    [ -x "$out/$1" ] || return
    "$out/$1" >"$out/said" 2>&1 || status=$?
    if { [ $status = 2 ] || [ $status = 127 ]; } &&
        { [ -z "${GPULOSS_REQUIRE_GPU:-}" ] || grep -q 'two GPUs are needed (got 1)' "$out/said"; }; then
        skip "$1 on the GPU: $(tail -n 1 "$out/said" | cut -c1-120)"
    else
        accept "$1 on the GPU" exits 0 loss "$out/$1"
    fi
}
has_toolkit() {
    command -v nvcc >/dev/null && return 0
    skip "$1: there is no CUDA toolkit (no nvcc in PATH)"
    return 1
}

# frees STATUS WORD SED: the example, changed so, on the shared library, which counts.
frees() {
    sed "/^#define GPULOSS_IMPLEMENTATION/d;$3" examples/04_raii.cpp >"$out/counted.cpp" &&
        "$CXX" -std=c++11 -DGPULOSS_API=extern -iquote examples "$out/counted.cpp" -L"$out" -lgpuloss -o "$out/counted" &&
        exits "$1" "$2" interpreted env LD_PRELOAD="$out/balance.so" "$out/counted" &&
        grep 'balance: 0 arrays and 0 streams' "$out/said"
}
test_04_raii() {
    if ! command -v "$CXX" >/dev/null; then
        skip "04_raii: there is no $CXX"
        return
    fi
    make -s BUILD="$out" shared "$out/balance.so" || exit 2
    accept "04_raii: compiles" compiles 04_raii
    accept "04_raii: it learns" exits 0 'step 30  loss 0' interpreted "$out/04_raii"
    accept "04_raii: without a driver" \
        exits 2 'NVIDIA driver library could not be loaded' without_driver "$out/04_raii"
    accept "04_raii: it frees what it has allocated" frees 0 'step 30  loss 0' ''
    accept "04_raii: an exception of a call frees it too" \
        frees 3 'classes: .*(got 0)' 's/d.classes = classes/d.classes = 0/'
    accept "04_raii: so does one of an array" \
        frees 3 'host: needs 288 numbers (got 1)' 's/gpu_logits.upload(logits,/gpu_logits.upload(loss,/'
    on_gpu 04_raii
}

test_05_cuda_driver() {
    has_toolkit 05_cuda_driver || return
    accept "05_cuda_driver: compiles" compiles 05_cuda_driver
    accept "05_cuda_driver: it computes" exits 0 'from the exact one' interpreted "$out/05_cuda_driver"
    on_gpu 05_cuda_driver
}

test_06_cuda_runtime() {
    has_toolkit 06_cuda_runtime || return
    accept "06_cuda_runtime: compiles" compiles 06_cuda_runtime
    accept "06_cuda_runtime: without a driver" exits 2 'driver version is insufficient' without_driver "$out/06_cuda_runtime"
    on_gpu 06_cuda_runtime
}

test_07_chunks() {
    accept "07_chunks: compiles" compiles 07_chunks
    accept "07_chunks: chunks are one call" exits 0 'of 5 chunks 7.36348' interpreted "$out/07_chunks"
    accept "07_chunks: without a driver" \
        exits 2 'NVIDIA driver library could not be loaded' without_driver "$out/07_chunks"
    on_gpu 07_chunks
}

test_08_cublas() {
    local library cuda
    has_toolkit 08_cublas || return
    cuda=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")
    if [ ! -e "$cuda/include/cublas_v2.h" ] || [ ! -e "$cuda/lib64/libcublas.so" ]; then
        skip "08_cublas: the CUDA toolkit has no cuBLAS"
        return
    fi
    accept "08_cublas: compiles" compiles 08_cublas
    library=$out/$(readelf -d "$out/08_cublas" | grep -o 'libcublas\.so\.[0-9]*')
    accept "08_cublas: a cuBLAS for the interpreter" gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared \
        -isystem "$cuda/include" tests/examples/cublas.c -Wl,-soname,"$(basename "$library")" -Wl,--default-symver -o "$library"
    multiplied() { interpreted env LD_PRELOAD="$library" "$out/08_cublas" "$@"; }
    accept "08_cublas: chunks are one" exits 0 'in one chunk 6.853333' multiplied
    accept "08_cublas: chunks of a row" exits 0 '20 chunks of 1 rows' multiplied 20 16 64 0.00013
    accept "08_cublas: a single chunk" exits 0 '1 chunks of 7 rows' multiplied 7 20 1000 1
    accept "08_cublas: too little memory" exits 3 'MEGABYTES: a row of logits needs 0.00128 (got 0.001)' \
        multiplied 7 16 640 0.001
    accept "08_cublas: a number that is none" exits 3 'FEATURES: .*(got 3x)' multiplied 7 3x
    accept "08_cublas: a size that is none" exits 3 'MEGABYTES: must be a number (got 1x)' multiplied 7 16 640 1x
    on_gpu 08_cublas
}

test_09_nccl() {
    local library cuda
    has_toolkit 09_nccl || return
    if [ "$(make -sn BUILD="$out" examples-cuda | grep -c '/09_nccl ')" = 0 ]; then
        skip "09_nccl: there is no NCCL (no nccl.h)"
        return
    fi
    cuda=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")
    accept "09_nccl: compiles" compiles 09_nccl
    library=$out/libnccl.so.2
    accept "09_nccl: an NCCL for the interpreter" gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared \
        -isystem "$cuda/include" tests/examples/nccl.c -Wl,-soname,libnccl.so.2 -o "$library"
    gathered() { interpreted env PTXSIM_DEVICES="$1" LD_PRELOAD="$library" "$out/09_nccl" "${@:2}"; }
    accept "09_nccl: two GPUs are one" exits 0 'loss of 2 GPUs 10.093539, of one 10.093539, in double 10.093539' gathered 2
    accept "09_nccl: shards of several sizes" exits 0 'loss of 3 GPUs 14.846807' gathered 3 1 50257
    accept "09_nccl: a class on each GPU" exits 0 'loss of 8 GPUs' gathered 8 5 8
    accept "09_nccl: fewer classes than GPUs" exits 3 'CLASSES: must be a number from 3 .*(got 2)' gathered 3 5 2
    accept "09_nccl: a number that is none" exits 3 'ROWS: .*(got 4x)' gathered 2 4x
    accept "09_nccl: a single GPU" exits 2 'two GPUs are needed (got 1)' gathered 1
    accept "09_nccl: no GPU" exits 2 'no driver that works, or no GPU (cuInit: error 100)' gathered 9
    mkdir -p "$out/stub" && ln -sf "$cuda/lib64/stubs/libcuda.so" "$out/stub/libcuda.so.1"
    accept "09_nccl: without a driver" exits 2 'no driver that works, or no GPU (cuInit: error 34)' \
        env LD_LIBRARY_PATH="$out/stub" LD_PRELOAD="$library" "$out/09_nccl"
    on_gpu 09_nccl
}

accept "make examples-cuda without a toolkit" \
    exits 2 'there is no CUDA toolkit' make -s BUILD="$out/none" CUDA= examples-cuda
[ $# -gt 0 ] || set -- 04_raii 05_cuda_driver 06_cuda_runtime 07_chunks 08_cublas 09_nccl
for example in "$@"; do
    case $example in
    04_raii | 05_cuda_driver | 06_cuda_runtime | 07_chunks | 08_cublas | 09_nccl) "test_$example" ;;
    *)
        echo "examples.sh [04_raii] [05_cuda_driver] [06_cuda_runtime] [07_chunks] [08_cublas] [09_nccl] (got $example)"
        exit 2
        ;;
    esac
done
report examples
