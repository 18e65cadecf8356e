#!/bin/bash
# examples.sh: faults in the examples in C++, with the CUDA toolkit and in chunks: tests/examples.sh has to reject each.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/bad/tree.sh
out=${BUILD:-build}/bad_examples
rm -rf "$out" && mkdir -p "$out" && out=$(realpath "$out") || exit 2
copy_tree
script=tests/examples.sh

raii() { planted $script 04_raii "$1" "$2" 04_raii.cpp "$3"; }
driver() { planted $script 05_cuda_driver "$1" "$2" 05_cuda_driver.c "$3"; }
runtime() { planted $script 06_cuda_runtime "$1" "$2" 06_cuda_runtime.c "$3"; }
chunks() { planted $script 07_chunks "$1" "$2" 07_chunks.c "$3"; }
cublas() { planted $script 08_cublas "$1" "$2" 08_cublas.c "$3"; }

if command -v "${CXX:-g++}" >/dev/null; then
    accept "04_raii as it is" in_tree $script 04_raii
    raii "a gradient that is too large" "exit status 1 instead of 0" 's/+= logits\[i\] \*/+= 2 * logits[i] */'
    raii "a gradient that is too small" "FAILED: the loss fell by" 's/+= logits\[i\] \*/+= 0.5 * logits[i] */'
    raii "another reduction" "FAILED: the loss fell by" 's/ d.rows = rows,/ d.reduction = GPULOSS_SUM, d.rows = rows,/'
    raii "a status that is ignored" "FAILED: 04_raii: without a driver" 's/^        throw gpu_error(status);/        return;/'
    raii "an error without its message" "it does not say: NVIDIA driver library" \
        's/runtime_error(gpuloss_last_error())/runtime_error("error")/'
    raii "another exit status of the environment" "exit status 3 instead of 2" 's/? 2 : 3/? 3 : 2/'
    raii "a context that is not freed" "FAILED: 04_raii: it frees" 's/{ gpuloss_destroy(context); }/{ (void)context; }/'
    raii "arrays that are not freed" "balance: 3 arrays and 0 streams" 's/print(gpuloss_free(gpu, memory))/(void)memory/'
    raii "a stream that is not freed" "balance: 0 arrays and 1 streams" \
        's/print(gpuloss_stream_destroy(gpu, stream))/(void)stream/'
    raii "a context that is freed before its arrays" "FAILED: 04_raii: it frees" \
        's/^\(    gpu_targets.upload.*\)/\1\n    gpuloss_destroy(gpu.get());/'
    raii "a size that is not checked" "FAILED: 04_raii: so does one of an array" 's/if (host.size() != elements)/if (false)/'
    raii "a warning" "unused variable" 's/^static bool train() {/&\n    int unused = 1;/'
else
    skip "faults in 04_raii: there is no ${CXX:-g++}"
fi

if command -v nvcc >/dev/null; then
    accept "05_cuda_driver as it is" in_tree $script 05_cuda_driver
    driver "a wrong reference" "exit status 1 instead of 0" 's/want += log1p/want += 1.0001 * log1p/'
    driver "a row too few" "exit status 1 instead of 0" 's/d.rows = ROWS;/d.rows = ROWS - 1;/'
    driver "an address as it is" "without a cast" 's/d.logits = GPULOSS_PTR(logits)/d.logits = logits/'
    driver "no current context" "CUDA: invalid device context" '/cuCtxSetCurrent/d'
    driver "an array of the host" "loss: .*(got 0x" 's/d.loss = GPULOSS_PTR(loss)/d.loss = \&mean/'
    accept "06_cuda_runtime as it is" in_tree $script 06_cuda_runtime
    runtime "a stream that is none" "incompatible pointer type" \
        's/gpuloss_release_stream(gpu, stream)/gpuloss_release_stream(gpu, \&stream)/'
    runtime "another exit status of the environment" "exit status 3 instead of 2" 's/? 2$/? 3/;s/? 2 : 3/? 3 : 2/'
    runtime "an error that is ignored" "FAILED: 06_cuda_runtime: without a driver" \
        's/if (error == cudaSuccess)/if (error != 1000)/'
    runtime "an error without its message" "it does not say: driver version is insufficient" \
        's/cudaGetErrorString(error)/"error"/'
    runtime "a function that the toolkit does not have" "cudaGraphBegin" 's/cudaGraphLaunch(/cudaGraphBegin(/'
