/* The part that Divergence and SparseDivergence share: labels that exclude rows, weights, the scale of gradients, and the
 * results. Params has rows, row_weights, labels, label_type, ignore_index, inverse_temperature and factor, which is that of
 * all terms. */
#ifndef GPULOSSI_DIVERGENCE_ROWS_CUH
#define GPULOSSI_DIVERGENCE_ROWS_CUH

#include "../device/any_dtype.cuh"
#include "targets.cuh"

template <class E, class RowParams> struct DivergenceRows {
    typedef E Element;
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    typedef RowParams Params;
    typedef FormatArray<E, kOwnType> Gradients;
    enum { W = Width<E>::value, kHasBasicRows = 0, kHasClasses = 0, kHasValues = 1 };

    struct Wanted {
        DEVICE bool sum(int) { return has(GPULOSSI_KL_LOSS); }
        DEVICE bool count(int) { return has(GPULOSSI_KL_COUNTS); }
        DEVICE bool first_only() { return true; }
    };
    typedef Total<1, 1, Wanted> Totals;

    DEVICE bool sums_only() { return false; }
    DEVICE bool is_basic() { return false; }

    const Params &p;
    N inverse_temperature, exponent; /* exp(x / T) is 2^(exponent x) */

    /* All threads of the block call. */
    __device__ __forceinline__ explicit DivergenceRows(const Params &p) : p(p) {
        inverse_temperature = (N)p.inverse_temperature;
        exponent = inverse_temperature * N(1.4426950408889634);
        if (threadIdx.x == 0) {
            const double counted =
                p.rows.flags & GPULOSSI_PREPARED ? (double)scratch()->counts[GPULOSSI_COUNT_ROWS] : 1.0;
            grad_scale() = gradient_scale<N>(p.rows, counted);
            smem_inverse_temperature() = inverse_temperature;
            smem_temperature() = reciprocal(inverse_temperature);
        }
        __syncthreads();
    }

    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ Gradients gradients_of(int64_t row) const {
        return Gradients(p.rows.grad, row * p.rows.grad_stride);
    }
    /* The weight of a row, as a constant in calls without weights and labels: rows then have no register for it. */
    template <class Row> DEVICE N weight_of(const Row &r) {
        return has(GPULOSSI_KL_ROW_WEIGHTS | GPULOSSI_KL_LABELS) ? r.weight : N(1);
    }
    template <class Row> DEVICE bool is_read(const Row &r) { return weight_of(r) != 0; }
    template <class Row> DEVICE Bits target_logit(int64_t, const Row &) { return 0; }
    DEVICE N finite(N max) { return max == -Limits<N>::infinity() ? N(0) : max; }
    /* exp((z - from) / T), for z <= from. */
    __device__ __forceinline__ N exp_from(N z, N from) const {
        if constexpr (sizeof(N) == 4)
            return power_of_2(difference(z, from) * exponent);
        else
            return exp_of_difference(difference(z, from) * inverse_temperature);
    }
    /* The factor of a row's derivatives. */
    __device__ __forceinline__ double scale_of(int64_t row, N weight) const {
        double scale = grad_scale() * p.factor;
        if (has(GPULOSSI_KL_ROW_WEIGHTS))
            scale *= (double)weight;
        if (has(GPULOSSI_KL_ROW_GRADIENTS))
            scale *= (double)((const N *)p.rows.grad_loss_rows)[row];
        return scale;
    }

    /* ---- the results of a row, by one thread ---- */

    struct Result {
        double loss;
        int counted;
    };
    template <class Row, class Outcome>
    __device__ __forceinline__ Result finish(int64_t row, const Row &r, const Outcome &outcome, N) const {
        Result of = {0.0, !has(GPULOSSI_KL_LABELS) || r.is_counted};
        if (is_read(r) && has(GPULOSSI_KL_LOSS | GPULOSSI_KL_ROW_OUTPUTS))
            of.loss = outcome.sum() * (p.factor * (double)weight_of(r));
        if (has(GPULOSSI_KL_ROW_OUTPUTS))
            ((N *)p.rows.loss_rows)[row] = (N)of.loss;
        return of;
    }
    __device__ __forceinline__ void add(const Result &of, Totals &total) const {
        if (has(GPULOSSI_KL_COUNTS))
            total.counts[GPULOSSI_COUNT_ROWS] += of.counted;
        if (has(GPULOSSI_KL_LOSS))
            total.add(GPULOSSI_SUM_LOSS, of.loss, scratch());
    }

    /* ---- the results of a launch ---- */

    __device__ __forceinline__ bool wants(int i) const { return Wanted::sum(i); }
    __device__ __forceinline__ bool prepared() const { return p.rows.flags & GPULOSSI_PREPARED; }
    __device__ __forceinline__ bool concludes() const { return has(GPULOSSI_KL_LOSS) || prepared(); }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        double divisor = divisor_of<N>(p.rows);
        if (p.rows.flags & GPULOSSI_DATA_DIVISOR)
            divisor = (double)counts[GPULOSSI_COUNT_ROWS] * p.rows.divisor;
        if (p.rows.loss)
            put_sum<N>(p.rows, p.rows.loss, quotient_for(N(), sums[GPULOSSI_SUM_LOSS], divisor));
    }

    /* They are rarely read, so they are in shared memory. */
    DEVICE double &grad_scale() {
        __shared__ double of_block;
        return of_block;
    }
    DEVICE N &smem_inverse_temperature() {
        __shared__ N of_block;
        return of_block;
    }
    DEVICE N &smem_temperature() {
        __shared__ N of_block;
        return of_block;
    }
};

#endif
