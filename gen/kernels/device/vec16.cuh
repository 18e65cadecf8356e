/* Element types and vectors of elements, and their conversion from and to memory. */
#ifndef GPULOSSI_VEC16_CUH
#define GPULOSSI_VEC16_CUH

#include "features.cuh"

/* Hides the origin of a number from the compiler, so that it stays in a register and is not computed again. */
DEVICE void keep(int &x) {
    asm volatile("" : "+r"(x));
}
DEVICE void keep(uint32_t &x) {
    asm volatile("" : "+r"(x));
}
DEVICE void keep(float &x) {
    asm volatile("" : "+f"(x));
}
template <class T> DEVICE void keep(T *&x) {
    asm volatile("" : "+l"(x));
}

/* An element type is stored in `Bits` and computed with in `Number`. Conversions of bf16 and f16 use no special
 * instructions but cvt.f32.f16, so that every GPU and driver runs the same text. Only GPUs of compute capability 8.0 and
 * newer narrow two numbers at a time. Numbers known to be finite may be narrowed in fewer instructions, unless
 * keeps_nan() is true. */
struct f32 {
    typedef uint32_t Bits;
    typedef float Number;
    DEVICE uint32_t dtype() { return GPULOSS_F32; }
    DEVICE bool keeps_nan() { return true; }
    DEVICE Number widen(Bits b) { return __uint_as_float(b); }
    DEVICE Bits narrow(Number x, bool = false) { return __float_as_uint(x); }
};

struct f64 {
    typedef uint64_t Bits;
    typedef double Number;
    DEVICE uint32_t dtype() { return GPULOSS_F64; }
    DEVICE bool keeps_nan() { return true; }
    DEVICE Number widen(Bits b) { return __longlong_as_double((long long)b); }
    DEVICE Bits narrow(Number x, bool = false) { return (Bits)__double_as_longlong(x); }
};

struct f16 {
    typedef uint16_t Bits;
    typedef float Number;
    DEVICE Number widen(Bits b) {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(b));
        return x;
    }
    DEVICE Bits narrow(Number x) {
        uint16_t b;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(x));
        return b;
    }
};

struct bf16 {
    typedef uint16_t Bits;
    typedef float Number;
    DEVICE Number widen(Bits b) { return __uint_as_float((uint32_t)b << 16); }
    /* Rounds to nearest, ties to even. A NaN could carry into the sign, so a fixed NaN replaces it. */
    DEVICE Bits narrow(Number x) {
        uint32_t b;
#if MODULE_TARGET >= 80
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(x), "f"(x));
        return (Bits)b;
#else
        b = __float_as_uint(x);
        b += 0x7fffu + ((b >> 16) & 1u);
        return (Bits)((x == x ? b : 0x7fff0000u) >> 16);
#endif
    }
};

/* Rounds float FROM of inline assembly to bf16 in the upper half of register TO. */
#define BF16_ROUND(to, from)                                                                                           \
    "mov.b32 " to ", " from "; shr.u32 odd, " to ", 16; and.b32 odd, odd, 1; add.u32 odd, odd, 32767; add.u32 " to     \
    ", " to ", odd; "
/* Replaces register TO by a fixed NaN where the float is NaN. */
#define BF16_NAN(to, from) "setp.nan.f32 nan, " from ", " from "; selp.b32 " to ", 0x7fff0000, " to ", nan; "

/* Narrows two floats to a word of f16, on every GPU. */
#define F16_PAIR "{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"

/* Narrows two floats to a word of bf16, from compute capability 8.0 on. */
#define BF16_PAIR "cvt.rn.bf16x2.f32 %0, %2, %1;"

