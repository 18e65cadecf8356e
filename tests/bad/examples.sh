#!/bin/bash
# examples.sh: faults in the examples in C++, with the CUDA toolkit, in chunks and on several GPUs: tests/examples.sh
# has to reject each.
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
nccl() { planted $script 09_nccl "$1" "$2" 09_nccl.c "$3"; }

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
    cublas "a size of which the rest is not read" "FAILED: 08_cublas: a size that is none" 's/argc > 4 && .end != 0/argc > 5/'
    cublas "another exit status of a size" "exit status 1 instead of 3" 's/^        return 3;/        return 1;/'
else
    skip "faults in 08_cublas: there is no CUDA toolkit with cuBLAS"
fi

if [ "$(make -sn BUILD="$out/none" examples-cuda 2>/dev/null | grep -c '/09_nccl ')" = 1 ]; then
    accept "09_nccl as it is" in_tree $script 09_nccl
    nccl "another first class" "exit status 1 instead of 0" 's/d.class_offset = s->first;/d.class_offset = 0;/'
    nccl "an exchange that is left out" "uninitialised" '/check_nccl(ncclAllGather(/,/;$/c\        (void)ranks;'
    nccl "an exchange of the last GPU only" "rank 0 makes another call than rank 1" \
        '/check_nccl(ncclGroupStart/,/check_nccl(ncclGroupEnd/s/int i = 0/int i = gpus - 1/'
    nccl "an exchange of fewer rows" "uninitialised" 's/(size_t)rows \* NUMBERS,/(size_t)rows,/'
    nccl "an exchange of another type" "uninitialised" 's/^\( *\)ncclDouble,/\1ncclFloat,/'
    nccl "an exchange in one array" "rank 1: arrays that overlap" \
        's/\(GPULOSS_PTR(s\[i\]\)\.numbers), GPULOSS_PTR(/\1.gathered), GPULOSS_PTR(/'
    nccl "an exchange of nothing computed" "uninitialised" \
        '/d.shard_rows = GPULOSS_PTR(s\[i\].numbers);/,/check(/s/check(.*;/(void)d;/'
    nccl "a communicator of another rank" "rank 0 is called twice" 's/ranks\[i\], s\[i\].stream/ranks[0], s[i].stream/'
    nccl "ranks in another order" "rank 1: a stream of device 0, not 1" \
        's/ranks\[i\], s\[i\].stream/ranks[gpus - 1 - i], s[i].stream/'
    nccl "a stream of another GPU" "rank 1: a stream of device 0, not 1" 's/ranks\[i\], s\[i\].stream/ranks[i], s[0].stream/'
    nccl "an array of another GPU" "rank 1: an array of another device" \
        's/ncclAllGather(GPULOSS_PTR(s\[i\]/ncclAllGather(GPULOSS_PTR(s[0]/'
    nccl "calls outside of a group" "rank 0 waits for the others for ever" '/check_nccl(ncclGroup/d'
    nccl "a group that does not end" "uninitialised" '/check_nccl(ncclGroupEnd/d'
    nccl "two ranks on a GPU" "device 0 has two ranks" 's/ranks, gpus, NULL/ranks, gpus, (const int[MOST_GPUS]){0}/'
    nccl "arrays of another GPU than the context's" "is memory of another GPU" \
        's/^    check_cuda(cuCtxSetCurrent(s\.cuda));/    if (gpu == 0)\n    &/'
    nccl "one shard of all" "exit status 1 instead of 0" 's/d.shards = gpus;/d.shards = 1;/'
    nccl "a gradient before the loss" "lse_in" '/d.lse_in =/d'
    nccl "classes that are left out" "exit status 1 instead of 0" 's/first, int end) {/&\n    end -= gpu > 0;/'
    nccl "a vocabulary that ends with the shard" "exit status 1 instead of 0" \
        's/d.total_classes = classes;/d.total_classes = s->first + s->classes;/'
    nccl "a sum instead of a mean" "exit status 1 instead of 0" 's/^    d.class_offset = .*/&\n    d.reduction = GPULOSS_SUM;/'
    nccl "a loss of the first GPU only" "exit status 1 instead of 0" \
        's/losses\[i\] = download(&shards\[i\], gradient);/losses[i] = download(\&shards[0], gradient);/'
    nccl "a wrong reference" "exit status 1 instead of 0" 's/sum += exp(/sum += 1.001 * exp(/'
    nccl "another exit status of one GPU" "exit status 1 instead of 2" 's/^        exit(2);/        exit(1);/'
    nccl "another exit status of a size" "exit status 1 instead of 3" '/must be a number/,/exit/s/exit(3)/exit(1)/'
else
    skip "faults in 09_nccl: there is no CUDA toolkit with NCCL"
fi

report bad_examples
