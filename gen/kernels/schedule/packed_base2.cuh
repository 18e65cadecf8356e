/* Forward KL of two arrays of logits, of short packed rows, a stretch of them at a time: what all its kernels do, whatever
 * becomes of the rows of a slot. Both arrays are read once.
 *
 * A kernel is a class Rows with rows_of_slot(first, count, total), which works on rows from number `first` on, and
 * finish(total), for what it has put off; and adds up divergences in `sum`. */
#ifndef GPULOSSI_PACKED_BASE2_CUH
#define GPULOSSI_PACKED_BASE2_CUH

#include "kl_logits.cuh"
#include "packed_pipeline.cuh"

template <class E, class Rows>
class PairedRows : protected Stretches<Distil<E, 1>, GPULOSSI_PAIRS_THREADS, GPULOSSI_PAIRS_STEPS> {
  protected:
    typedef Stretches<Distil<E, 1>, GPULOSSI_PAIRS_THREADS, GPULOSSI_PAIRS_STEPS> Base;
    typedef Distil<E, 1> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Totals Totals;
    typedef typename E::Bits Bits;
    using Base::p, Base::loss, Base::lane, Base::row_bytes, Base::first_of, Base::count_of;
    using Base::stretches, Base::run, Base::queue, Base::next;

    int writes;
    double sum; /* of losses */

    __device__ __forceinline__ explicit PairedRows(const Params &p) : Base(p), writes(p.rows.grad != 0), sum(0) {
        keep(writes);
    }

    __device__ __forceinline__ void settle_sum(Totals &total) {
        if (sum != 0)
            loss.add(sum, total);
        sum = 0;
    }

    __device__ __forceinline__ void stretch(uint32_t number, Totals &total) {
        int64_t first = first_of(number);
        int count = count_of(number), bytes = count * row_bytes;
        this->ask(writes);
        this->receive(first, bytes);
        static_cast<Rows *>(this)->rows_of_slot(first, count, total);
        if (writes) {
            __syncwarp();
            this->send((Bits *)p.rows.grad + first * p.rows.grad_stride, bytes);
        }
        this->release();
    }

  public:
    __device__ __forceinline__ void all(Totals &total) {
#pragma unroll 1
        while (queue.more()) {
            uint32_t word = lane == 0 ? queue.fetch() : 0;
            uint32_t number = queue.tile[0] * run, end = min(number + run, stretches);
#pragma unroll 1
            for (; number < end; number++)
                stretch(number, total);
            settle_sum(total);
            queue.advance(__shfl_sync(0xffffffffu, word, 0));
            next--;
        }
        static_cast<Rows *>(this)->finish(total);
    }

    DEVICE void run_on(const Params &p) {
        Rows rows(p);
        rows.add_up(rows);
    }
};

#endif
