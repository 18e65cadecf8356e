/* Arrays whose element type is known at run time only, as a gpuloss_dtype. */
#ifndef GPULOSSI_ANY_DTYPE_CUH
#define GPULOSSI_ANY_DTYPE_CUH

#include "math.cuh"
#include "smem_words.cuh"

/* A number as an element of S, rounded once. A double goes to 16 bits through a float that is rounded to odd. The last
 * bit of that float is set if anything was cut off, so that it rounds like the double. */
template <class S> DEVICE typename S::Bits narrowed(float x) {
    return S::narrow((typename S::Number)x);
}
template <class S> DEVICE typename S::Bits narrowed(double x) {
    if constexpr (sizeof(typename S::Bits) == 2) {
        float cut = __double2float_rz(x);
        return S::narrow((double)cut == x ? cut : __uint_as_float(__float_as_uint(cut) | 1));
    } else {
        return S::narrow((typename S::Number)x);
    }
}

/* n neighbouring elements in registers. An access moves all of them, but at most 16 bytes. */
template <class S, int n> struct Few {
    typedef typename S::Bits Bits;
    enum {
        bytes = n * (int)sizeof(Bits),
        unit = bytes < GPULOSSI_VECTOR_BYTES ? bytes : GPULOSSI_VECTOR_BYTES,
        words = bytes / 4
    };
    uint32_t word[words];

    __device__ __forceinline__ void load(const void *at) {
#pragma unroll
        for (int i = 0; i < words; i += unit / 4) {
            const uint32_t *from = (const uint32_t *)at + i;
            if constexpr (unit == 16) {
                uint4 w = *(const uint4 *)from;
                word[i] = w.x, word[i + 1] = w.y, word[i + 2] = w.z, word[i + 3] = w.w;
            } else if constexpr (unit == 8) {
                uint2 w = *(const uint2 *)from;
                word[i] = w.x, word[i + 1] = w.y;
            } else {
                word[i] = *from;
            }
        }
    }
    __device__ __forceinline__ void store(void *at) const {
#pragma unroll
        for (int i = 0; i < words; i += unit / 4) {
            uint32_t *to = (uint32_t *)at + i;
            if constexpr (unit == 16)
                __stcs((uint4 *)to, make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]));
            else if constexpr (unit == 8)
                __stcs((uint2 *)to, make_uint2(word[i], word[i + 1]));
            else
                *to = word[i];
        }
    }

    __device__ __forceinline__ void store_shared(uint32_t at) const {
#pragma unroll
        for (int i = 0; i < words; i += unit / 4)
            Shared::store<unit / 4>(at + 4 * i, word + i);
    }

    template <class N> __device__ __forceinline__ void get(N (&x)[n]) const {
#pragma unroll
        for (int i = 0; i < n; i++) {
            if constexpr (sizeof(Bits) == 8)
                x[i] = (N)S::widen((uint64_t)word[2 * i] | (uint64_t)word[2 * i + 1] << 32);
            else if constexpr (sizeof(Bits) == 4)
                x[i] = (N)S::widen(word[i]);
            else
                x[i] = (N)S::widen((Bits)(word[i / 2] >> (16 * (i % 2))));
        }
    }
    template <class N> __device__ __forceinline__ void put(const N (&x)[n]) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            Bits bits = narrowed<S>(x[i]);
            if constexpr (sizeof(Bits) == 8) {
                word[2 * i] = (uint32_t)bits;
                word[2 * i + 1] = (uint32_t)(bits >> 32);
            } else if constexpr (sizeof(Bits) == 4) {
                word[i] = bits;
            } else {
                word[i / 2] = i % 2 ? word[i / 2] | (uint32_t)bits << 16 : bits;
            }
        }
    }
};

/* An array whose dtype is a run-time value. */
struct Typed {
    char *base;
    uint32_t dtype;

    __device__ __forceinline__ Typed(uint64_t array, uint32_t dtype) : base((char *)array), dtype(dtype) {}

