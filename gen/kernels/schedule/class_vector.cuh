/* The classes of a vector of a row, and access to other arrays at these classes. */
#ifndef GPULOSSI_CLASS_VECTOR_CUH
#define GPULOSSI_CLASS_VECTOR_CUH

#include "../device/any_dtype.cuh"

DEVICE bool has_columns() {
    return has_format(GPULOSSI_FORMAT_COLUMNS);
}

/* The elements from class `first_class` on. Elements `begin` to `end` are in the row, and all elements if kWhole. With
 * kByFormat, rows that are not ragged are whole vectors of all arrays. A class of a column is `inner` elements after
 * the one before it. */
template <class E, bool kWhole, bool kByFormat> struct ClassVector {
    typedef typename E::Number N;
    enum { W = Width<E>::value };
    int64_t first_class, inner;
    int begin, end;

    DEVICE bool is_even() { return kByFormat && !has_format(GPULOSSI_FORMAT_RAGGED | GPULOSSI_FORMAT_COLUMNS); }
    __device__ __forceinline__ bool is_inside(int i) const { return kWhole || is_even() || (i >= begin && i < end); }
    __device__ __forceinline__ int count() const { return kWhole || is_even() ? (int)W : end - begin; }
    template <class Array> __device__ __forceinline__ bool is_vector_of(const Array &array) const {
        return is_even() || ((kWhole || (begin == 0 && end == W)) && array.is_aligned(first_class));
    }
    /* Element i in memory, from the start of the row on. */
    __device__ __forceinline__ int64_t element(int i) const {
        return has_columns() ? (first_class + i) * inner : first_class + i;
    }
    template <class Array> __device__ __forceinline__ void read(const Array &array, N (&y)[W]) const {
        if (!has_columns() && is_vector_of(array)) {
            array.read_vector(first_class, y);
            return;
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            y[i] = is_inside(i) ? array.template read<N>(element(i)) : N(0);
    }
    /* Reads an array with an element for each class. */
    template <class Array> __device__ __forceinline__ void read_of_classes(const Array &array, N (&y)[W]) const {
        if (is_vector_of(array)) {
            array.read_vector(first_class, y);
            return;
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            y[i] = is_inside(i) ? array.template read<N>(first_class + i) : N(0);
    }
    template <class Array> __device__ __forceinline__ void write(const Array &array, const N (&y)[W]) const {
        if (!has_columns() && is_vector_of(array)) {
            array.write_vector(first_class, y);
            return;
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            if (is_inside(i))
                array.write(element(i), y[i]);
    }
};

#endif
