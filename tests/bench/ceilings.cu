/* The references of the benchmark, and its data: streams over memory, an empty launch, and random numbers. */
#include <stdint.h>

enum { kStep = 4 };

/* Reads n vectors of 16 bytes. */
extern "C" __global__ void __launch_bounds__(512) read_vectors(const uint4 *a, uint4 *sink, int64_t n) {
    int64_t stride = blockDim.x;
    uint4 s = make_uint4(0, 0, 0, 0);
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x * kStep + threadIdx.x; at < n;
         at += (int64_t)gridDim.x * kStep * stride) {
        uint4 x[kStep];
#pragma unroll
        for (int k = 0; k < kStep; k++)
            x[k] = at + k * stride < n ? __ldcs(a + at + k * stride) : s;
#pragma unroll
        for (int k = 0; k < kStep; k++)
            s.x ^= x[k].x, s.y ^= x[k].y, s.z ^= x[k].z, s.w ^= x[k].w;
    }
    /* Practically never true, and the compiler can't know. */
    if (s.x == 0x9e3779b9u && s.y == 0x7f4a7c15u)
        *sink = s;
}

/* Reads n vectors and writes as many. */
extern "C" __global__ void __launch_bounds__(512) copy_vectors(const uint4 *a, uint4 *out, int64_t n) {
    int64_t stride = blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x * kStep + threadIdx.x; at < n;
         at += (int64_t)gridDim.x * kStep * stride) {
        uint4 x[kStep];
#pragma unroll
        for (int k = 0; k < kStep; k++)
            if (at + k * stride < n)
                x[k] = __ldcs(a + at + k * stride);
#pragma unroll
        for (int k = 0; k < kStep; k++)
            if (at + k * stride < n)
                __stcs(out + at + k * stride, x[k]);
    }
}

/* Writes n vectors. */
extern "C" __global__ void __launch_bounds__(512) write_vectors(uint4 *out, int64_t n) {
    int64_t stride = blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x * kStep + threadIdx.x; at < n;
         at += (int64_t)gridDim.x * kStep * stride) {
#pragma unroll
        for (int k = 0; k < kStep; k++)
            if (at + k * stride < n)
                __stcs(out + at + k * stride, make_uint4((unsigned)at, k, 0, 0));
    }
}

/* Reads n vectors from each of two arrays and writes n. */
extern "C" __global__ void __launch_bounds__(512) blend_vectors(const uint4 *a, const uint4 *b, uint4 *out, int64_t n) {
    int64_t stride = blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x * kStep + threadIdx.x; at < n;
         at += (int64_t)gridDim.x * kStep * stride) {
        uint4 x[kStep], y[kStep];
#pragma unroll
        for (int k = 0; k < kStep; k++)
            if (at + k * stride < n)
                x[k] = __ldcs(a + at + k * stride), y[k] = __ldcs(b + at + k * stride);
#pragma unroll
        for (int k = 0; k < kStep; k++)
            if (at + k * stride < n)
                __stcs(out + at + k * stride,
                       make_uint4(x[k].x ^ y[k].x, x[k].y ^ y[k].y, x[k].z ^ y[k].z, x[k].w ^ y[k].w));
    }
}

/* A uniform number in (0, 1) from an element's number and a seed. */
static __device__ float uniform(uint64_t i, uint64_t seed) {
    uint64_t z = (i + seed) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return ((float)(uint32_t)(z >> 41) + 0.5f) * 0x1p-23f;
}

/* A normal number from an element's number and a seed (Box and Muller). */
static __device__ float normal(uint64_t i, uint64_t seed) {
    return sqrtf(-2.0f * __logf(uniform(i, seed))) * __cosf(6.2831853f * uniform(i, seed + (1ull << 62)));
}

/* Writes x in 8, 4 or 2 bytes: bf16 when `bfloat`, else f16. */
static __device__ void store(void *out, int64_t i, float x, int bytes, int bfloat) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    if (bytes == 8)
        ((double *)out)[i] = x;
    else if (bytes == 4)
        ((float *)out)[i] = x;
    else
        ((uint16_t *)out)[i] = bfloat ? (uint16_t)(__float_as_uint(x) >> 16) : half;
}