/* f16 or bf16, selected by the format word. Each conversion is one line of PTX for each type. */
struct any16 {
    typedef uint16_t Bits;
    typedef float Number;
    DEVICE uint32_t dtype() { return has_format(GPULOSSI_FORMAT_BF16) ? GPULOSS_BF16 : GPULOSS_F16; }
    DEVICE bool keeps_nan() { return runs_on_sm_80() || !has_format(GPULOSSI_FORMAT_BF16); }
    /* The least number in the range of log_ratio(), twice in a word: 2^-125 of bf16, or 2^-24 of f16. */
    DEVICE uint32_t two_of_least() { return has_format(GPULOSSI_FORMAT_BF16) ? 0x01000100 : 0x00010001; }
    DEVICE Number widen(Bits b) {
        float x;
        asm(EITHER_FORMAT(GPULOSSI_FORMAT_BF16, "{ .reg .b16 zero; mov.b16 zero, 0; mov.b32 %0, {zero, %1}; }",
                          "cvt.f32.f16 %0, %1;")
            : "=f"(x)
            : "h"(b));
        return x;
    }
    /* The low or the high element of a word. bf16 is widened in place, without an extraction. */
    DEVICE Number widen_low(uint32_t word) {
        float x;
        asm(EITHER_FORMAT(GPULOSSI_FORMAT_BF16, "shl.b32 %0, %1, 16;",
                          "{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }")
            : "=f"(x)
            : "r"(word));
        return x;
    }
    DEVICE Number widen_high(uint32_t word) {
        float x;
        asm(EITHER_FORMAT(GPULOSSI_FORMAT_BF16, "and.b32 %0, %1, 0xffff0000;",
                          "{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }")
            : "=f"(x)
            : "r"(word));
        return x;
    }
    DEVICE uint32_t pair(Number low, Number high, bool finite) {
        uint32_t word;
#if MODULE_TARGET >= 80
        (void)finite;
        asm(EITHER_FORMAT(GPULOSSI_FORMAT_BF16, BF16_PAIR, "cvt.rn.f16x2.f32 %0, %2, %1;")
            : "=r"(word)
            : "f"(low), "f"(high));
#else
        if (finite)
            asm(BY_FORMATS(GPULOSSI_FORMAT_BF16, GPULOSSI_FORMAT_SM_80, BF16_PAIR,
                           "{ .reg .b32 l, h, odd; " BF16_ROUND("l", "%1")
                               BF16_ROUND("h", "%2") "prmt.b32 %0, l, h, 0x7632; }",
                           F16_PAIR, F16_PAIR)
                : "=r"(word)
                : "f"(low), "f"(high));
        else
            asm(BY_FORMATS(GPULOSSI_FORMAT_BF16, GPULOSSI_FORMAT_SM_80, BF16_PAIR,
                           "{ .reg .b32 l, h, odd; .reg .pred nan; " BF16_ROUND("l", "%1") BF16_NAN("l", "%1")
                               BF16_ROUND("h", "%2") BF16_NAN("h", "%2") "prmt.b32 %0, l, h, 0x7632; }",
                           F16_PAIR, F16_PAIR)
                : "=r"(word)
                : "f"(low), "f"(high));
#endif
        return word;
    }
    DEVICE Bits narrow(Number x, bool finite = false) {
        return (Bits)pair(x, x, finite);
    }
    /* Needs compute capability 8.0. */
    DEVICE uint32_t larger_of_pairs(uint32_t a, uint32_t b) {
        uint32_t larger;
        asm(EITHER_FORMAT(GPULOSSI_FORMAT_BF16, "max.bf16x2 %0, %1, %2;", "max.f16x2 %0, %1, %2;")
            : "=r"(larger)
            : "r"(a), "r"(b));
        return larger;
    }
};

/* The type of stored losses, which are never rounded to 16 bits. */
template <class E> struct Out { typedef f32 Type; };
template <> struct Out<f64> { typedef f64 Type; };

template <class E> struct Width {
    enum { value = GPULOSSI_VECTOR_BYTES / sizeof(typename E::Bits) };
};

