/* Losses whose labels may exclude rows: the mask and the scale of a row, and the results of the sums. */
#ifndef GPULOSSI_ROW_MASK_CUH
#define GPULOSSI_ROW_MASK_CUH

#include "targets.cuh"

/* Params has rows, row_weights, labels, label_type, ignore_index and factor, which is the factor of all terms. */
template <class N, class Params> struct Masked {
    typedef Total<1, 1> Totals;

    const Params &p;

    __device__ __forceinline__ explicit Masked(const Params &p) : p(p) {}

    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ bool is_ignored(int64_t row) const {
        return p.labels && (p.rows.flags & GPULOSSI_IGNORES) &&
               read_index(p.labels, p.label_type, row) == p.ignore_index;
    }
    /* Whether a row has no loss and gradients of 0, whatever its elements are. */
    __device__ __forceinline__ bool left_out(int64_t row) const {
        return is_ignored(row) || (p.row_weights && ((const N *)p.row_weights)[row] == 0);
    }
    __device__ __forceinline__ double weight(int64_t row) const {
        return p.factor * (p.row_weights ? (double)((const N *)p.row_weights)[row] : 1.0);
    }
    /* The scale of the gradients of all rows. scale() is the scale of one row's gradients. */
    __device__ __forceinline__ double scale_of_all() const {
        return gradient_scale<N>(p.rows, prepared() ? (double)scratch()->counts[GPULOSSI_COUNT_ROWS] : 1.0);
    }
    __device__ __forceinline__ double scale(int64_t row, double of_all) const {
        return of_all * weight(row) * (p.rows.grad_loss_rows ? (double)((const N *)p.rows.grad_loss_rows)[row] : 1.0);
    }

    __device__ __forceinline__ bool counts() const { return (p.rows.flags & GPULOSSI_DATA_DIVISOR) && !prepared(); }
    __device__ __forceinline__ void put(int64_t row, double loss) const {
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[row] = (N)loss;
    }
    __device__ __forceinline__ void add(double losses, Totals &total) const {
        if (p.rows.loss)
            total.add(GPULOSSI_SUM_LOSS, losses, scratch());
    }
    __device__ __forceinline__ void count(int64_t row, Totals &total) const {
        if (counts())
            total.counts[GPULOSSI_COUNT_ROWS] += !is_ignored(row);
    }
    __device__ __forceinline__ void finish(int64_t row, double loss, Totals &total) const {
        put(row, loss);
        add(loss, total);
        count(row, total);
    }
    __device__ __forceinline__ bool wants(int) const { return p.rows.loss != 0; }
    __device__ __forceinline__ bool prepared() const { return p.rows.flags & GPULOSSI_PREPARED; }
    __device__ __forceinline__ bool concludes() const { return p.rows.loss || prepared(); }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        double rows = (double)counts[GPULOSSI_COUNT_ROWS];
        if (p.rows.loss)
            put_sum<N>(
                p.rows, p.rows.loss,
                quotient_for(N(), sums[GPULOSSI_SUM_LOSS],
                             p.rows.flags & GPULOSSI_DATA_DIVISOR ? rows * p.rows.divisor : divisor_of<N>(p.rows)));
    }
};

#endif
