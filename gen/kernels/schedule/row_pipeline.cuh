/* The pipeline of rows, for GPUs with bulk copies. Each warp has a ring of stages in shared memory. It copies its parts
 * of the next rows as soon as a stage is released. Memory is then busy while rows are reduced and written. A warp's
 * stages are its own: no block barrier comes between acquiring and releasing one.
 *
 * If the gradient needs the state of the whole row, the last stages of a row stay in shared memory until they are
 * written. Earlier stages, if there are any, are copied once more. */
#ifndef GPULOSSI_ROW_PIPELINE_CUH
#define GPULOSSI_ROW_PIPELINE_CUH

#include "../device/any_dtype.cuh"
#include "../device/class_bits.cuh"
#include "../device/tile_scheduler.cuh"
#include "team.cuh"

template <class Loss> class RowPipeline {
    typedef typename Loss::Element E;
    typedef typename Loss::N N;
    typedef typename Loss::Bits Bits;
    typedef typename Loss::Params Params;
    typedef typename Loss::Row Row;
    typedef typename Loss::RowInput RowInput;
    typedef typename Loss::State State;
    typedef typename Loss::Totals Totals;
    enum {
        W = Width<E>::value,
        /* Vectors of a thread in a stage, in a short stage, and in a long stage of two arrays. */
        kStageVectors = GPULOSSI_RING_VECTORS,
        kShortVectors = kStageVectors / 2,
        kLongVectors = GPULOSSI_LONG_VECTORS,
        kSlots = Loss::kClusterSlots, /* vectors of a thread of a cluster in all stages */
        kMaxStages = 2 * GPULOSSI_RING_STEPS,
        kMaxRows = 4,
        /* Sixteenths of the tiles that are static, if a warp has a row and only reads it. */
        kStaticShare = sizeof(Bits) == 4 ? 14 : 12,
        kWeightsOfWarp = kLanes * W * (int)sizeof(N), /* bytes of the weights of a vector of each lane */
        kMatrixRowBytes = GPULOSSI_BLOCK_WEIGHTS * 4 / W
    };

    typedef Few<typename ResultArray<E>::S, W> Weights; /* of a vector's classes */

    /* A stage of the ring, and the phase parity of its barrier. */
    struct Cursor {
        int stage;
        uint32_t phase;
        __device__ __forceinline__ void advance() {
            if (++stage == stages()) {
                stage = 0;
                phase ^= 1;
            }
        }
    };
    /* A row that is reduced and not yet finished. */
    struct Deferred {
        uint32_t row;
        typename Loss::DeferredRow of_row;
        typename Loss::Outcome outcome;
    };
    const Params &p;
    Loss loss;
    Team team;
    TileScheduler<kMaxRows, Loss::kHasClasses> rows;
    int steps;                /* steps of a row, with a stage each */
    bool has_lines;           /* vectors are counted from the start of a line, and not from the first whole one */
    int retained, visits;     /* steps of a row whose stages are retained; steps that are copied, counting repeats */
    Cursor copied, released;  /* next stage to copy to, and next stage to release */
    int in_ring;              /* stages between these two */
    uint32_t smem_ring;       /* address of this warp's stages */
    uint32_t smem_arrivals;   /* address of the barriers of these stages */
    int next, visit;          /* next copy: index among the known rows, and step of that row */
    Row of_row[kMaxRows - 1]; /* known rows but the last */
    RowInput last_input;      /* loads in flight of the last known row */
    uint32_t values_number;   /* earlier reductions of values */

    /* A stage of two arrays has half of the vectors for each, or a quarter if elements of the second one are twice as
     * large. A long stage then has a third. Fewer steps take fewer instructions besides their vectors. */
    DEVICE int second_bytes() {
        return !has_format(GPULOSSI_FORMAT_TWO_ARRAYS)                           ? 0
               : has_format(GPULOSSI_FORMAT_F32 << GPULOSSI_FORMAT_TARGET_SHIFT) ? W * 4
                                                                                 : (int)GPULOSSI_VECTOR_BYTES;
    }
    DEVICE bool stages_weights() {
        if constexpr (Loss::kHasClasses)
            return Loss::stages_weights();
        return false;
    }
    /* A number for each length of a stage. The assembler does not divide one of several constants. */
    template <int of_long, int of_short, int of_others> DEVICE int by_length() {
        return has_format(GPULOSSI_FORMAT_LONG_STAGES)    ? of_long
               : has_format(GPULOSSI_FORMAT_SHORT_STAGES) ? of_short
                                                          : of_others;
    }
    DEVICE int vectors() {
        return second_bytes() == 0 ? by_length<kLongVectors, kShortVectors, kStageVectors>()
               : second_bytes() == GPULOSSI_VECTOR_BYTES
                   ? by_length<kLongVectors / 2, kShortVectors / 2, kStageVectors / 2>()
                   : by_length<kLongVectors / 3, kShortVectors / 4, kStageVectors / 4>();
    }
    DEVICE int stages() {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            return by_length<kSlots / kLongVectors, kSlots / kShortVectors, kSlots / kStageVectors>();
        const uint32_t with_two = GPULOSSI_FORMAT_SMEM_WEIGHTS | GPULOSSI_FORMAT_LONG_STAGES;
        const int all = Loss::kHasEntries || has_format(with_two) ? 2 : (int)GPULOSSI_RING_STEPS;
        if (has_format(GPULOSSI_FORMAT_THREE_BLOCKS))
            return has_format(GPULOSSI_FORMAT_SHORT_STAGES) ? all : 2;
        return has_format(GPULOSSI_FORMAT_SHORT_STAGES) ? 2 * all : all;
    }
    DEVICE int stage_bytes() { return kLanes * vectors() * (GPULOSSI_VECTOR_BYTES + second_bytes()); }

    /* The number of a row's vector in the vectors of its block. */
    DEVICE int in_block(int v) {
        const int part = vectors() * kLanes; /* of a warp's step */
        return has_format(GPULOSSI_FORMAT_CLUSTER) ? v / part / Team::blocks() * part + v % part : v;
    }
    /* A thread's vectors of a stage. Vectors `begin` to `end` are whole vectors of the row. */
    struct Side {
        const Cut<E> &cut;
        int64_t row;
        uint32_t stage;   /* address of this lane's vector 0 */
        uint32_t weights; /* address of the weights of its classes, if they are in shared memory */
        int v;            /* vector 0 in the row */
        int begin, end;
        /* The largest `end` of a lane. Lanes with different bounds execute both an unrolled loop and its remainder. */
        int of_warp;

        /* A few vectors, from vector `first` on. */
        template <int n> __device__ __forceinline__ Side part(int first) const {
            Side of = *this;
            of.stage += (uint32_t)(first * kLanes * GPULOSSI_VECTOR_BYTES);
            of.v += first * kLanes;
            of.begin = max(begin - first, 0);
            of.end = min(end - first, n);
            of.of_warp = min(of_warp - first, n);
            return of;
        }
        __device__ __forceinline__ int vector(int k) const { return v + k * kLanes; }
        __device__ __forceinline__ int64_t first(int k) const { return cut.first(vector(k)); }
        __device__ __forceinline__ int count(int k) const { return k >= begin && k < end ? (int)W : 0; }
        __device__ __forceinline__ bool is_inside(int, int) const { return true; }
        enum { kHasPartialVectors = 0, kExcludesEntries = 0 };
        enum { kElements = W }; /* of a vector, which may be in the row */
        DEVICE bool is_edge() { return false; }
        __device__ __forceinline__ int position(int k) const { return (in_block(v) + k * kLanes) * W; }
        __device__ __forceinline__ int64_t row_number() const { return row; }
        /* Whether the arrays of the soft targets are in shared memory. */
        DEVICE bool is_staged() { return has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS | GPULOSSI_FORMAT_TWO_ARRAYS); }
        __device__ __forceinline__ int64_t start(int64_t stride) const { return row * stride; }
        __device__ __forceinline__ int64_t start_of_gradient(int64_t stride) const { return row * stride; }
        __device__ __forceinline__ Vector<E> load(int k) const {
            Vector<E> x;
            Shared::load<4>(stage + (uint32_t)(k * kLanes * GPULOSSI_VECTOR_BYTES), x.word);
            return x;
        }
        __device__ __forceinline__ Vector<E> load_or_zero(int k) const {
            Vector<E> x = {};
            if (count(k) > 0)
                x = load(k);
            return x;
        }
        template <class Array> __device__ __forceinline__ void read(const Array &array, int k, N (&y)[W]) const {
            const int64_t c = first(k);
            if (!has_format(GPULOSSI_FORMAT_RAGGED) || array.is_aligned(c)) {
                array.read_vector(c, y);
                return;
            }
#pragma unroll 1
            for (int i = 0; i < W; i++)
                shift_in(y, array.template read<N>(c + i));
        }
        /* Whether load_target() has the vector of a staged target, which is of the type of the first array. */
        DEVICE bool has_vectors_of_target() {
            return second_bytes() == GPULOSSI_VECTOR_BYTES;
        }
        __device__ __forceinline__ uint32_t target_at(int k) const {
            const uint32_t lane = threadIdx.x % kLanes, second = (uint32_t)(vectors() * kLanes * GPULOSSI_VECTOR_BYTES);
            if (second_bytes() == GPULOSSI_VECTOR_BYTES)
                return stage + (uint32_t)(k * kLanes * GPULOSSI_VECTOR_BYTES) + second;
            return stage - lane * GPULOSSI_VECTOR_BYTES + second +
                   ((uint32_t)(k * kLanes) + lane) * (uint32_t)second_bytes();
        }
        __device__ __forceinline__ Vector<E> load_target(int k) const {
            Vector<E> t;
            Shared::load<4>(target_at(k), t.word);
            return t;
        }
        /* read() of an array that may be in the stage. */
        template <class Array> __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[W]) const {
            if (!has_format(GPULOSSI_FORMAT_TWO_ARRAYS))
                return read(array, k, y);
            Array::read_shared(target_at(k), y);
        }
        /* read() of an array of the classes. */
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            const int64_t c = first(k);
            if (stages_weights())
                FormatArray<E, GPULOSSI_FORMAT_TARGET_SHIFT>::read_shared(target_at(k), y);
            else if (has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS) && has_format(GPULOSSI_FORMAT_RAGGED))
                load_ragged_weights(weights + (uint32_t)(k * kLanes * 4), first_row(cut), y);
            else if (has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS))
                load_weights(weights + (uint32_t)k * kWeightsOfWarp, y);
            else if (!has_format(GPULOSSI_FORMAT_RAGGED) || array.is_aligned(c))
                array.read_vector(c, y);
            else
                array.read_between(c, cut.classes, y);
        }
        template <class Array> __device__ __forceinline__ void write(const Array &array, int k, N (&y)[W]) const {
            const int64_t c = first(k);
            if (!has_format(GPULOSSI_FORMAT_RAGGED) || array.is_aligned(c)) {
                array.write_vector(c, y);
                return;
            }
#pragma unroll 1
            for (int i = 0; i < W; i++) {
                array.write(c + i, y[0]);
                shift_in(y, y[0]);
            }
        }
    };
    /* A vector that no stage has. */
    struct InMemory : Side {
        template <class Array> __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[W]) const {
            this->read(array, k, y);
        }
    };
    /* A class of a row outside its whole vectors, as the first element of a vector. */
    struct Edge {
        int64_t row, c;
        enum { kExcludesEntries = 0 };
        enum { kElements = 1 };
        DEVICE bool is_edge() { return true; }
        /* The first lanes of the team have the edges. */
        __device__ __forceinline__ int position(int) const { return (int)(threadIdx.x % kLanes); }
        __device__ __forceinline__ int64_t row_number() const { return row; }
        __device__ __forceinline__ int64_t first(int) const { return c; }
        DEVICE int count(int) { return 1; }
        __device__ __forceinline__ bool is_inside(int, int i) const { return i == 0; }
        DEVICE bool is_staged() { return false; }
        DEVICE bool has_vectors_of_target() { return false; }
        DEVICE Vector<E> load_target(int) { return {}; }
        __device__ __forceinline__ int64_t start(int64_t stride) const { return row * stride; }
        __device__ __forceinline__ int64_t start_of_gradient(int64_t stride) const { return row * stride; }
        template <class Array, int n> __device__ __forceinline__ void read(const Array &array, int, N (&y)[n]) const {
#pragma unroll
            for (int i = 0; i < n; i++)
                y[i] = N(0);
            y[0] = array.template read<N>(c);
        }
        template <class Array, int n>
        __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[n]) const {
            read(array, k, y);
        }
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            read(array, k, y);
        }
        template <class Array, int n>
        __device__ __forceinline__ void write(const Array &array, int, const N (&y)[n]) const {
            array.write(c, y[0]);
        }
    };

    /* The threads of this block that share rows, for a loss whose rows have entries. */
    struct Sharers {
        enum { kMayHaveMore = 0 }; /* entries than registers of all threads */
        const RowPipeline &of;
        const Cut<E> cut;
        __device__ __forceinline__ int rank() const { return of.rank_in_block(); }
        __device__ __forceinline__ int size() const { return of.team.warps_in_block() * kLanes; }
        __device__ __forceinline__ void settle() const { of.team.settle(); }
        /* One block counts the entries that are no class. */
        __device__ __forceinline__ bool counts_bad() const { return of.team.rank == rank(); }
        __device__ __forceinline__ int64_t positions() const {
            return min((int64_t)(of.steps * of.team.warps_in_block() * vectors() * kLanes) * W,
                       of.p.rows.classes + 2 * kLine);
        }
        /* The position of a class among the vectors of the row that this block has. */
        __device__ __forceinline__ int position(int64_t c) const {
            const int64_t whole = min(cut.first(cut.lead), cut.classes), end = whole + (int64_t)cut.whole_vectors * W;
            if (has_format(GPULOSSI_FORMAT_RAGGED) && (c < whole || c >= end))
                return counts_bad() ? ClassBits::edge((int)(c < whole ? c : W + c - end)) : (int)ClassBits::kElsewhere;
            if (!has_format(GPULOSSI_FORMAT_CLUSTER))
                return (int)c + cut.head;
            const int v = cut.vector_of(c);
            if (v / (vectors() * kLanes) % Team::blocks() != of.team.block())
                return ClassBits::kElsewhere;
            return in_block(v) * W + cut.position_of(c);
        }
    };
    /* Memory for the bits of classes follows the stages of all warps. */
    __device__ __forceinline__ void begin_entries() {
        const Sharers sharers = {*this, cut_of(0)};
        const uint32_t bytes = GPULOSSI_CLASS_BITS_BYTES * (uint32_t)sharers.size() / blockDim.x;
        loss.begin(sharers,
                   Shared::address(stash_of_block()) + blockDim.x / kLanes * (uint32_t)(stages() * stage_bytes()) +
                       (uint32_t)team.in_block * bytes,
                   bytes);
    }

    /* Uniform registers have a longer latency. Gradients of 16 bits would take up to 1.06 times as long in cross-entropy,
     * there also with waits of whole warps, and 1.07 without logits. */
    __device__ __forceinline__ explicit RowPipeline(const Params &p)
        : p(p), loss(p),
          team(p.rows.group, !Loss::kHasClasses && (sizeof(Bits) > 2 || Loss::reduces() || !Loss::writes())),
          steps(steps_of(p, team)), has_lines(counts_lines(p, steps * step_of(team))),
          rows(p.rows.scratch, p.rows.rows, p.rows.of.tile_rows, team.number, team.count,
               !has_format(GPULOSSI_FORMAT_CLUSTER) && steps < stages() ? 4 : 3,
               Loss::writes() || team.warps > 1 ? 0 : kStaticShare),
          copied{0, 0}, released{0, 0}, in_ring(0),
          smem_ring(Shared::address(stash_of_block()) + warp_in_block() * (uint32_t)(stages() * stage_bytes())),
          smem_arrivals(arrivals_of_warp()), next(0), visit(0), values_number(0) {
        retained = repeats() ? min(steps, stages()) : 0;
        visits = retained > 0 ? 2 * steps - retained : steps;
        if (has_three_sweeps())
            visits += steps - retained;
        keep(smem_ring);
        keep(smem_arrivals);
        uint32_t count = (uint32_t)stages();
        keep(count); /* the assembler would unroll this loop */
        if (is_elected())
#pragma unroll 1
            for (uint32_t i = 0; i < count; i++)
                Arrival::begin(arrival((int)i), 1);
        __syncwarp();
    }
    /* Whether every row has a sweep for values. A row that is an exception reads them from memory. */
    DEVICE bool values_of_all() {
        if constexpr (Loss::kHasValues)
            return Loss::has_values_of_all();
        return false;
    }
    /* Whether there is more than one sweep over the stages of a row, and whether there are three. */
    DEVICE bool repeats() {
        return values_of_all() ? Loss::reduces() || Loss::writes() : Loss::reduces() && Loss::writes();
    }
    DEVICE bool has_three_sweeps() {
        return values_of_all() && Loss::reduces() && Loss::writes();
    }
    /* The step at position i of a sweep after one in the order of memory. Retained steps come first. The others follow, in
     * reverse order if a step is retained. */
    __device__ __forceinline__ int step_at(int i) const {
        if (has_format(GPULOSSI_FORMAT_ONE_STEP))
            return 0;
        return i < retained ? steps - retained + i : retained > 0 ? steps - 1 - i : i;
    }
    /* The step of a visit. */
    __device__ __forceinline__ int step_of_visit() const {
        if (has_format(GPULOSSI_FORMAT_ONE_STEP))
            return 0;
        if (has_three_sweeps()) {
            const int again = steps - retained, over = visit - steps;
            return over < 0       ? visit
                   : over < again ? step_at(retained + over)
                                  : step_at(step_at(retained + over - again));
        }
        return visit < steps ? visit : visits - 1 - visit;
    }
    /* Vectors of a step, of all warps. */
    DEVICE int step_of(const Team &team) {
        return kLanes * vectors() * team.warps;
    }
    DEVICE int steps_of(const Params &p, const Team &team) {
        const int step = step_of(team);
        return has_sweeps() ? ((int)((uint32_t)p.rows.classes / W) + step - 1) / step : 0;
    }
    DEVICE bool has_sweeps() {
        return Loss::reduces() || Loss::writes() || values_of_all();
    }
    /* The steps of a sweep, as a constant in calls whose rows have one step. */
    __device__ __forceinline__ int sweep_steps() const {
        return !has_format(GPULOSSI_FORMAT_ONE_STEP) ? steps : has_sweeps() ? 1 : 0;
    }
    /* Whether the stage of a step is released after a sweep in the order of memory, or after one for values. */
    __device__ __forceinline__ bool is_released(int step) const {
        return has_format(GPULOSSI_FORMAT_ONE_STEP) ? !repeats() : step < steps - retained;
    }
    __device__ __forceinline__ bool is_released_after_values(int i) const {
        return has_format(GPULOSSI_FORMAT_ONE_STEP) ? !Loss::writes() : i < steps - (Loss::writes() ? retained : 0);
    }
    /* Whether vectors are counted from the start of a line, so that the source and the destination of a copy begin on
     * lines. Vectors of short rows are not, nor where a row would have a step more. */
    DEVICE bool counts_lines(const Params &p, int most_vectors) {
        const uint32_t of_line = kLine / (uint32_t)sizeof(Bits), classes = (uint32_t)p.rows.classes;
        uint64_t begins = (uint64_t)Loss::first_input(p) | (uint64_t)Loss::stride_of_input(p) * sizeof(Bits);
        if (has_even_weights() || has_format(GPULOSSI_FORMAT_NO_LINES))
            begins = 0;
        return (begins % kLine != 0) & ((classes + of_line - 1) / W <= (uint32_t)most_vectors);
    }

    /* ---- the ring of a warp ---- */

    DEVICE uint32_t warp_in_block() {
        return threadIdx.x / kLanes;
    }
    __device__ __forceinline__ int lane() const {
        return team.rank % kLanes;
    }
    /* The rank of this thread in the threads of its block that share a row. */
    __device__ __forceinline__ int rank_in_block() const {
        return has_format(GPULOSSI_FORMAT_CLUSTER) ? (int)threadIdx.x : team.rank;
    }
    /* The address of the barriers of this warp. */
    DEVICE uint32_t arrivals_of_warp() {
        __shared__ Arrival arrivals[Team::kMaxWarps][kMaxStages];
        return arrivals[warp_in_block()][0].address();
    }
    __device__ __forceinline__ uint32_t arrival(int stage) const {
        /* A thread of a wide block has no register for the address. */
        return (has_format(GPULOSSI_FORMAT_WIDE) ? arrivals_of_warp() : smem_arrivals) +
               (uint32_t)(stage * (int)sizeof(Arrival));
    }
    __device__ __forceinline__ uint32_t smem_stage(int stage) const {
        return smem_ring + (uint32_t)(stage * stage_bytes());
    }
    /* ---- class weights in shared memory, after the stages of all warps ---- */

    /* Whether a vector has the same classes in every row. */
    DEVICE bool has_even_weights() {
        return has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS) && !has_format(GPULOSSI_FORMAT_RAGGED);
    }
    DEVICE uint32_t smem_weights() {
        return Shared::address(stash_of_block()) + (uint32_t)(GPULOSSI_BLOCK / kLanes * stages() * stage_bytes());
    }
    /* The address of the weights of vector v. The vectors of 32 lanes are contiguous by fours of weights, so that the
     * lanes access different banks. */
    DEVICE uint32_t smem_even_weights(int v) {
        return smem_weights() + (uint32_t)(v / kLanes * kWeightsOfWarp + v % kLanes * GPULOSSI_VECTOR_BYTES);
    }
    /* The matrix row of the first class of every vector. The weights of ragged rows are a matrix of W rows, with class c
     * in row c % W, so that neighbouring vectors access neighbouring banks. */
    DEVICE int first_row(const Cut<E> &cut) {
        return -cut.head & (W - 1);
    }
    DEVICE uint32_t smem_column(const Cut<E> &cut, int v) {
        return smem_weights() + (uint32_t)((v - (cut.head + first_row(cut)) / W) * 4);
    }
    /* Loads from a column, and from the next one where the rows end. */
    DEVICE void load_ragged_weights(uint32_t column, int row, N (&y)[W]) {
        const uint32_t here = column + (uint32_t)(row * kMatrixRowBytes),
                       next = here + 4 - (uint32_t)(W * kMatrixRowBytes);
#pragma unroll
        for (int i = 0; i < W; i++)
            y[i] =
                __uint_as_float(Shared::bits<uint32_t>((row + i < W ? here : next) + (uint32_t)(i * kMatrixRowBytes)));
    }
    DEVICE void load_weights(uint32_t at, N (&y)[W]) {
        Weights weights;
#pragma unroll
        for (int i = 0; i < (int)Weights::words; i += 4)
            Shared::load<4>(at + (uint32_t)(i / 4 * kLanes * GPULOSSI_VECTOR_BYTES), weights.word + i);
        weights.get(y);
    }
    /* The teams of a block share the weights of the classes. All its threads call, once a launch. */
    __device__ __forceinline__ void store_weights() const {
        if (sizeof(Bits) < 8 && has_format(GPULOSSI_FORMAT_RAGGED)) /* ragged rows of doubles have none here */
            store_matrix();
        else
            store_vectors();
        __syncthreads();
    }
    __device__ __forceinline__ void store_matrix() const {
#pragma unroll 1
        for (int c = (int)threadIdx.x; c < (int)p.rows.classes; c += GPULOSSI_BLOCK)
            Shared::store(smem_weights() + (uint32_t)(c % W * kMatrixRowBytes + c / W * 4),
                          __float_as_uint(loss.class_weights().base[c]));
    }
    __device__ __forceinline__ void store_vectors() const {
#pragma unroll 1
        for (int v = (int)threadIdx.x; v < (int)(p.rows.classes / W); v += GPULOSSI_BLOCK) {
            Weights weights;
            weights.load(loss.class_weights().base + (int64_t)v * W);
#pragma unroll
            for (int i = 0; i < (int)Weights::words; i += 4)
                Shared::store<4>(smem_even_weights(v) + (uint32_t)(i / 4 * kLanes * GPULOSSI_VECTOR_BYTES),
                                 weights.word + i);
        }
    }
    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const {
        return has_format(GPULOSSI_FORMAT_ONE_STEP) ? 0 : (step * team.warps + team.warp) * vectors() * kLanes;
    }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        const bool is_even = has_format(GPULOSSI_FORMAT_NO_LINES) && !has_format(GPULOSSI_FORMAT_RAGGED);
        return has_even_weights() || is_even ? Cut<E>(0, p.rows.classes)
                                             : Cut<E>::counted(loss.logits(row), p.rows.classes, has_lines, kLine);
    }

    /* Copies steps of the known rows until no stage is free. The last known row is excluded, because its input may
     * still be in flight. Rows that are not read are not copied. No lane of the warp still uses a released stage. */
    __device__ __forceinline__ void copy_ahead() {
        __syncwarp();
#pragma unroll 1
        while (in_ring < stages() && next < rows.known - 1 && sweep_steps() > 0) {
            const uint32_t row = rows.after(next);
            if (row >= rows.rows)
                return;
            const bool is_second = next == 1 || has_format(GPULOSSI_FORMAT_CLUSTER); /* a cluster knows no more rows */
            const Row of = next == 0 ? of_row[0] : is_second ? of_row[1] : of_row[2];
            if (is_elected())
                copy(row, loss.is_read(of));
            copied.advance();
            in_ring++;
            visit++;
            const bool ends_row = (visit == visits) | has_format(GPULOSSI_FORMAT_ONE_STEP);
            visit = ends_row ? 0 : visit;
            next += ends_row;
        }
    }
    __device__ __forceinline__ void copy(int64_t row, bool reads) const {
        const Cut<E> cut = cut_of(row);
        const int v = vector(step_of_visit());
        const int first = max(v, cut.lead), end = min(v + vectors() * kLanes, cut.lead + (int)cut.whole_vectors);
        const uint32_t count = reads && end > first ? (uint32_t)(end - first) : 0;
        const uint32_t at = arrival(copied.stage);
        const uint32_t to = smem_stage(copied.stage);
        Arrival::expect(at, count * (uint32_t)(GPULOSSI_VECTOR_BYTES + second_bytes()));
        if (count == 0)
            return;
        Arrival::copy(at, to + (uint32_t)((first - v) * GPULOSSI_VECTOR_BYTES), loss.logits(row) + cut.first(first),
                      count * GPULOSSI_VECTOR_BYTES);
        if (has_format(GPULOSSI_FORMAT_TWO_ARRAYS))
            Arrival::copy(at,
                          to + (uint32_t)(vectors() * kLanes * GPULOSSI_VECTOR_BYTES + (first - v) * second_bytes()),
                          loss.second_input(row, cut.first(first)), count * (uint32_t)second_bytes());
    }
    __device__ __forceinline__ void acquire(const Cursor &at) const {
        Arrival::wait(arrival(at.stage), at.phase, !(Loss::kHasClasses && sizeof(Bits) == 2));
    }
    /* Rows of one step need no copy here, if there is a stage for each known row: the next row known has one. */
    __device__ __forceinline__ void release() {
        released.advance();
        in_ring--;
        if (!has_format(GPULOSSI_FORMAT_ONE_STEP) || stages() < kMaxRows - 1)
            copy_ahead();
    }

    /* ---- the ends of a row outside its whole vectors: a class for each of the team's first threads ---- */

    __device__ __forceinline__ int64_t edge_of(const Cut<E> &cut) const {
        if (!has_format(GPULOSSI_FORMAT_RAGGED))
            return -1;
        const int64_t whole = min(cut.first(cut.lead), cut.classes), end = whole + (int64_t)cut.whole_vectors * W;
        const int64_t c = team.rank < W ? team.rank : end + (team.rank - W);
        return team.rank < 2 * W && (team.rank < W ? c < whole : c < cut.classes) ? c : -1;
    }
    /* The stored logit of the edge. Nobody waits for it here. */
    __device__ __forceinline__ Bits logit_at_edge(uint32_t row) const {
        Bits x = 0;
        if (has_format(GPULOSSI_FORMAT_RAGGED) && row < rows.rows) {
            const int64_t c = edge_of(cut_of(row));
            if (c >= 0)
                x = loss.logits(row)[c];
        }
        return x;
    }
    __device__ __forceinline__ Vector<E> edge_vector(Bits x) const {
        Vector<E> v = filled<E>(loss.padding());
        v.replace(0, x);
        return v;
    }

    /* ---- a row ---- */

    /* Whether the vectors of all stages outside the rows stay padding. */
    DEVICE bool has_padding() {
        return !Loss::kHasEntries && has_format(GPULOSSI_FORMAT_ONE_STEP) && !has_format(GPULOSSI_FORMAT_RAGGED);
    }
    __device__ __forceinline__ void pad_stages() const {
        const Vector<E> padding = filled<E>(loss.padding());
#pragma unroll 1
        for (int v = (int)(p.rows.classes / W) + lane(); v < vectors() * kLanes; v += kLanes)
#pragma unroll 1
            for (int i = 0; i < stages(); i++)
                Shared::store<4>(smem_stage(i) + (uint32_t)(v * GPULOSSI_VECTOR_BYTES), padding.word);
        __syncwarp();
    }
    /* Loads the n vectors of a thread from vector `first` of a stage on. Vectors outside the row are padding. */
    template <int n> __device__ __forceinline__ void load_stage(const Side &side, int first, Vector<E> (&x)[n]) const {
        if (has_padding() || (side.begin <= first && side.end >= first + n)) {
#pragma unroll
            for (int k = 0; k < n; k++)
                x[k] = side.load(first + k);
        } else {
#pragma unroll
            for (int k = 0; k < n; k++) {
                x[k] = filled<E>(loss.padding());
                if (side.count(first + k) > 0)
                    x[k] = side.load(first + k);
            }
        }
    }
    /* Adds a stage to a loss that needs only sums. All n vectors of a thread are in registers at once. */
    template <int n> __device__ __forceinline__ void accumulate_sums(const Side &side, State &state) const {
        Vector<E> x[n];
        load_stage(side, 0, x);
        if constexpr (Loss::kHasBasicRows || Loss::kHasEntries)
            loss.accumulate_sums(state, x, side);
    }
    /* Whether all vectors of a stage would not fit in the registers of a wide block. */
    DEVICE bool sums_halves() {
        if constexpr (Loss::kHasBasicRows)
            return has_format(GPULOSSI_FORMAT_WIDE) && (sizeof(Bits) == 2 || Loss::finds_best());
        return false;
    }
    __device__ __forceinline__ N highest_of_half(const Side &side, int first) const {
        Vector<E> x[kStageVectors / 2];
        load_stage(side, first, x);
        return loss.highest_of(x);
    }
    __device__ __forceinline__ void accumulate_edge(const Row &r, State &state, const Vector<E> &at_edge,
                                                    const Edge &side) const {
        if constexpr (Loss::kHasBasicRows) {
            loss.accumulate_alone(state, at_edge, side);
        } else if constexpr (Loss::kHasEntries) {
            Vector<E> x[1] = {at_edge};
            loss.accumulate_sums(state, x, side);
        } else {
            loss.template accumulate<Loss::kExact>(r, state, at_edge, side);
        }
    }
    /* Adds a stage with every option, vector by vector, once the maximum of all is known. */
    __device__ __forceinline__ void accumulate(Row &r, const Side &side, State &state) const {
        if constexpr (Loss::kHasBasicRows) {
            if constexpr (sizeof(Bits) == 8)
                if (Loss::adds_together())
                    return accumulate_doubles(side, state);
            N highest = highest_of_half(side, 0);
            if (vectors() > kShortVectors)
                highest = larger(highest, highest_of_half(side, kShortVectors));
            loss.raise(state, highest);
            auto best = loss.highest_before(state);
            auto batch = loss.batch_of(state);
#pragma unroll 1
            for (int k = side.begin; k < side.end; k++)
                loss.accumulate(state, batch, best, side.load(k), side, k);
            loss.close(state, batch, side.begin, side.end, 1, [&](int) { return side; });
            loss.find_best(state, best, side.begin, side.end, 1, [&](int) { return side; });
        } else if constexpr (!Loss::kHasEntries) {
            loss.accumulate_stage(r, state, side);
        }
    }
    /* accumulate() of doubles, two vectors at once. */
    __device__ __forceinline__ void accumulate_doubles(const Side &side, State &state) const {
        int k = side.begin;
#pragma unroll 1
        for (; k + 1 < side.end; k += 2) {
            const Vector<E> x[2] = {side.load(k), side.load(k + 1)};
            loss.accumulate_together(state, x, side, k, 1);
        }
        if (k < side.end) {
            const Vector<E> x[1] = {side.load(k)};
            loss.accumulate_together(state, x, side, k, 1);
        }
    }
    __device__ __forceinline__ Side side_of(const Cut<E> &cut, int64_t row, int step, const Cursor &at) const {
        const int v = vector(step) + lane(), left = cut.lead + (int)cut.whole_vectors - v;
        const Side side = {cut,
                           row,
                           smem_stage(at.stage) + (uint32_t)lane() * GPULOSSI_VECTOR_BYTES,
                           has_format(GPULOSSI_FORMAT_RAGGED) ? smem_column(cut, v) : smem_even_weights(v),
                           v,
                           v < cut.lead ? 1 : 0, /* fewer than 32 vectors come before the first whole one */
                           min(vectors(), (left + kLanes - 1) >> kLaneShift),
                           min(vectors(), (left + lane() + kLanes - 1) >> kLaneShift)};
        return side;
    }
    __device__ __forceinline__ void reduce(const Cut<E> &cut, int64_t row, Row &r, bool reads, State &state) {
        Cursor at = released;
#pragma unroll 1
        for (int step = 0; step < sweep_steps(); step++, at.advance()) {
            const Side side = side_of(cut, row, step, at);
            acquire(at);
            if (reads) {
                if (!Loss::sums_only())
                    accumulate(r, side, state);
                else if (sizeof(Bits) == 8)
#pragma unroll 1
                    for (int k = side.begin; k < side.end; k += 2)
                        accumulate_sums<2>(side.template part<2>(k), state);
                else if (vectors() == kShortVectors)
                    accumulate_sums<kShortVectors>(side, state);
                else if (!sums_halves())
                    accumulate_sums<kStageVectors>(side, state);
                else
#pragma unroll 1
                    for (int first = 0; first < kStageVectors; first += kShortVectors)
                        accumulate_sums<kShortVectors>(side.template part<kShortVectors>(first), state);
            }
            if (is_released(step))
                release();
            if (has_format(GPULOSSI_FORMAT_ONE_STEP))
                break;
        }
    }
    /* Completes a row whose softmax is reduced, with the values of its entries. */
    __device__ __forceinline__ void reduce_entries(int64_t row, bool reads, const Sharers &sharers, State &state) {
        uint32_t no_tile = 0;
        loss.complete(state);
        if (!Loss::may_have_values())
            return;
        if (reads)
            loss.add_values(state, row, sharers);
        team.template reduce<Cluster::kSums>(state.values, false, no_tile, 0, values_number++);
    }
    /* Adds up the values of a row by stages. */
    template <class Sides, class Values>
    __device__ __forceinline__ void add_stages(const Cut<E> &cut, int64_t row, bool reads, const Sides &sides,
                                               Values &values) {
        Cursor at = released;
#pragma unroll 1
        for (int i = 0; i < sweep_steps(); i++, at.advance()) {
            const Side side = side_of(cut, row, Loss::reduces() ? step_at(i) : i, at);
            acquire(at);
            if (reads)
#pragma unroll 1
                for (int k = side.begin; k < side.end; k++)
                    loss.add_values(values, sides, side.load(k), side, k);
            if (is_released_after_values(i))
                release();
            if (has_format(GPULOSSI_FORMAT_ONE_STEP))
                break;
        }
    }
    /* A row of which no stage is left. */
    template <class Sides, class Values>
    __device__ __forceinline__ void add_memory(const Cut<E> &cut, int64_t row, const Sides &sides,
                                               Values &values) const {
        const int end = cut.lead + (int)cut.whole_vectors;
#pragma unroll 1
        for (int first = cut.lead; first < end; first += kLanes * team.warps) {
            const int v = first + team.rank;
            if (v < end) {
                const InMemory side = {{cut, row, 0, 0, v, 0, 1, 1}};
                loss.add_logits(values, sides, load_vector<E, kRead_once>(loss.logits(row) + cut.first(v)), side, 0);
            }
        }
    }
    __device__ __forceinline__ void reduce_values(const Cut<E> &cut, int64_t row, const Row &r, bool reads,
                                                  Bits at_edge, State &state) {
        if (!values_of_all() && !(Loss::may_have_values() && uniform(reads && loss.has_values(r, state))))
            return;
        const typename Loss::Sides sides = loss.sides_of(r, state);
        const int64_t edge = edge_of(cut);
        state.values = Loss::Values::empty();
        uint32_t no_tile = 0;
        if (values_of_all())
            add_stages(cut, row, reads, sides, state.values);
        else
            add_memory(cut, row, sides, state.values);
        if (edge >= 0 && reads) {
            const Edge side = {row, edge};
            loss.add_values(state.values, sides, edge_vector(at_edge), side, 0);
        }
        team.template reduce<Cluster::kSums>(state.values, false, no_tile, 0, values_number++);
    }
    __device__ __forceinline__ void write(const Cut<E> &cut, int64_t row, bool reads, const Row &r, State &state,
                                          Bits at_edge) {
        typename Loss::Gradient g = loss.gradient(row, r, state);
        const int target = r.target_class >= 0 ? cut.vector_of(r.target_class) : -1,
                  target_position = cut.position_of(r.target_class);
        const int64_t edge = edge_of(cut);
        const bool writes_zeros = !reads || g.is_zero;
        const bool fits = !has_format(GPULOSSI_FORMAT_RAGGED) || loss.gradients_of(row).is_aligned(cut.first(0));
        if (edge >= 0) {
            const Edge side = {row, edge};
            if (writes_zeros)
                loss.write_zeros(side, 0);
            else
                loss.write(g, r, edge_vector(at_edge), side, 0, edge == r.target_class ? 0 : -1);
        }
#pragma unroll 1
        for (int i = 0; i < sweep_steps(); i++) {
            const Side side = side_of(cut, row, has_three_sweeps() ? step_at(step_at(i)) : step_at(i), released);
            acquire(released);
            if (writes_zeros) {
#pragma unroll 1
                for (int k = side.begin; k < side.end; k++)
                    loss.write_zeros(side, k);
            } else if (Loss::kHasEntries && g.is_fast && fits) {
                if constexpr (Loss::kHasEntries) {
                    const typename Loss::Gradients gradients = loss.gradients_of(row);
#pragma unroll 4
                    for (int k = 0; k < side.of_warp; k++) {
                        N y[W];
                        loss.fast_gradients(g, side.load_or_zero(k), y);
                        if (side.count(k) > 0)
                            gradients.write_vector(side.first(k), y);
                    }
                }
            } else if (Loss::is_basic() && g.is_fast && fits) {
                if constexpr (Loss::kHasBasicRows && sizeof(Bits) == 8) {
                    write_doubles(g, r, side, target, target_position);
                } else if constexpr (Loss::kHasBasicRows) {
                    const typename Loss::Gradients gradients = loss.gradients_of(row);
#pragma unroll 4
                    for (int k = 0; k < side.of_warp; k++)
                        loss.write_fast(g, r, side.load_or_zero(k), gradients, side.first(k),
                                        side.vector(k) == target ? target_position : -1, side.count(k) > 0);
                }
            } else {
#pragma unroll 1
                for (int k = side.begin; k < side.end; k++)
                    loss.write(g, r, side.load(k), side, k, side.vector(k) == target ? target_position : -1);
            }
            release();
            if (has_format(GPULOSSI_FORMAT_ONE_STEP))
                break;
        }
        if constexpr (Loss::kHasEntries)
            if (!writes_zeros)
                loss.defer_entries(g, row);
        if constexpr (Loss::kHasValues && !Loss::kHasEntries)
            if (Loss::sums_while_writing()) {
                uint32_t no_tile = 0;
                state.values.f = g.f;
                team.template reduce<Cluster::kSums>(state.values, false, no_tile, 0, values_number++);
            }
    }

    /* Writes the gradients of a stage of doubles, two vectors at once. */
    __device__ __forceinline__ void write_doubles(const typename Loss::Gradient &g, const Row &r, const Side &side,
                                                  int target, int target_position) const {
        const typename Loss::Gradients gradients = loss.gradients_of(side.row);
#pragma unroll 1
        for (int k = 0; k < side.end; k += 2) { /* an even k, so that vector k + 1 is of this stage */
            const Vector<E> x[2] = {side.load_or_zero(k), side.load_or_zero(k + 1)};
            N y[2][W];
            loss.fast_gradients(g, x, y);
            int of_target = -1; /* the vector with the target */
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (side.count(k + i) > 0) {
                    gradients.write_vector(side.first(k + i), y[i]);
                    of_target = side.vector(k + i) == target ? i : of_target;
                }
            if (Loss::has_index() && of_target >= 0) {
                const N logit = of_target == 0 ? x[0].find(target_position) : x[1].find(target_position);
                gradients.write(r.target_class, loss.target_gradient(g, r, logit));
            }
        }
    }

    __device__ __forceinline__ RowInput fetch(uint32_t row) const {
        RowInput none = {};
        if constexpr (Loss::kHasEntries)
            return row < rows.rows ? loss.fetch(row, Sharers{*this, {}}) : none;
        else
            return row < rows.rows ? loss.fetch(row, lane()) : none;
    }

    __device__ __forceinline__ void defer(const Deferred &of_row, Deferred &reg_deferred) const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            smem_deferred() = of_row;
        else
            reg_deferred = of_row;
    }
    __device__ __forceinline__ void all_rows() {
        Deferred reg_deferred;
        Bits target_logit = 0; /* of the deferred row of this thread */
        int deferred_rows = 0;
        uint32_t number = 0;
        bool uses_tile = true; /* the leader's last result of fetch() is used */
        Bits edge_after = logit_at_edge(rows.row[0]);
        if (has_padding())
            pad_stages();
#pragma unroll
        for (int i = 0; i < kMaxRows; i++)
            if (i < kMaxRows - 1)
                of_row[i] = loss.row_of(fetch(rows.row[i]), WholeWarp());
        if constexpr (Loss::kHasClasses)
            if (has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS))
                store_weights();
        if constexpr (Loss::kHasEntries)
            begin_entries();