/* 16 bytes of elements in registers. */
template <class E> struct Vector {
    typedef typename E::Bits Bits;
    typedef typename E::Number Number;
    uint32_t word[4];

    __device__ __forceinline__ Number get(int i) const { return E::widen(bits(i, (Bits *)0)); }
    template <int n> __device__ __forceinline__ void unpack(Number (&x)[n]) const {
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = get(i);
    }
    /* The sign bits of all elements, in some order. The result is not 0 if an element is negative or -0. */
    __device__ __forceinline__ uint32_t signs() const {
        uint32_t odd = word[1] | word[3], even = word[0] | word[2];
        return sizeof(Bits) == 8 ? odd & 0x80000000u : (odd | even) & (sizeof(Bits) == 4 ? 0x80000000u : 0x80008000u);
    }
    __device__ __forceinline__ void fill(const Number *x, bool finite = false) {
        fill(x, finite, (Bits *)0);
    }

    /* Reads or replaces the element at a position known at run time only, without leaving registers. */
    __device__ __forceinline__ Number find(int position) const {
        Number x = get(0);
#pragma unroll
        for (int i = 1; i < (int)(sizeof word / sizeof(Bits)); i++)
            if (i == position)
                x = get(i);
        return x;
    }
    __device__ __forceinline__ void replace(int position, Bits b) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = replaced(i, position, b);
    }

    /* push() moves every element up by one position and puts b first. pop() takes the first and moves the others down.
     * A loop over them indexes no element by a variable, so the vector stays in registers. */
    __device__ __forceinline__ void push(Bits b) {
#pragma unroll
        for (int i = 3; i >= 0; i--)
            word[i] = up(i, (Bits *)0);
        word[0] |= (uint32_t)b;
        if (sizeof(Bits) == 8)
            word[1] = (uint32_t)((uint64_t)b >> 32);
    }
    __device__ __forceinline__ Bits pop() {
        Bits b = bits(0, (Bits *)0);
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = down(i, (Bits *)0);
        return b;
    }

  private:
    __device__ __forceinline__ Bits bits(int i, uint64_t *) const {
        return (uint64_t)word[2 * i] | (uint64_t)word[2 * i + 1] << 32;
    }
    __device__ __forceinline__ Bits bits(int i, uint32_t *) const {
        return word[i];
    }
    __device__ __forceinline__ Bits bits(int i, uint16_t *) const {
        return (Bits)(word[i / 2] >> (16 * (i % 2)));
    }

    __device__ __forceinline__ void fill(const Number *x, bool finite, uint64_t *) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Bits b = E::narrow(x[i], finite);
            word[2 * i] = (uint32_t)b;
            word[2 * i + 1] = (uint32_t)((uint64_t)b >> 32);
        }
    }
    __device__ __forceinline__ void fill(const Number *x, bool finite, uint32_t *) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = E::narrow(x[i], finite);
    }
    template <class Two> __device__ __forceinline__ void fill(const Number *x, bool finite, Two *) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = E::pair(x[2 * i], x[2 * i + 1], finite);
    }

    __device__ __forceinline__ uint32_t replaced(int i, int position, uint64_t b) const {
        return i / 2 == position ? (uint32_t)(b >> (32 * (i % 2))) : word[i];
    }
    __device__ __forceinline__ uint32_t replaced(int i, int position, uint32_t b) const {
        return i == position ? b : word[i];
    }
    __device__ __forceinline__ uint32_t replaced(int i, int position, uint16_t b) const {
        return i == position / 2 ? __byte_perm(word[i], b, position % 2 ? 0x5410 : 0x3254) : word[i];
    }

    __device__ __forceinline__ uint32_t up(int i, uint64_t *) const {
        return i < 2 ? 0 : word[i - 2];
    }
    __device__ __forceinline__ uint32_t up(int i, uint32_t *) const {
        return i < 1 ? 0 : word[i - 1];
    }
    __device__ __forceinline__ uint32_t up(int i, uint16_t *) const {
        return word[i] << 16 | (i < 1 ? 0 : word[i - 1] >> 16);
    }
    __device__ __forceinline__ uint32_t down(int i, uint64_t *) const {
        return i > 1 ? 0 : word[i + 2];
    }
    __device__ __forceinline__ uint32_t down(int i, uint32_t *) const {
        return i > 2 ? 0 : word[i + 1];
    }
    __device__ __forceinline__ uint32_t down(int i, uint16_t *) const {
        return word[i] >> 16 | (i > 2 ? 0 : word[i + 1] << 16);
    }
};

template <> __device__ __forceinline__ float Vector<any16>::get(int i) const {
    return i % 2 ? any16::widen_high(word[i / 2]) : any16::widen_low(word[i / 2]);
}

/* Moves each vector down by one position, and the first to the end. A loop over this call indexes no vector by a
 * variable, so the vectors stay in registers. */
template <class V, int K> DEVICE void rotate(V (&x)[K]) {
    V first = x[0];
#pragma unroll
    for (int k = 0; k + 1 < K; k++)
        x[k] = x[k + 1];
    x[K - 1] = first;
}

/* The division of a row into vectors. Vector v covers the elements [v * width - head, (v + 1) * width - head) of the
 * row. `head` makes the vectors of the row's leading array 16-byte aligned, or its vector 0 begin on a longer line. All
 * arrays of the row are cut at the same elements. An array of another alignment is accessed by elements, and so are the
 * ends of a row. */
