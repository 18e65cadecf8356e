/* Short packed rows, on GPUs that copy stretches of memory by themselves. Rows that follow each other are one stretch of
 * memory, whatever the alignment of each: a warp has a ring of slots for stretches of whole rows, and the next ones come
 * while it works on one. In its slot a row belongs to one lane or to a few. Where gradients are written, they take the place
 * of logits there, and the stretch goes out as it came, in whole vectors. */
#ifndef GPULOSSI_PACKED_PIPELINE_CUH
#define GPULOSSI_PACKED_PIPELINE_CUH

#include "../device/tile_scheduler.cuh"
#include "../device/smem_words.cuh"

/* Each warp of a block of kThreads has a ring of slots for each array of a loss, with room for so many bytes together: of
 * kSteps slots, or of as many as stretches leave room for. */
template <class Loss, int kThreads, int kSteps> class Stretches {
  protected:
    typedef typename Loss::Params Params;
    typedef typename Loss::Element::Bits Bits;
    enum {
        A = Loss::kArrays,
        kTeams = kThreads / kLanes,
        kRun = 4,
        kElements = 4 / sizeof(Bits) /* of a word */
    };

    const Params &p;
    Loss loss;
    int lane, rank, size, shift;           /* this lane, its number among those of a row, their count and its log2 */
    int classes, row_bytes, pieces, twist; /* of a row; and its vectors or words, and their order for this lane */
    int rows, last_rows;                   /* of a stretch, and of the last */
    int ring, room;                        /* the bytes of all slots of an array, and of one */
    int steps;
    uint32_t stretches, run; /* in all, and those of a tile */
    Ahead queue;
    struct Turn { /* a slot, and the parity of the phase that a stretch comes there in */
        int place;
        uint32_t parity;
    } asked, freed; /* of the next stretch to ask for, and of the one to work on */
    int under_way;  /* stretches between these */
    int next;       /* what is asked for next: of the tiles that are known, ... */
    uint32_t visit; /* ... and of the stretches of one */

    DEVICE uint32_t run_of(uint32_t stretches) { return stretches > 16 * kRun * kTeams * gridDim.x ? kRun : 1; }

    __device__ __forceinline__ explicit Stretches(const Params &p)
        : p(p), loss(p), lane((int)(threadIdx.x % kLanes)), rank((int)(threadIdx.x & (p.rows.group - 1))),
          size((int)p.rows.group), shift(__popc(p.rows.group - 1)), classes((int)p.rows.classes),
          row_bytes(classes * (int)sizeof(Bits)), rows((int)p.rows.slots), ring((int)p.rows.ring_bytes),
          steps(max(1, min(ring / (rows * row_bytes), (int)kSteps))),
          stretches((uint32_t)((p.rows.rows + rows - 1) / rows)), run(run_of(stretches)),
          queue(p.rows.scratch, (stretches + run - 1) / run, blockIdx.x * kTeams + threadIdx.x / kLanes,
                gridDim.x * kTeams, run < kSteps ? 3 : 2, 14),
          asked{0, 0}, freed{0, 0}, under_way(0), next(0), visit(0) {
        room = ring / steps & -kLine;
        last_rows = (int)(p.rows.rows - (int64_t)(stretches - 1) * rows);
        bool even = p.rows.flags & GPULOSSI_EVEN;
        int all = even ? row_bytes / GPULOSSI_VECTOR_BYTES : row_bytes / 4;
        /* Lanes that have different rows take the vectors of each in an order of their own, so that they do not meet in
         * the same banks: at addresses with some bits changed, which stay in the row where its bytes are a power of 2. */
        int swaps = even && (all & (all - 1)) == 0 ? (((lane & 7) >> shift) * min(all, 8)) >> 3 : 0;
        pieces = all;
        twist = swaps * size * GPULOSSI_VECTOR_BYTES;
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < kSteps; i++)
                arrival(i)->begin();
        __syncwarp();
    }

    DEVICE Arrival *arrival(uint32_t place) {
        __shared__ Arrival arrivals[kTeams][kSteps];
        return &arrivals[threadIdx.x / kLanes][place];
    }
    __device__ __forceinline__ void advance(Turn &turn) const {
        if (++turn.place == steps)
            turn.place = 0, turn.parity ^= 1;
    }
    DEVICE char *slots() {
        return (char *)stash_of_block();
    }
    /* Where in those of the block a slot begins, of the first array. */
    __device__ __forceinline__ int slot(const Turn &turn) const {
        return (int)(threadIdx.x / kLanes) * A * ring + turn.place * room;
    }

    __device__ __forceinline__ int64_t first_of(uint32_t stretch) const {
        return (int64_t)stretch * rows;
    }
    __device__ __forceinline__ int count_of(uint32_t stretch) const {
        return stretch + 1 == stretches ? last_rows : rows;
    }

    /* Asks for as many stretches of the tiles that are known as there is room for. Nobody in the warp uses what was
     * freed; `writes`: it may have been written. */
    __device__ __forceinline__ void ask(bool writes) {
        if (writes)
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
#pragma unroll 1
        while (under_way < steps && next < queue.known) {
            uint32_t tile = queue.after(next), stretch = tile * run + visit;
            if (tile >= queue.tiles)
                return;
            if (stretch < stretches) {
                if (lane == 0)
                    request(first_of(stretch), (uint32_t)(count_of(stretch) * row_bytes & -GPULOSSI_VECTOR_BYTES));
                advance(asked);
                under_way++;
            }
            if (++visit == run)
                visit = 0, next++;
        }
    }
    __device__ __forceinline__ void request(int64_t first, uint32_t bytes) const {
        if (A == 1) {
            arrival(asked.place)->request(slots() + slot(asked), loss.array(0, first), bytes);
            return;
        }
        uint32_t at = arrival(asked.place)->address();
        uint32_t to = (uint32_t)__cvta_generic_to_shared(slots() + slot(asked));
        Arrival::expect(at, A * bytes);
        if (bytes != 0)
#pragma unroll
            for (int a = 0; a < A; a++)
                Arrival::copy(at, to + (uint32_t)(a * ring), loss.array(a, first), bytes);
    }

    /* A lane's part of row `row` of a slot. Where a row of 16 bits has an odd number of classes, one of them is in a word
     * with one of another row: the first class or the last. */
    template <int bytes> struct Part {
        Pieces<bytes, A> pieces;
        Bits *lone;

        __device__ __forceinline__ Part(int slot, int row, bool live, const Stretches &of) {
            int first = row * of.row_bytes;
            lone = NULL;
            if (bytes == 4 && kElements == 2 && (of.classes & 1)) {
                if (of.rank == 0 && live)
                    lone = (Bits *)(slots() + slot + first) + (first & 2 ? 0 : of.classes - 1);
                first = (first + 2) & ~3;
            }
            pieces.start = slot + first + of.rank * bytes;
            pieces.twist = of.twist;
            pieces.apart = of.ring;
            pieces.step = of.size * bytes;
            pieces.count = live ? of.pieces >> of.shift : 0;
            pieces.more = live && of.rank < (of.pieces & (of.size - 1));
        }
    };

    /* What the stretch at the end has beside whole vectors. */
    DEVICE void copy_rest(Bits *to, const Bits *from, int bytes, int lane) {
        int whole = (bytes & -GPULOSSI_VECTOR_BYTES) / (int)sizeof(Bits);
        if (whole + lane < bytes / (int)sizeof(Bits))
            to[whole + lane] = from[whole + lane];
    }
    /* The stretch that was asked for first is there afterwards, for all lanes. */
    __device__ __forceinline__ void receive(int64_t first, int bytes) const {
        if (bytes % GPULOSSI_VECTOR_BYTES != 0)
#pragma unroll
            for (int a = 0; a < A; a++)
                copy_rest((Bits *)(slots() + slot(freed) + a * ring), loss.array(a, first), bytes, lane);
        arrival(freed.place)->wait(freed.parity);
        __syncwarp();
    }
    /* Nobody needs what is left of that stretch. */
    __device__ __forceinline__ void release() {
        advance(freed);
        under_way--;
    }
    /* From the place of the first array. */
    __device__ __forceinline__ void send(Bits *gradients, int bytes) const {
        uint4 *to = (uint4 *)gradients;
        const uint4 *from = (const uint4 *)(slots() + slot(freed));
#pragma unroll 4
        for (int v = lane; v < bytes / GPULOSSI_VECTOR_BYTES; v += kLanes)
            __stcs(&to[v], from[v]);
        copy_rest((Bits *)to, (const Bits *)from, bytes, lane);
    }

    /* All rows of a kernel: each thread adds up its own, and that is brought together. */
    template <class Rows> __device__ __forceinline__ void add_up(Rows &rows) const {
        typedef typename Loss::Totals Totals;
        __shared__ Totals totals[kThreads]; /* seldom touched, so they take no registers */
        totals[threadIdx.x] = Totals::zero();
        rows.all(totals[threadIdx.x]);
        end<kThreads>(loss, loss.scratch(), totals);
    }
};

#endif