#pragma unroll 1
        for (; rows.more(); number++) {
            const uint32_t row = rows.row[0];
            Row r = of_row[0];
            const bool reads = loss.is_read(r);
            const Cut<E> cut = cut_of(row);
            const Bits at_edge = edge_after;
            State state = State::empty();
            copy_ahead();
            /* These loads are early, so that nobody waits for them, but not before the barrier of copy_ahead(), which waits
             * for loads. They come before the reduction, after which the gradient may overwrite the logits. */
            last_input = fetch(rows.last());
            if (uses_tile && team.leads())
                rows.fetch();
            edge_after = logit_at_edge(rows.row[1]);
            if (team.rank == deferred_rows)
                target_logit = loss.target_logit(row, r);
            if constexpr (Loss::kHasEntries)
                loss.open(row, r, reads, Sharers{*this, cut});
            if (Loss::reduces()) {
                reduce(cut, row, r, reads, state);
                const int64_t edge = edge_of(cut);
                if (edge >= 0 && reads) {
                    const Edge side = {row, edge};
                    accumulate_edge(r, state, edge_vector(at_edge), side);
                }
            }
            if constexpr (Loss::kHasEntries)
                if (reads)
                    loss.add_entries(state, row, Sharers{*this, cut});
            const bool ends_tile = rows.ends_tile();
            uint32_t tile = rows.fetched;
            team.reduce((typename Loss::Softmax &)state, ends_tile, tile, (uint32_t)target_logit,
                        has_format(GPULOSSI_FORMAT_CLUSTER) ? number : (uint32_t)deferred_rows);
            if constexpr (Loss::kHasEntries)
                reduce_entries(row, reads, Sharers{*this, cut}, state);
            else if constexpr (Loss::kHasValues)
                if (!Loss::sums_while_writing())
                    reduce_values(cut, row, r, reads, at_edge, state);
            if (!Loss::sums_while_writing() && team.rank == deferred_rows) {
                const Deferred of_this = {row, r, loss.outcome(r, state)};
                if (has_format(GPULOSSI_FORMAT_CLUSTER))
                    smem_deferred() = of_this;
                else
                    reg_deferred = of_this;
            }
            deferred_rows++;
            if (Loss::writes())
                write(cut, row, reads, r, state, at_edge);
            if constexpr (Loss::kHasValues && !Loss::kHasEntries)
                if (Loss::sums_while_writing() && team.rank == deferred_rows - 1)
                    defer({row, r, loss.outcome(r, state)}, reg_deferred);
            rows.advance(rows.tile_of(tile));
            uses_tile = ends_tile && rows.last() < rows.rows;
            next--;
            const Row last = loss.row_of(last_input, WholeWarp());
#pragma unroll
            for (int i = 0; i + 1 < kMaxRows - 1; i++)
                of_row[i] = i + 2 == rows.known ? last : of_row[i + 1];
            if (rows.known == kMaxRows)
                of_row[kMaxRows - 2] = last;
            if (deferred_rows == kLanes || !rows.more()) {
                if (team.rank < deferred_rows) {
                    const Deferred of = has_format(GPULOSSI_FORMAT_CLUSTER) ? smem_deferred() : reg_deferred;
                    add(loss.finish(of.row, of.of_row, of.outcome, E::widen(target_logit)));
                }
                deferred_rows = 0;
            }
        }
        if constexpr (Loss::kHasEntries)
            loss.end_entries(Sharers{*this, {}});
        team.end();
    }

    /* The threads of a cluster have no registers for a deferred row. */
    DEVICE Deferred &smem_deferred() {
        __shared__ Deferred of_lanes[kLanes];
        return of_lanes[threadIdx.x];
    }
    /* Totals are rarely accessed, so they are in shared memory. In a cluster only the first warp finishes rows, so only
     * its threads have totals. */
    DEVICE Totals &smem_total_of_block() {
        __shared__ Totals of_threads[GPULOSSI_BLOCK];
        return of_threads[threadIdx.x];
    }
    DEVICE Totals &smem_total_of_cluster() {
        __shared__ Totals of_threads[kLanes];
        return of_threads[threadIdx.x];
    }
    DEVICE void clear_totals() {
        if (!has_format(GPULOSSI_FORMAT_CLUSTER))
            smem_total_of_block() = Totals::zero();
        else if (threadIdx.x < kLanes)
            smem_total_of_cluster() = Totals::zero();
    }
    __device__ __forceinline__ void add(const typename Loss::Result &result) const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            loss.add(result, smem_total_of_cluster());
        else
            loss.add(result, smem_total_of_block());
    }
    /* A thread of the first warp gathers the totals of its lane in all warps. */
    DEVICE Totals gathered_total() {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            return smem_total_of_cluster();
        Totals total = smem_total_of_block();
#pragma unroll 1
        for (int i = 1; i < GPULOSSI_BLOCK / kLanes; i++)
            total.add((&smem_total_of_block())[i * kLanes]);
        return total;
    }

  public:
    DEVICE void run(const Params &p) {
        clear_totals();
        RowPipeline pipeline(p);
        pipeline.all_rows();
        __syncthreads();
        if (threadIdx.x < kLanes)
            end_of_warp(pipeline.loss, pipeline.loss.scratch(), gathered_total());
    }
};

#endif