template <class E> struct Cut {
    typedef typename E::Bits Bits;
    int64_t classes;
    int vectors; /* all, whole or not */
    int lead;    /* the first whole vector */
    uint32_t whole_vectors;
    int head;

    DEVICE int offset(const void *row, uint32_t line = GPULOSSI_VECTOR_BYTES) {
        return (int)((uint32_t)(uintptr_t)row % line / (uint32_t)sizeof(Bits));
    }
    __device__ __forceinline__ Cut() {}
    __device__ __forceinline__ Cut(const void *leading, int64_t row_classes, uint32_t line = GPULOSSI_VECTOR_BYTES)
        : classes(row_classes), head(offset(leading, line)) {
        lead = line == GPULOSSI_VECTOR_BYTES ? head != 0 : (head + Width<E>::value - 1) / Width<E>::value;
        int end = (int)((uint64_t)(classes + head) / Width<E>::value);
        whole_vectors = end > lead ? (uint32_t)(end - lead) : 0;
        vectors = classes == 0 ? 0 : (int)((uint64_t)(classes + head + Width<E>::value - 1) / Width<E>::value);
    }
    /* Vector 0 begins on the line of the first class, or is the first whole one. The row has a whole vector. */
    DEVICE Cut counted(const void *leading, int64_t row_classes, bool from_line, uint32_t line) {
        const int W = Width<E>::value, before = offset(leading, from_line ? line : GPULOSSI_VECTOR_BYTES);
        Cut cut;
        cut.classes = row_classes;
        cut.head = from_line || before == 0 ? before : before - W;
        cut.lead = from_line ? (before + W - 1) / W : 0;
        cut.vectors = (int)((uint64_t)(row_classes + cut.head) / W);
        cut.whole_vectors = (uint32_t)(cut.vectors - cut.lead);
        return cut;
    }
    __device__ __forceinline__ int64_t first(int v) const { return (int64_t)v * Width<E>::value - head; }
    __device__ __forceinline__ bool whole(int v) const { return (uint32_t)(v - lead) < whole_vectors; }
    __device__ __forceinline__ bool fits(const void *row) const { return offset((const Bits *)row - head) == 0; }
    __device__ __forceinline__ bool inside(int64_t c) const { return c >= 0 && c < classes; }

    /* The vector of element c, and the position of c in it. */
    __device__ __forceinline__ int vector_of(int64_t c) const { return (int)((uint64_t)(c + head) / Width<E>::value); }
    __device__ __forceinline__ int position_of(int64_t c) const {
        return (int)((uint32_t)(c + head) % (uint32_t)Width<E>::value);
    }
};

/* The cache policy of a load, by whether its lines are read again. */
enum Stay { kRead_again, kRead_once };

template <class E, Stay stay> DEVICE Vector<E> load_vector(const void *at) {
    uint4 w = stay == kRead_once ? __ldcs((const uint4 *)at) : __ldca((const uint4 *)at);
    Vector<E> x;
    x.word[0] = w.x, x.word[1] = w.y, x.word[2] = w.z, x.word[3] = w.w;
    return x;
}

template <class E> DEVICE void store_vector(typename E::Bits *to, const Vector<E> &x) {
    __stcs((uint4 *)to, make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]));
}

/* A vector of equal elements. */
template <class E> DEVICE Vector<E> filled(typename E::Number with) {
    typename E::Number same[Width<E>::value];
    Vector<E> x;
#pragma unroll
    for (int i = 0; i < Width<E>::value; i++)
        same[i] = with;
    x.fill(same);
    return x;
}

/* Loads a vector of a row by elements. Elements outside the row are `absent`. */
template <class E>
DEVICE Vector<E> load_elements(const Cut<E> &cut, const typename E::Bits *row, int v, typename E::Number absent) {
    typename E::Bits none = E::narrow(absent);
    int64_t first = cut.first(v);
    Vector<E> x = filled<E>(absent);
#pragma unroll 1
    for (int i = Width<E>::value - 1; i >= 0; i--)
        x.push(cut.inside(first + i) ? row[first + i] : none);
    return x;
}

/* Stores the elements of a vector of E as vectors of O, at an address aligned for them. */
template <class E, class O> DEVICE void store_whole(typename O::Bits *to, const typename E::Number *x, bool finite) {
    enum { width = Width<O>::value };
#pragma unroll
    for (int part = 0; part < Width<E>::value; part += width) {
        Vector<O> out;
        out.fill(x + part, finite);
        store_vector<O>(to + part, out);
    }
}

/* Stores a vector of O to the row's elements from `first` on, which belong to vector v. Elements outside the row are
 * skipped. */
template <class E, class O>
DEVICE void store_vector(const Cut<E> &cut, typename O::Bits *row, int v, int64_t first, Vector<O> out) {
    if (cut.whole(v) && (uintptr_t)(row + first) % GPULOSSI_VECTOR_BYTES == 0) {
        store_vector<O>(row + first, out);
    } else {
#pragma unroll 1
        for (int i = 0; i < Width<O>::value; i++) {
            typename O::Bits b = out.pop();
            if (cut.inside(first + i))
                row[first + i] = b;
        }
    }
}

/* Stores vector v of a row whose elements are stored as O, which may be wider than the E that the row is cut by. */
template <class E, class O>
DEVICE void store(const Cut<E> &cut, typename O::Bits *row, int v, const typename E::Number *x, bool finite = false) {
    enum { width = Width<O>::value };
#pragma unroll
    for (int part = 0; part < Width<E>::value; part += width) {
        Vector<O> out;
        out.fill(x + part, finite);
        store_vector<E, O>(cut, row, v, cut.first(v) + part, out);
    }
}

#endif