/* n random numbers: u * scale + shift, where u is uniform in (0, 1), or log(u) with `logarithm`. */
extern "C" __global__ void fill_random(void *out, int64_t n, int bytes, int bfloat, int logarithm, float scale,
                                       float shift, uint64_t seed) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        float u = uniform((uint64_t)i, seed);
        store(out, i, fmaf(logarithm ? logf(u) : u, scale, shift), bytes, bfloat);
    }
}

/* n normal numbers of the given standard deviation. */
extern "C" __global__ void fill_normal(void *out, int64_t n, int bytes, int bfloat, float deviation, uint64_t seed) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        store(out, i, deviation * normal((uint64_t)i, seed), bytes, bfloat);
}

/* Reads a number that store has written. */
static __device__ float load(const void *in, int64_t i, int bytes, int bfloat) {
    if (bytes == 8)
        return (float)((const double *)in)[i];
    if (bytes == 4)
        return ((const float *)in)[i];
    uint16_t half = ((const uint16_t *)in)[i];
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return bfloat ? __uint_as_float((uint32_t)half << 16) : x;
}

/* The nearest bf16 of a finite number, of two the even one. */
static __device__ float nearest_bfloat(float x) {
    uint32_t bits = __float_as_uint(x);
    return __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
}

/* Fills `out` with n numbers: the numbers of `centre`, of the same type, plus normal numbers of the given standard
 * deviation. */
extern "C" __global__ void fill_close(void *out, const void *centre, int64_t n, int bytes, int bfloat, float deviation,
                                      uint64_t seed) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        float x = fmaf(deviation, normal((uint64_t)i, seed), load(centre, i, bytes, bfloat));
        store(out, i, bytes == 2 && bfloat ? nearest_bfloat(x) : x, bytes, bfloat);
    }
}

/* Rows of probabilities, the softmax of normal numbers, a warp each. Row r is column r % inner of image r / inner. */
extern "C" __global__ void fill_probabilities(void *out, int64_t rows, int64_t classes, int64_t inner, int64_t stride,
                                              int bytes, int bfloat, float deviation, uint64_t seed) {
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
#pragma unroll 1
    for (int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
        float sum = 0;
#pragma unroll 1
        for (int64_t c = threadIdx.x % 32; c < classes; c += 32)
            sum += __expf(deviation * normal((uint64_t)(row * classes + c), seed));
#pragma unroll 1
        for (int lanes = 16; lanes > 0; lanes /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, lanes);
#pragma unroll 1
        for (int64_t c = threadIdx.x % 32; c < classes; c += 32)
            store(out, row / inner * stride + row % inner + c * inner,
                  __expf(deviation * normal((uint64_t)(row * classes + c), seed)) / sum, bytes, bfloat);
    }
}

/* Fills k entries of each row: a random class of each k-th part of it, and probabilities like exp of normal numbers.
 * They add up to `all`. */
extern "C" __global__ void fill_entries(int64_t *indices, float *values, int64_t rows, int64_t classes, int64_t k,
                                        float deviation, float all, uint64_t seed) {
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), part = classes / k;
#pragma unroll 1
    for (int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
        float sum = 0;
#pragma unroll 1
        for (int64_t j = threadIdx.x % 32; j < k; j += 32)
            sum += __expf(deviation * normal((uint64_t)(row * k + j), seed));
#pragma unroll 1
        for (int lanes = 16; lanes > 0; lanes /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, lanes);
#pragma unroll 1
        for (int64_t j = threadIdx.x % 32; j < k; j += 32) {
            indices[row * k + j] =
                j * part + (int64_t)(uniform((uint64_t)(row * k + j), seed + 1) * (float)part) % part;
            values[row * k + j] = all * __expf(deviation * normal((uint64_t)(row * k + j), seed)) / sum;
        }
    }
}

/* n random targets in [0, classes). */
extern "C" __global__ void fill_targets(int64_t *out, int64_t n, int64_t classes, uint64_t seed) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        out[i] = (int64_t)(uniform((uint64_t)i, seed) * (float)classes) % classes;
}

/* Parameters of as many bytes as a loss has. */
struct block {
    uint64_t words[42];
};

/* Measures the cost of a launch. The kernel does nothing when it is given zeros, but the compiler cannot know this. */
extern "C" __global__ void nothing(block b) {
    if (b.words[0] != 0)
        *(uint64_t *)b.words[0] = b.words[41];
}
