/* Forward KL of two arrays of logits, of short packed rows, one row tile at a time: the part that all its kernels
 * share. Both arrays are read once.
 *
 * A kernel is a class Rows. Its rows_of_stage(first, count, ends, total) works on the rows of a stage, from row `first` on.
 * Divergences are added to `sum`. At the end of a tile, it goes to settle_sum(). */
#ifndef GPULOSSI_PACKED_PAIR_BASE_CUH
#define GPULOSSI_PACKED_PAIR_BASE_CUH

#include "kl_logits.cuh"
#include "packed_pipeline.cuh"

template <class E, class Rows>
class PairedRows : protected RowTiles<Distil<E, 1>, GPULOSSI_PAIRS_THREADS, GPULOSSI_PAIRS_STEPS> {
  protected:
    typedef RowTiles<Distil<E, 1>, GPULOSSI_PAIRS_THREADS, GPULOSSI_PAIRS_STEPS> Base;
    typedef Distil<E, 1> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Totals Totals;
    typedef typename Base::End End;
    typedef typename E::Bits Bits;
    using Base::p, Base::loss, Base::lane, Base::row_bytes, Base::first_of, Base::count_of;
    using Base::row_tiles, Base::run, Base::queue, Base::next_tile;

    double sum; /* The sum of losses that the totals do not include yet. */

    __device__ __forceinline__ explicit PairedRows(const Params &p) : Base(p), sum(0) {}

    __device__ __forceinline__ void settle_sum(Totals &total) {
        if (sum != 0)
            loss.add(sum, total);
        sum = 0;
    }

    __device__ __forceinline__ void row_tile(uint32_t number, End ends, Totals &total) {
        int64_t first = first_of(number);
        int count = count_of(number), bytes = count * row_bytes;
        this->request_ahead(Loss::wants_gradient());
        this->acquire(first, bytes);
        static_cast<Rows *>(this)->rows_of_stage(first, count, ends, total);
        if (Loss::wants_gradient()) {
            __syncwarp();
            this->store_tile((Bits *)p.rows.grad + first * p.rows.grad_stride, bytes);
        }
        this->release();
    }

  public:
    __device__ __forceinline__ void all(Totals &total) {
#pragma unroll 1
        while (queue.more()) {
            uint32_t word = lane == 0 ? queue.fetch() : 0;
            uint32_t number = queue.tile[0] * run, end = min(number + run, row_tiles);
#pragma unroll 1
            for (; number < end; number++)
                row_tile(number, {number + 1 == end, number + 1 == end && queue.tile[1] >= queue.tiles}, total);
            queue.advance(__shfl_sync(0xffffffffu, word, 0));
            next_tile--;
        }
    }

    DEVICE void run_on(const Params &p) {
        Rows rows(p);
        rows.add_up(rows);
    }
};

#endif