else
    skip "faults in 05_cuda_driver and 06_cuda_runtime: there is no CUDA toolkit (no nvcc in PATH)"
fi

accept "07_chunks as it is" in_tree $script 07_chunks
chunks "chunks that replace the loss" "exit status 1 instead of 0" 's/d.flags |= GPULOSS_ADD_SUMS;/(void)0;/'
chunks "chunks that divide by their own rows" "exit status 1 instead of 0" 's/d.divisor_in = gpu_divisor;/(void)0;/'
chunks "a divisor of the first rows" "exit status 1 instead of 0" 's/^    d.rows = ROWS;/    d.rows = chunk;/'
chunks "a loss that begins with another number" "exit status 1 instead of 0" \
    's/memset(to, 0, sizeof .to);/&\n    to->loss = (float)chunk;/'
chunks "targets of other rows" "exit status 1 instead of 0" 's/(int64_t \*)gpu_targets + first;/gpu_targets;/'
chunks "a gradient of the last chunk" "exit status 1 instead of 0" \
    's/^    d->rows = rows;/&\n    memset(to->weight, 0, sizeof to->weight);/'
chunks "an array that is too small" "gpuloss_upload: copying to the GPU" 's/sizeof(float) . CHUNK . CLASSES/sizeof(float) * CLASSES/'

cuda=$(dirname "$(dirname "$(realpath -m "$(command -v nvcc || echo none/nvcc)")")")
if [ -e "$cuda/include/cublas_v2.h" ] && [ -e "$cuda/lib64/libcublas.so" ]; then
    accept "08_cublas as it is" in_tree $script 08_cublas
    cublas "chunks that replace the loss" "exit status 1 instead of 0" 's/d.flags |= GPULOSS_ADD_SUMS;/(void)0;/'
    cublas "chunks that divide by their own rows" "exit status 1 instead of 0" \
        's/d.divisor_in = GPULOSS_PTR(l->divisor);/(void)0;/'
    cublas "a loss that does not begin with 0" "exit status 1 instead of 0" '/cuMemsetD32Async/s/0, 1, stream/1 << 30, 1, stream/'
    cublas "a weight's gradient of the last chunk" "exit status 1 instead of 0" 's/first == 0 ? 0 : 1, l->grad/0, l->grad/'
    cublas "a weight's gradient that is added to the last step's" "exit status 1 instead of 0" \
        's/first == 0 ? 0 : 1, l->grad/1, l->grad/'
    cublas "hidden states of other rows" "exit status 1 instead of 0" 's/hidden = l->hidden + .*;/hidden = l->hidden;/'
    cublas "targets of other rows" "exit status 1 instead of 0" 's/GPULOSS_PTR(l->targets + .*;/GPULOSS_PTR(l->targets);/'
    cublas "a gradient of the hidden states at other rows" "exit status 1 instead of 0" \
        's/l->grad_hidden + (size_t)first [^,]*,/l->grad_hidden,/'
    cublas "a weight by columns" "cuBLAS: status 7" 's/multiply(CUBLAS_OP_T, CUBLAS_OP_N, l->classes/multiply(CUBLAS_OP_N, CUBLAS_OP_N, l->classes/'
    cublas "another logit's scale" "exit status 1 instead of 0" 's/const float one = 1;/const float one = 1.1f;/'
    cublas "a gradient of no loss" "exit status 1 instead of 0" 's/step(&l, chunk, 1);/step(\&l, chunk, 0);/'
    cublas "another exit status of a size" "exit status 1 instead of 3" 's/^        return 3;/        return 1;/'
else
    skip "faults in 08_cublas: there is no CUDA toolkit with cuBLAS"
fi

report bad_examples
