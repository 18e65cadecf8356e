/* Cross-entropy of short packed rows, one row tile at a time: the part that all its kernels share.
 *
 * A kernel is a class Rows. Its rows_of_stage(first, count, weight, ends, total) works on the rows of a stage, from row
 * `first` on. `weight` is the row weight of first_row(), the first row of a lane. Losses go to add(), or to `sum` and
 * `counted`. At the end of a tile, the sums go to settle_sum(). */
#ifndef GPULOSSI_PACKED_BASE_CUH
#define GPULOSSI_PACKED_BASE_CUH

#include "ce_basic.cuh"
#include "packed_pipeline.cuh"

/* kThreads: threads of a block. kMinClasses: the least number of classes of a row. */
template <class RowLoss, class Rows, int kThreads, int kMinClasses = 1>
class PackedRows : protected RowTiles<RowLoss, kThreads, GPULOSSI_RING_STEPS> {
  protected:
    typedef RowTiles<RowLoss, kThreads, GPULOSSI_RING_STEPS> Base;
    typedef RowLoss Loss;
    typedef typename Loss::Element E;
    typedef typename Loss::Params Params;
    typedef typename Loss::Totals Totals;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename Base::End End;
    typedef typename E::Bits Bits;
    using Base::first_of, Base::count_of, Base::row_tiles, Base::run, Base::queue, Base::next_tile;
    using Base::p, Base::loss, Base::lane, Base::row_bytes, Base::ring_base, Base::stage_offset, Base::consumer;
    enum {
        kRing = GPULOSSI_PACKED_RING,
        /* The most rows of a row tile that takes at most half of the ring. */
        kHalfRingRows = kRing / 2 / (kMinClasses * (int)sizeof(Bits)),
        /* The most rows of a row tile that takes the whole ring, where fewer than two rows a lane fit half of it. */
        kFullRingRows = kRing / (kRing / 2 / (2 * kLanes) + 1),
        kMaxRows = kHalfRingRows > kFullRingRows ? kHalfRingRows : kFullRingRows,
        /* Targets of a lane. */
        kTargets = (kMaxRows < GPULOSSI_PACKED_ROWS ? kMaxRows : GPULOSSI_PACKED_ROWS) / kLanes
    };
    static_assert(sizeof(N) == 4, "an element is at most a word of 4 bytes");
    static_assert(kRing / sizeof(Bits) <= INT16_MAX, "class indices are 16 bits");

    /* The best class of a row is that of its first NaN, which is its index, or else the first one of its maximum, which is
     * its index and kNumber. It is the least of all its classes, or kNoClass. */
    enum : uint32_t { kNumber = 0x80000000u, kNoClass = 0xffffffffu };
    DEVICE uint32_t best_class(N x, N row_max, int index) {
        return x != x ? (uint32_t)index : x == row_max ? (uint32_t)index | kNumber : kNoClass;
    }

    int64_t y[kTargets]; /* The targets of the next row tile. */
    N next_weight;       /* The weight of this lane's first row of it. */
    /* The sums of losses and class weights, and the number of rows with a class, that the totals do not include yet. */
    double sum, weights;
    int counted;

    __device__ __forceinline__ explicit PackedRows(const Params &p)
        : Base(p), next_weight(1), sum(0), weights(0), counted(0) {}

    /* The targets of the rows of this row tile: the class index, or -1 if the row is ignored, or -2 if the index is
     * bad. */
    DEVICE int16_t *targets() {
        __shared__ int16_t of_block[Base::kTeams][kTargets * kLanes];
        return of_block[threadIdx.x / kLanes];
    }

    /* Loads the targets of a row tile; store_targets() waits for them. A lane without a row loads the last row's
     * target. Loads in separate branches would wait for each other. */
    __device__ __forceinline__ void fetch_targets(uint32_t row_tile) {
        int64_t first = first_of(row_tile);
        int count = count_of(row_tile);
        with_targets(p, [&](auto *from) {
#pragma unroll
            for (int i = 0; i < kTargets; i++)
                y[i] = from[first + min(i * kLanes + lane, count - 1)];
        });
        if (Loss::has_row_weights())
            next_weight = weight_of(first, static_cast<const Rows *>(this)->first_row(), count);
    }
    /* Lanes without a row store to slots that are never read. */
    __device__ __forceinline__ void store_targets(int count) const {
        bool ignores = p.rows.flags & GPULOSSI_IGNORES;
#pragma unroll
        for (int i = 0; i < kTargets; i++) {
            int target = (uint64_t)y[i] < (uint64_t)p.total_classes ? (int)y[i] : -2;
            if (ignores && y[i] == p.ignore_index)
                target = -1;
            targets()[i * kLanes + lane] = (int16_t)target;
            if ((i + 1) * kLanes >= count)
                break;
        }
    }

    DEVICE Row row_of(int64_t row, int target) {
        Row r = {};
        r.row = row;
        r.vector = -1;
        r.position = target;
        r.weight = r.class_weight = N(1);
        return r;
    }
    /* The weight of a row, or of the last row of its tile. */
    __device__ __forceinline__ N weight_of(int64_t first, int row, int count) const {
        return loss.weight_of(first + min(row, count - 1));
    }
    /* The sum of the weights of all classes in the smoothing. */
    __device__ __forceinline__ N sum_of_weights() const {
        return Loss::weighs_classes() ? Loss::weight_sum() : (N)this->classes;
    }
    __device__ __forceinline__ void add(Row &r, const State &state, N x_y, Totals &total) {
        if (Loss::finds_best())
            loss.put_best(r, total);
        if (Loss::has_options() || Loss::has_row_outputs() || r.position < -1) {
            sum += (double)loss.result(loss.unfinished(r, state, &x_y), total);
            if (Loss::sums_weights())
                weights += (double)r.class_weight;
        } else if (r.position >= 0) {
            N log_sum = Loss::reduces() ? natural_log(state.sum) : N(0);
            sum += (double)loss.loss_of(log_sum, r.row_max, x_y, r.weight, r.class_weight, r.drop);
            counted++;
        }
    }
    __device__ __forceinline__ void settle_sum(Totals &total) {
        if (sum != 0)
            loss.add(sum, total);
        if (weights != 0)
            loss.add_weights(weights, total);
        loss.count(counted, total);
        sum = weights = 0;
        counted = 0;
    }
    __device__ __forceinline__ void row_tile(uint32_t number, uint32_t after, bool ends_tile, Totals &total) {
        int64_t first = first_of(number);
        int count = count_of(number), bytes = count * row_bytes;
        const N weight = next_weight;
        this->request_ahead(Loss::writes());
        store_targets(count);
        if (after < row_tiles)
            fetch_targets(after);
        this->acquire(first, bytes);
        static_cast<Rows *>(this)->rows_of_stage(first, count, weight, {ends_tile, after >= row_tiles}, total);
        if (Loss::writes()) {
            __syncwarp();
            this->store_tile(loss.grad(first), bytes);
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
            uint32_t number = queue.tile[0] * run, end = min(number + run, row_tiles);
#pragma unroll 1
            for (; number < end; number++)
                row_tile(number, number + 1 < end ? number + 1 : queue.tile[1] * run, number + 1 == end, total);
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