    template <class S> __device__ __forceinline__ typename S::Bits *as(int64_t at) const {
        return (typename S::Bits *)base + at;
    }

    template <class N> __device__ __forceinline__ N read(int64_t at) const {
        switch (dtype) {
        case GPULOSS_F64:
            return (N)f64::widen(*as<f64>(at));
        case GPULOSS_F16:
            return (N)f16::widen(*as<f16>(at));
        case GPULOSS_BF16:
            return (N)bf16::widen(*as<bf16>(at));
        default:
            return (N)f32::widen(*as<f32>(at));
        }
    }
    template <class N> __device__ __forceinline__ void write(int64_t at, N x) const {
        switch (dtype) {
        case GPULOSS_F64:
            *as<f64>(at) = narrowed<f64>(x);
            break;
        case GPULOSS_F16:
            *as<f16>(at) = narrowed<f16>(x);
            break;
        case GPULOSS_BF16:
            *as<bf16>(at) = narrowed<bf16>(x);
            break;
        default:
            *as<f32>(at) = narrowed<f32>(x);
        }
    }

    /* Whether the n elements from `at` on are aligned for vector accesses. */
    template <int n> __device__ __forceinline__ bool fits(int64_t at) const {
        uint32_t size = dtype == GPULOSS_F64 ? 8 : dtype == GPULOSS_F32 ? 4 : 2;
        uint32_t bytes = n * size < GPULOSSI_VECTOR_BYTES ? n * size : GPULOSSI_VECTOR_BYTES;
        return (((uint32_t)(uintptr_t)base + (uint32_t)at * size) & (bytes - 1)) == 0;
    }
    template <class N, int n> __device__ __forceinline__ void read_few(int64_t at, N (&x)[n]) const {
        switch (dtype) {
        case GPULOSS_F64:
            return read_few_as<f64>(at, x);
        case GPULOSS_F16:
            return read_few_as<f16>(at, x);
        case GPULOSS_BF16:
            return read_few_as<bf16>(at, x);
        default:
            return read_few_as<f32>(at, x);
        }
    }
    template <class N, int n> __device__ __forceinline__ void write_few(int64_t at, const N (&x)[n]) const {
        switch (dtype) {
        case GPULOSS_F64:
            return write_few_as<f64>(at, x);
        case GPULOSS_F16:
            return write_few_as<f16>(at, x);
        case GPULOSS_BF16:
            return write_few_as<bf16>(at, x);
        default:
            return write_few_as<f32>(at, x);
        }
    }

  private:
    template <class S, class N, int n> __device__ __forceinline__ void read_few_as(int64_t at, N (&x)[n]) const {
        Few<S, n> few;
        few.load(as<S>(at));
        few.get(x);
    }
    template <class S, class N, int n> __device__ __forceinline__ void write_few_as(int64_t at, const N (&x)[n]) const {
        Few<S, n> few;
        few.put(x);
        few.store(as<S>(at));
    }
};

/* An array of E with the interface of Typed. */
template <class E> struct Elements {
    typename E::Bits *base;

    __device__ __forceinline__ explicit Elements(uint64_t array) : base((typename E::Bits *)array) {}

    template <class N> __device__ __forceinline__ N read(int64_t at) const { return (N)E::widen(base[at]); }
    template <class N> __device__ __forceinline__ void write(int64_t at, N x) const { base[at] = narrowed<E>(x); }
    template <int n> __device__ __forceinline__ bool fits(int64_t at) const {
        enum { all = n * (int)sizeof(typename E::Bits) };
        enum { bytes = all < GPULOSSI_VECTOR_BYTES ? (int)all : (int)GPULOSSI_VECTOR_BYTES };
        return (uint32_t)(uintptr_t)(base + at) % bytes == 0;
    }
    template <class N, int n> __device__ __forceinline__ void read_few(int64_t at, N (&x)[n]) const {
        Few<E, n> few;
        few.load(base + at);
        few.get(x);
    }
    template <class N, int n> __device__ __forceinline__ void write_few(int64_t at, const N (&x)[n]) const {
        Few<E, n> few;
        few.put(x);
        few.store(base + at);
    }
};

