/* Cross-entropy of short packed rows, without options, a stretch of them at a time: what all its kernels do, whatever
 * becomes of the rows of a slot.
 *
 * A kernel is a class Rows with rows_of_slot(first, count, total), which works on rows from number `first` on, and
 * finish(total), for what it has put off; and adds up losses by add(), or in `sum` and `counted`. */
#ifndef GPULOSSI_PACKED_BASE_CUH
#define GPULOSSI_PACKED_BASE_CUH

#include "ce_basic.cuh"
#include "packed_pipeline.cuh"

/* kThreads: of a block; kShortest: the classes that a row has at least. */
template <class E, class Rows, int kThreads, int kShortest = 1>
class PackedRows : protected Stretches<Plain<E>, kThreads, GPULOSSI_RING_STEPS> {
  protected:
    typedef Stretches<Plain<E>, kThreads, GPULOSSI_RING_STEPS> Base;
    typedef Plain<E> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Totals Totals;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename E::Bits Bits;
    using Base::first_of, Base::count_of, Base::stretches, Base::run, Base::queue, Base::next;
    using Base::p, Base::loss, Base::lane, Base::row_bytes, Base::slots, Base::slot, Base::freed;
    enum {
        kRing = GPULOSSI_PACKED_RING,
        kOfHalf =
            kRing / 2 / (kShortest * (int)sizeof(Bits)), /* rows of a stretch, where it has half a ring at most, */
        kOfAll = kRing / (kRing / 2 / (2 * kLanes) + 1), /* and where less than two turns of its rows fit a half */
        kMostRows = kOfHalf > kOfAll ? kOfHalf : kOfAll,
        kTargets = (kMostRows < GPULOSSI_PACKED_ROWS ? kMostRows : GPULOSSI_PACKED_ROWS) / kLanes /* of a lane */
    };
    static_assert(sizeof(N) == 4, "a word has numbers of 4 bytes or less");
    static_assert(kRing / sizeof(Bits) <= INT16_MAX, "places are 16 bits");

    int reduces, writes, results, further; /* results: besides the gradient; further: and besides the sum of losses */
    int64_t y[kTargets];                   /* the class indices of the next stretch */
    double sum;                            /* of losses; and how many more rows have a class */
    int counted;

    __device__ __forceinline__ explicit PackedRows(const Params &p)
        : Base(p), reduces(loss.reduces()), writes(loss.writes()), further(p.lse || p.rows.loss_rows), sum(0),
          counted(0) {
        results = further || p.rows.loss || p.bad_targets || loss.counts();
        keep(reduces);
        keep(writes);
        keep(results);
        keep(further);
    }

    /* Of the rows of this stretch: the class index, or a number less than 0 that says why there is none. */
    DEVICE int16_t *places() {
        __shared__ int16_t of_block[Base::kTeams][kTargets * kLanes];
        return of_block[threadIdx.x / kLanes];
    }

    /* They are waited for where they are settled. Lanes without a row take the last one's: each load in a branch of its own
     * would wait for the one before, and others for them. */
    __device__ __forceinline__ void fetch_targets(uint32_t stretch) {
        int64_t first = first_of(stretch);
        int count = count_of(stretch);
        with_targets(p, [&](auto *from) {
#pragma unroll
            for (int i = 0; i < kTargets; i++)
                y[i] = from[first + min(i * kLanes + lane, count - 1)];
        });
    }
    /* Those of lanes without a row go where nobody looks. */
    __device__ __forceinline__ void settle_targets(int count) const {
        bool ignores = p.rows.flags & GPULOSSI_IGNORES;
#pragma unroll
        for (int i = 0; i < kTargets; i++) {
            int place = (uint64_t)y[i] < (uint64_t)p.total_classes ? (int)y[i] : -2;
            if (ignores && y[i] == p.ignore_index)
                place = -1;
            places()[i * kLanes + lane] = (int16_t)place;
            if ((i + 1) * kLanes >= count)
                break;
        }
    }

    DEVICE Row row_of(int64_t row, int place) {
        Row r;
        r.row = row;
        r.vector = -1;
        r.place = place;
        return r;
    }
    __device__ __forceinline__ void add(Row &r, const State &state, N x_y, Totals &total) {
        if (further || r.place < -1) {
            sum += (double)loss.result(loss.unfinished(r, state, &x_y), total);
        } else if (r.place >= 0) {
            N log_sum = reduces ? natural_log(state.sum) : N(0);
            sum += (double)Loss::loss_of(log_sum, r.top, x_y);
            counted++;
        }
    }
    __device__ __forceinline__ void settle_sum(Totals &total) {
        if (sum != 0)
            loss.add(sum, total);
        loss.count(counted, total);
        sum = 0;
        counted = 0;
    }
    __device__ __forceinline__ void stretch(uint32_t number, uint32_t after, Totals &total) {
        int64_t first = first_of(number);
        int count = count_of(number), bytes = count * row_bytes;
        this->ask(writes);
        settle_targets(count);
        if (after < stretches)
            fetch_targets(after);
        this->receive(first, bytes);
        static_cast<Rows *>(this)->rows_of_slot(first, count, total);
        if (writes) {
            __syncwarp();
            this->send(loss.grad(first), bytes);
        }
        this->release();
    }

  public:
    __device__ __forceinline__ void all(Totals &total) {
        if (queue.more())
            fetch_targets(queue.tile[0] * run);
#pragma unroll 1
        while (queue.more()) {
            uint32_t word = lane == 0 ? queue.fetch() : 0;
            uint32_t number = queue.tile[0] * run, end = min(number + run, stretches);
#pragma unroll 1
            for (; number < end; number++)
                stretch(number, number + 1 < end ? number + 1 : queue.tile[1] * run, total);
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
