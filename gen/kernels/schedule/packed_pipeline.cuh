/* Short packed rows, on GPUs with bulk copies. Consecutive packed rows are contiguous in memory, whatever the alignment
 * of each row. Each warp has a ring of stages with a row tile in each, and copies the next row tiles while it works on
 * one. In shared memory a row belongs to one lane or to a few. Gradients overwrite the logits of the stage, and the row
 * tile is stored in whole vectors. */
#ifndef GPULOSSI_PACKED_PIPELINE_CUH
#define GPULOSSI_PACKED_PIPELINE_CUH

#include "../device/tile_scheduler.cuh"
#include "../device/smem_words.cuh"

/* Each warp of a block of kThreads has a ring of at most kMaxStages stages for each array of the loss. Large row tiles
 * leave space for fewer stages. */
template <class Loss, int kThreads, int kMaxStages> class RowTiles {
  protected:
    typedef typename Loss::Params Params;
    typedef typename Loss::Element::Bits Bits;
    enum {
        A = Loss::kArrays,
        kTeams = kThreads / kLanes,
        kRun = 4,
        kElements = 4 / sizeof(Bits) /* Elements of a word. */
    };

    /* Whether a stage is the last one of the scheduler's tile, and of the launch for this warp. */
    struct End {
        bool tile, launch;
    };

    const Params &p;
    Loss loss;
    /* This lane, its rank in the group of lanes that share a row, the size of the group, and the log2 of that size. */
    int lane, rank, size, shift;
    /* A row has `pieces` vectors of 16 bytes, or words of 4 if rows are not whole vectors. `swizzle` is XORed with
     * their addresses. */
    int classes, row_bytes, pieces, swizzle;
    int rows, last_rows;         /* Rows of a row tile, and of the last one. */
    int ring_bytes, stage_bytes; /* Bytes of all stages of one array, and of one stage. */
    int stages;
    uint32_t row_tiles, run; /* Row tiles of the launch, and of one tile of the scheduler. */
    Ahead queue;
    struct PipelineState { /* A stage, and the parity of its phase. */
        int stage;
        uint32_t parity;
    } producer, consumer;  /* The next stage to copy into, and the stage to work on. */
    int in_flight;         /* Stages that are requested and not yet released. */
    int next_tile;         /* The tile of the next request, among the scheduler's known tiles. */
    uint32_t next_in_tile; /* The row tile of the next request within that tile. */

    DEVICE uint32_t run_of(uint32_t row_tiles) { return row_tiles > 16 * kRun * kTeams * gridDim.x ? kRun : 1; }

    __device__ __forceinline__ explicit RowTiles(const Params &p)
        : p(p), loss(p), lane((int)(threadIdx.x % kLanes)), rank((int)(threadIdx.x & (p.rows.group - 1))),
          size((int)p.rows.group), shift(__popc(p.rows.group - 1)), classes((int)p.rows.classes),
          row_bytes(classes * (int)sizeof(Bits)), rows((int)p.rows.of.tile_rows), ring_bytes((int)p.rows.ring_bytes),
          stages(max(1, min(ring_bytes / (rows * row_bytes), (int)kMaxStages))),
          row_tiles((uint32_t)((p.rows.rows + rows - 1) / rows)), run(run_of(row_tiles)),
          queue(p.rows.scratch, (row_tiles + run - 1) / run, blockIdx.x * kTeams + uniform_warp(), gridDim.x * kTeams,
                run < kMaxStages ? 3 : 2, 14),
          producer{0, 0}, consumer{0, 0}, in_flight(0), next_tile(0), next_in_tile(0) {
        /* Stages begin on lines, unless row tiles fill the ring: two of 4800 bytes do in 9600. */
        stage_bytes = max(rows * row_bytes, ring_bytes / stages & -kLine);
        last_rows = (int)(p.rows.rows - (int64_t)(row_tiles - 1) * rows);
        bool even = p.rows.flags & GPULOSSI_EVEN;
        int all = even ? row_bytes / GPULOSSI_VECTOR_BYTES : row_bytes / 4;
        /* Lanes with different rows would meet in the same banks: the swizzle gives each an order of its own. The XOR
         * stays within a row whose bytes are a power of 2. */
        int swaps = even && (all & (all - 1)) == 0 ? (((lane & 7) >> shift) * min(all, 8)) >> 3 : 0;
        pieces = all;
        swizzle = swaps * size * GPULOSSI_VECTOR_BYTES;
        if (is_elected())
#pragma unroll
            for (int i = 0; i < kMaxStages; i++)
                arrival(i)->begin();
        __syncwarp();
    }

    DEVICE Arrival *arrival(uint32_t stage) {
        __shared__ Arrival arrivals[kTeams][kMaxStages];
        return &arrivals[threadIdx.x / kLanes][stage];
    }
    __device__ __forceinline__ void advance(PipelineState &state) const {
        if (++state.stage == stages)
            state.stage = 0, state.parity ^= 1;
    }
    DEVICE char *ring_base() {
        return (char *)stash_of_block();
    }
    /* The byte offset of a stage of the first array in the block's shared memory. */
    __device__ __forceinline__ int stage_offset(const PipelineState &state) const {
        return (int)(threadIdx.x / kLanes) * A * ring_bytes + state.stage * stage_bytes;
    }

    __device__ __forceinline__ int64_t first_of(uint32_t row_tile) const {
        return (int64_t)row_tile * rows;
    }
    __device__ __forceinline__ int count_of(uint32_t row_tile) const {
        return row_tile + 1 == row_tiles ? last_rows : rows;
    }

    /* Requests row tiles of the known tiles while stages are free. No lane of the warp still uses a released stage.
     * With `writes`, gradients may have been written there: the fence orders them before the copy. */
    __device__ __forceinline__ void request_ahead(bool writes) {
        if (writes)
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
#pragma unroll 1
        while (in_flight < stages && next_tile < queue.known) {
            uint32_t tile = queue.after(next_tile), row_tile = tile * run + next_in_tile;
            if (tile >= queue.tiles)
                return;
            if (row_tile < row_tiles) {
                if (is_elected())
                    request(first_of(row_tile), (uint32_t)(count_of(row_tile) * row_bytes & -GPULOSSI_VECTOR_BYTES));
                advance(producer);
                in_flight++;
            }
            if (++next_in_tile == run)
                next_in_tile = 0, next_tile++;
        }
    }
    __device__ __forceinline__ void request(int64_t first, uint32_t bytes) const {
        if (A == 1) {
            arrival(producer.stage)->request(ring_base() + stage_offset(producer), loss.array(0, first), bytes);
            return;
        }
        uint32_t at = arrival(producer.stage)->address();
        uint32_t to = (uint32_t)__cvta_generic_to_shared(ring_base() + stage_offset(producer));
        Arrival::expect(at, A * bytes);
        if (bytes != 0)
#pragma unroll
            for (int a = 0; a < A; a++)
                Arrival::copy(at, to + (uint32_t)(a * ring_bytes), loss.array(a, first), bytes);
    }

    /* A lane's part of row `row` of a stage. A row with an odd number of 16-bit classes shares one word with a
     * neighbouring row. Its first or last class is then the `lone` element. */
    template <int bytes> struct Part {
        Pieces<bytes, A> pieces;
        Bits *lone;
        int first_class; /* of this lane's first piece */

        __device__ __forceinline__ Part(int stage_offset, int row, bool live, const RowTiles &of) {
            int first = row * of.row_bytes;
            lone = NULL;
            if (bytes == 4 && kElements == 2 && (of.classes & 1)) {
                if (of.rank == 0 && live)
                    lone = (Bits *)(ring_base() + stage_offset + first) + (first & 2 ? 0 : of.classes - 1);
                first = (first + 2) & ~3;
            }
            pieces.start = stage_offset + first + of.rank * bytes;
            first_class = (first - row * of.row_bytes + of.rank * bytes) / (int)sizeof(Bits);
            pieces.twist = of.swizzle;
            pieces.row_stride = of.ring_bytes;
            pieces.step = of.size * bytes;
            pieces.count = live ? of.pieces >> of.shift : 0;
            pieces.more = live && of.rank < (of.pieces & (of.size - 1));
            pieces.most = (of.pieces + of.size - 1) >> of.shift;
        }
    };

    /* Copies the elements of the last row tile that do not fill a vector. */
    DEVICE void copy_tail(Bits *to, const Bits *from, int bytes, int lane) {
        int whole = (bytes & -GPULOSSI_VECTOR_BYTES) / (int)sizeof(Bits);
        if (whole + lane < bytes / (int)sizeof(Bits))
            to[whole + lane] = from[whole + lane];
    }
    /* Waits until the row tile has arrived in the consumer's stage, for all lanes. */
    __device__ __forceinline__ void acquire(int64_t first, int bytes) const {
        if (bytes % GPULOSSI_VECTOR_BYTES != 0)
#pragma unroll
            for (int a = 0; a < A; a++)
                copy_tail((Bits *)(ring_base() + stage_offset(consumer) + a * ring_bytes), loss.array(a, first), bytes,
                          lane);
        Arrival::wait_by_warp(arrival(consumer.stage)->address(), consumer.parity);
        __syncwarp();
    }
    /* Releases the consumer's stage, which no lane needs any more. */
    __device__ __forceinline__ void release() {
        advance(consumer);
        in_flight--;
    }
    /* Stores the gradients, which are in the stage of the first array. */
    __device__ __forceinline__ void store_tile(Bits *gradients, int bytes) const {
        uint4 *to = (uint4 *)gradients;
        const uint4 *from = (const uint4 *)(ring_base() + stage_offset(consumer));
#pragma unroll 4
        for (int v = lane; v < bytes / GPULOSSI_VECTOR_BYTES; v += kLanes)
            __stcs(&to[v], from[v]);
        copy_tail((Bits *)to, (const Bits *)from, bytes, lane);
    }

    /* Runs all rows of a kernel. Each thread has totals of its own, and end() reduces them. */
    template <class Rows> __device__ __forceinline__ void add_up(Rows &rows) const {
        typedef typename Loss::Totals Totals;
        /* In shared memory: the totals are used rarely, and would take registers. */
        __shared__ Totals totals[kThreads];
        totals[threadIdx.x] = Totals::zero();
        rows.all(totals[threadIdx.x]);
        end<kThreads>(loss, loss.scratch(), totals);
    }
};

#endif