/* An array of E, or of the type that the format word names by a bit above `shift`. It begins at element `at`. With
 * kOwnType it is of E. */
enum { kOwnType = -1 };
template <class E, int shift> struct FormatArray {
    typedef typename E::Number N;
    enum { W = Width<E>::value };
    char *base;

    __device__ __forceinline__ FormatArray(uint64_t array, int64_t at) : base((char *)array) {
        base += at * element_bytes();
    }
    /* Whether it has any of these types. The word has no bit for E where nvcc knows E. */
    DEVICE bool is(uint32_t type) {
        const uint32_t own = sizeof(typename E::Bits) == 8   ? GPULOSSI_FORMAT_F64
                             : sizeof(typename E::Bits) == 4 ? GPULOSSI_FORMAT_F32
                                                             : 0;
        return shift != kOwnType && has_format((type & ~own) << (shift < 0 ? 0 : shift));
    }
    DEVICE bool is_other() {
        return is(GPULOSSI_FORMAT_F32 | GPULOSSI_FORMAT_F64 | GPULOSSI_FORMAT_F16 | GPULOSSI_FORMAT_BF16_ARRAY);
    }
    DEVICE int element_bytes() {
        return is(GPULOSSI_FORMAT_F32)   ? 4
               : is(GPULOSSI_FORMAT_F64) ? 8
               : is_other()              ? 2
                                         : (int)sizeof(typename E::Bits);
    }
    /* Whether the W elements from c on are aligned for vector accesses. */
    __device__ __forceinline__ bool is_aligned(int64_t c) const {
        uint32_t bytes = (uint32_t)(W * element_bytes());
        bytes = bytes < GPULOSSI_VECTOR_BYTES ? bytes : GPULOSSI_VECTOR_BYTES;
        return (((uint32_t)(uintptr_t)base + (uint32_t)c * (uint32_t)element_bytes()) & (bytes - 1)) == 0;
    }
    template <class S> __device__ __forceinline__ typename S::Bits *as(int64_t c) const {
        return (typename S::Bits *)base + c;
    }

    template <class M> __device__ __forceinline__ M read(int64_t c) const {
        if (is(GPULOSSI_FORMAT_F32))
            return (M)f32::widen(*as<f32>(c));
        if (is(GPULOSSI_FORMAT_F64))
            return (M)f64::widen(*as<f64>(c));
        if (is(GPULOSSI_FORMAT_F16))
            return (M)f16::widen(*as<f16>(c));
        if (is(GPULOSSI_FORMAT_BF16_ARRAY))
            return (M)bf16::widen(*as<bf16>(c));
        return (M)E::widen(*as<E>(c));
    }
    /* The bits of an element, which widen() converts once they are needed. */
    typedef uint64_t Loaded;
    __device__ __forceinline__ Loaded load(int64_t c) const {
        return element_bytes() == 8 ? *as<f64>(c) : element_bytes() == 4 ? *as<f32>(c) : *as<f16>(c);
    }
    DEVICE N widen(Loaded bits) {
        if (is(GPULOSSI_FORMAT_F32))
            return (N)f32::widen((uint32_t)bits);
        if (is(GPULOSSI_FORMAT_F64))
            return (N)f64::widen(bits);
        if (is(GPULOSSI_FORMAT_F16))
            return (N)f16::widen((uint16_t)bits);
        if (is(GPULOSSI_FORMAT_BF16_ARRAY))
            return (N)bf16::widen((uint16_t)bits);
        return (N)E::widen((typename E::Bits)bits);
    }
    __device__ __forceinline__ void write(int64_t c, N y) const {
        if (is(GPULOSSI_FORMAT_F32))
            *as<f32>(c) = narrowed<f32>(y);
        else if (is(GPULOSSI_FORMAT_F64))
            *as<f64>(c) = narrowed<f64>(y);
        else if (is(GPULOSSI_FORMAT_F16))
            *as<f16>(c) = narrowed<f16>(y);
        else if (is(GPULOSSI_FORMAT_BF16_ARRAY))
            *as<bf16>(c) = narrowed<bf16>(y);
        else
            *as<E>(c) = E::narrow(y);
    }
    __device__ __forceinline__ void read_vector(int64_t c, N (&y)[W]) const {
        if (is(GPULOSSI_FORMAT_F32))
            return read_as<f32>(c, y);
        if (is(GPULOSSI_FORMAT_F64))
            return read_as<f64>(c, y);
        if (is(GPULOSSI_FORMAT_F16))
            return read_as<f16>(c, y);
        if (is(GPULOSSI_FORMAT_BF16_ARRAY))
            return read_as<bf16>(c, y);
        load_vector<E, kRead_again>(as<E>(c)).unpack(y);
    }
    /* Reads a vector of this array from address `at` in shared memory. Its elements are E or floats. */
    DEVICE void read_shared(uint32_t at, N (&y)[W]) {
        if (is(GPULOSSI_FORMAT_F32)) {
#pragma unroll
            for (int i = 0; i < W; i += 4) {
                uint32_t words[4];
                Shared::load<4>(at + 4 * i, words);
#pragma unroll
                for (int k = 0; k < 4 && i + k < W; k++)
                    y[i + k] = (N)__uint_as_float(words[k]);
            }
        } else {
            Vector<E> x;
            Shared::load<4>(at, x.word);
            x.unpack(y);
        }
    }
    /* Writes elements of another type to address `at` in shared memory: the first `count` of a vector, or all. The
     * address of all is aligned for vectors. */
    DEVICE void write_shared(uint32_t at, const N (&y)[W], int count, bool all) {
        if (is(GPULOSSI_FORMAT_F32))
            write_shared_as<f32>(at, y, count, all);
        else if (is(GPULOSSI_FORMAT_F64))
            write_shared_as<f64>(at, y, count, all);
        else if (is(GPULOSSI_FORMAT_F16))
            write_shared_as<f16>(at, y, count, all);
        else
            write_shared_as<bf16>(at, y, count, all);
    }
    __device__ __forceinline__ void write_vector(int64_t c, const N (&y)[W]) const {
        if (is(GPULOSSI_FORMAT_F32))
            return write_as<f32>(c, y);
        if (is(GPULOSSI_FORMAT_F64))
            return write_as<f64>(c, y);
        if (is(GPULOSSI_FORMAT_F16))
            return write_as<f16>(c, y);
        if (is(GPULOSSI_FORMAT_BF16_ARRAY))
            return write_as<bf16>(c, y);
        Vector<E> packed;
        packed.fill(y);
        store_vector<E>(as<E>(c), packed);
    }

    /* write_vector() by all lanes of a warp, of which neighbours have neighbouring vectors. */
    __device__ __forceinline__ void write_vectors(int64_t c, const N (&y)[W], bool is_inside) const {
        if constexpr (W == 8)
            if (is(GPULOSSI_FORMAT_F32))
                return write_pairs(c, y, is_inside);
        if (is_inside)
            write_vector(c, y);
    }

  private:
    /* Writes floats of two lanes, each of which has a sector of 32 bytes. They write a half of each: a store instruction that
     * writes half of a sector takes the L2 cache as long as a whole one. */
    __device__ __forceinline__ void write_pairs(int64_t c, const N (&y)[W], bool is_inside) const {
        const bool is_odd = threadIdx.x % 2;
        const bool is_other_inside = __shfl_xor_sync(0xffffffffu, is_inside, 1);
        Few<f32, W / 2> even, odd;
#pragma unroll
        for (int i = 0; i < W / 2; i++) {
            const uint32_t low = __float_as_uint((float)y[i]), high = __float_as_uint((float)y[W / 2 + i]),
                           other = __shfl_xor_sync(0xffffffffu, is_odd ? low : high, 1);
            even.word[i] = is_odd ? other : low;
            odd.word[i] = is_odd ? high : other;
        }
        float *const to = (float *)base + c - (is_odd ? W / 2 : 0);
        if (is_odd ? is_other_inside : is_inside)
            even.store(to);
        if (is_odd ? is_inside : is_other_inside)
            odd.store(to + W);
    }
    template <class S> __device__ __forceinline__ void read_as(int64_t c, N (&y)[W]) const {
        Few<S, W> few;
        few.load(as<S>(c));
        few.get(y);
    }
    template <class S> __device__ __forceinline__ void write_as(int64_t c, const N (&y)[W]) const {
        Few<S, W> few;
        few.put(y);
        few.store(as<S>(c));
    }
    template <class S> DEVICE void write_shared_as(uint32_t at, const N (&y)[W], int count, bool all) {
        if (all) {
            Few<S, W> few;
            few.put(y);
            few.store_shared(at);
            return;
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            if (i < count)
                Shared::store(at + i * (int)sizeof(typename S::Bits), narrowed<S>(y[i]));
    }
};

/* Moves numbers down by `by` positions if `moves` is set. The last ones stay. */
template <int by, class N, int n> DEVICE void move_down(N (&numbers)[n], bool moves) {
#pragma unroll
    for (int i = 0; i + by < n; i++)
        numbers[i] = moves ? numbers[i + by] : numbers[i];
}

/* An array of results: float, or double for double logits. */
template <class E> struct ResultArray {
    typedef typename E::Number N;
    typedef typename Out<E>::Type S;
    enum { W = Width<E>::value };
    const N *base;

    __device__ __forceinline__ explicit ResultArray(const N *base) : base(base) {}
    __device__ __forceinline__ bool is_aligned(int64_t c) const {
        return (uintptr_t)(base + c) % GPULOSSI_VECTOR_BYTES == 0;
    }
    template <class M> __device__ __forceinline__ M read(int64_t c) const { return base[c]; }
    __device__ __forceinline__ void read_vector(int64_t c, N (&y)[W]) const {
        Few<S, W> few;
        few.load(base + c);
        few.get(y);
    }
    /* Reads the W elements from c on, which is not aligned, of an array of `count` elements. Reads the aligned vectors
     * that contain them. The distance to c selects the elements, and is the same for all vectors of a row. */
    __device__ __forceinline__ void read_between(int64_t c, int64_t count, N (&y)[W]) const {
        enum { unit = GPULOSSI_VECTOR_BYTES / sizeof(N) };
        const int distance = (int)((uintptr_t)(base + c) / sizeof(N) % unit);
        if (c < distance || c - distance + W + unit > count) {
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = base[c + i];
            return;
        }
        N around[W + unit];
        Few<S, W + unit> few;
        few.load(base + c - distance);
        few.get(around);
        if (unit == 4)
            move_down<2>(around, distance & 2);
        move_down<1>(around, distance & 1);
#pragma unroll
        for (int i = 0; i < W; i++)
            y[i] = around[i];
    }
};

/* An output of results: float, or double for double inputs. It begins at element `at`. */
template <class E> struct ResultOutput {
    typedef typename E::Number N;
    typedef typename Out<E>::Type S;
    enum { W = Width<E>::value };
    N *base;

    __device__ __forceinline__ ResultOutput(uint64_t array, int64_t at) : base((N *)array + at) {}
    __device__ __forceinline__ bool is_aligned(int64_t c) const {
        return (uintptr_t)(base + c) % GPULOSSI_VECTOR_BYTES == 0;
    }
    __device__ __forceinline__ void write(int64_t c, N y) const { base[c] = y; }
    __device__ __forceinline__ void write_vector(int64_t c, const N (&y)[W]) const {
        Few<S, W> few;
        few.put(y);
        few.store(base + c);
    }
};

/* Moves n numbers down by one position and puts x last. A loop over this call indexes no number by a variable, so the
 * numbers stay in registers. */
template <class N, int n> DEVICE void shift_in(N (&numbers)[n], N x) {
#pragma unroll
    for (int i = 0; i + 1 < n; i++)
        numbers[i] = numbers[i + 1];
    numbers[n - 1] = x;
}

#endif
