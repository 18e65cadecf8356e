/* Cross-entropy with label smoothing, with rows in the shared memory of a cluster. A thread has the same classes of
 * every row. Their weights stay in registers, and are read once a launch.
 *
 * The warps are specialised, and no barrier comes between rows. A worker reduces its part of each row. It writes that
 * part some rows later, when the state of the whole row is published. Two senders of each block alternate: a sender
 * reduces the workers' parts of a row, and sends the result to all blocks of the cluster. The manager of each block
 * reduces the parts of all blocks, publishes the row to the workers, and finishes it.
 *
 * If rows are written, each worker requests its part of a row after it has written another one. Otherwise the senders
 * request all of the block's part at once. A reduced row then frees its stage, so that more rows are in flight.
 *
 * All rows of a cluster start at the same element of a vector. Ragged rows start at the same one every few rows. Starts
 * that have fewer clusters than others take longer. Their clusters have the first numbers: if more clusters are
 * launched than are resident, the longest begin first.
 *
 * Rows fit in the cluster's shared memory. Logits are used without scale or softcap. The short formulas show when a
 * logit is infinite, NaN or too large for them: the row is then recomputed by the general code. */
#ifndef GPULOSSI_ROW_CLUSTER_WS_CUH
#define GPULOSSI_ROW_CLUSTER_WS_CUH

#include "../device/mbarrier.cuh"
#include "../device/cluster.cuh"
#include "../loss/cross_entropy.cuh"

template <class E> class RowCluster {
    enum : uint32_t {
        kNever = GPULOSSI_CE_PROBABILITIES | GPULOSSI_CE_TARGET_GRADIENT | GPULOSSI_CE_LOGIT_SCALE | GPULOSSI_CE_SOFTCAP
    };
    typedef CrossEntropy<E, typename E::Number, int, kNever> Loss;
    typedef typename E::Bits Bits;
    typedef typename Loss::State State;
    typedef typename Loss::Totals Totals;
    enum {
        W = Width<E>::value,
        K = GPULOSSI_ROW_CLUSTER_CLASSES / W, /* Vectors of a thread. */
        kChunk = kLanes * K,                  /* Vectors of a warp, which are contiguous. */
        kSenders = 2,                         /* Warps that send a block's part of a row; they alternate. */
        kOthers = 1 + kSenders,               /* Warps that are no workers: the manager and the senders. */
        kWorkers = GPULOSSI_ROW_CLUSTER_WARPS,
        kStages = GPULOSSI_ROW_CLUSTER_VECTORS / K, /* Rows that the ring has space for. */
        kLead = kStages / 3,                        /* Rows that are reduced before the first of them is written. */
        /* Rows that are reduced at once if none is written, at most 2. */
        kAtOnce = sizeof(Bits) == 2 ? 2 : 1,
        /* Rows that are reduced before the first of them is checked, if none is written. */
        kAhead = 14,
        kBuffers = 32, /* Rows that may be in flight anywhere in the cluster. */
        kSums = 2,     /* Sums of a row: its exponentials, and its drop. */
        kNoBest = INT32_MAX
    };
    static_assert(kBuffers >= 2 * kAhead + 2 * kAtOnce && kAhead >= kLead,
                  "a block may be a lead ahead of another one that is a lead ahead of a third");
    static_assert(kStages % kAtOnce == 0 && kAhead % kAtOnce == 0 && kBuffers % kAtOnce == 0,
                  "rows that are reduced at once share a phase in every ring");

    /* A row, or a part of it. With w the weights of the classes, drop = sum w (row_max - x). In the part of a warp,
     * drop is divided by ln 2. */
    struct alignas(16) Part {
        float row_max;
        /* In the part of a warp: a mask of the lanes that have the maximum. Otherwise: the first class that has it. */
        int best;
        float sum, drop;

        DEVICE Part empty() {
            Part part = {-Limits<float>::infinity(), kNoBest, 0, 0};
            return part;
        }
        /* Raises the maximum to that of several parts; soft_sum = sum w. */
        __device__ __forceinline__ void raise(float all, float soft_sum) {
            if (row_max == all)
                return;
            sum *= exp_below(row_max, all);
            if (soft_sum != 0)
                drop = fma(soft_sum, difference(all, row_max), drop);
            row_max = all;
            best = kNoBest;
        }
    };
    /* The state of a row that workers need to write it. Gradients are 2^(slope x - offset) of_exp - w of_weight. */
    struct alignas(16) RowState {
        float offset, of_exp, of_weight, of_target;
        /* The target and its vector in the row, or -1 if it has no gradient of its own. */
        int y, vector;
        int recompute;  /* The row to recompute, if any. */
        int recomputed; /* Rows that were recomputed before. */
    };
    /* kNext: the next row, which is published at the same time as this one. */
    enum { kNone, kItself, kNext };
    /* The state of a recomputed row, or of a block's part of it. */
    struct alignas(16) StateMessage {
        State state;
        uint64_t unused; /* A message is sent whole. */
    };
    struct Shared {
        RowState row_state[kBuffers];
        Part of_warp[kBuffers][kWorkers], of_block[kBuffers][GPULOSSI_CLUSTER];
        StateMessage general_of_block[2][GPULOSSI_CLUSTER];
        State general_of_warp[kWorkers], general_state;
        int partial_of_warp[kWorkers]; /* The partial vector of a row in the vectors of a warp, or -1. */
        float soft_sum_of_warp[kWorkers], soft_sum_of_block[GPULOSSI_CLUSTER];
        Arrival copied[kWorkers][kStages];
        /* Barriers for three steps of a row: its warps have reduced it, its blocks have, its state is published. The
         * general code has its own. */
        Arrival warp_reduced[kBuffers], block_reduced[kBuffers], published[kBuffers], general_warp_reduced,
            general_block_reduced, general_published;
    };
    /* The rows of a cluster are numbered. A row has a stage in the ring, and one of the kBuffers buffers. */
    DEVICE uint32_t stage_of(uint32_t number) { return number % kStages; }
    DEVICE uint32_t buffer_of(uint32_t number) { return number % kBuffers; }
    DEVICE uint32_t parity_of(uint32_t number) { return number / kBuffers & 1; }

    /* The rows of a cluster: `row`, and every step-th one after it. */
    struct Share {
        uint32_t row, step;

        __device__ __forceinline__ Share(const Cluster &of, int64_t stride) : row(of.number), step(of.count) {
            if (!has_format(GPULOSSI_FORMAT_RAGGED))
                return;
            /* Starts of rows, a power of two. The first `more` of them have a cluster more than the others. */
            const uint32_t starts = W >> (__ffs((int)stride | W) - 1);
            const uint32_t each = of.count / starts, more = of.count % starts, fewest = (starts - more) * each;
            const bool has_more = of.number >= fewest;
            const uint32_t clusters = each + has_more, number = has_more ? of.number - fewest : of.number;
            row = (has_more ? 0 : more) + number / clusters + number % clusters * starts;
            step = clusters * starts;
        }
    };

    const gpulossi_cross_entropy &p;
    const Loss &loss;
    const Cluster &cluster;
    Shared &shared;
    Share share;
    Cut<E> cut;     /* The cut of every row of this cluster. */
    uint32_t count; /* Rows of this cluster. No memory has 2^31 rows that are long enough for this kernel. */
    int first;      /* The first vector of this block in a row. */
    int workers;    /* Warps of the block that have a part of the rows. */

    DEVICE uint32_t lane() { return threadIdx.x % kLanes; }
    DEVICE bool finite(float x) { return fabs(x) < Limits<float>::infinity(); }
    /* Padding past the last class. Its exponential is 0. It is finite, so that a weight of 0 times it is 0. */
    DEVICE float lowest() { return E::dtype() == GPULOSS_F16 ? -65504.0f : -0x1p100f; }
    /* Sums m numbers over the lanes of a warp, m a power of 2. Afterwards x[0] is the i-th sum in the i-th of m groups
     * of lanes. */
    template <int m> DEVICE void sums_by_lanes(float (&x)[m]) {
#pragma unroll
        for (int n = m / 2, distance = kLanes / 2; distance > 0; n /= 2, distance /= 2) {
            bool in_other = lane() & distance;
#pragma unroll
            for (int i = 0; i < max(n, 1); i++) {
                float own = n > 0 && in_other ? x[n + i] : x[i], given = n == 0 || in_other ? x[i] : x[n + i];
                x[i] = own + __shfl_xor_sync(0xffffffffu, given, distance);
            }
        }
    }
    DEVICE int min_of_warp(int x) {
        int all;
        asm volatile("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(x) : "memory");
        return all;
    }
    __device__ __forceinline__ int64_t row_of(uint32_t number) const {
        return share.row + (int64_t)number * share.step;
    }
    /* The block's vector v in the stage of a row. */
    DEVICE uint4 *slot(uint32_t number, int v) {
        return &stash_of_block()[stage_of(number) * (kWorkers * kChunk) + (uint32_t)v];
    }
    /* Copies whole vectors of a row to shared address `to`, which has space for n vectors from v on. */
    __device__ __forceinline__ void request(uint32_t number, uint32_t arrival, uint32_t to, int v, int n) const {
        const int from = max(v, cut.lead), end = min(v + n, cut.lead + (int)cut.whole_vectors);
        uint32_t bytes = (uint32_t)(max(0, end - from) * GPULOSSI_VECTOR_BYTES);
        Arrival::expect(arrival, bytes);
        if (bytes != 0)
            Arrival::copy(arrival, to + (uint32_t)((from - v) * GPULOSSI_VECTOR_BYTES),
                          loss.logits(row_of(number)) + cut.first(from), bytes);
    }
    /* Requests a row for all warps of the block. Rows that are reduced at once share a phase, which also needs an
     * arrival for a missing second row. */
    __device__ __forceinline__ void request_for_block(uint32_t number) const {
        if (lane() == 0 && number / kAtOnce * kAtOnce < count && workers > 0)
            request(number, shared.copied[0][stage_of(number) / kAtOnce * kAtOnce].address(),
                    (uint32_t)__cvta_generic_to_shared(slot(number, 0)), first, number < count ? workers * kChunk : 0);
    }
    /* Lanes of a warp that publish the sums of its part. */
    DEVICE uint32_t publishers() {
        return kSums * (Loss::writes() ? 1 : kAtOnce);
    }
    /* Rows that are reduced before the first of them is written or checked. */
    DEVICE uint32_t lead() {
        return Loss::writes() ? kLead : kAhead;
    }
    __device__ __forceinline__ bool is_class(int64_t c) const {
        return (uint32_t)c < (uint32_t)p.rows.classes; /* false for negative c, too */
    }
    /* The weight of a class. Its soft target is `smooth` times this. */
    __device__ __forceinline__ float weight(int64_t c) const {
        if (!is_class(c))
            return 0.0f;
        return has(GPULOSSI_CE_CLASS_WEIGHTS) ? loss.class_weight(p.class_offset + c) : 1.0f;
    }

    /* Vector v of a row, for the general code. */
    struct Side {
        const RowCluster &of;
        int v;
        enum { kElements = W };

        __device__ __forceinline__ int64_t first(int) const { return of.cut.first(v); }
        __device__ __forceinline__ bool is_inside(int k, int i) const { return of.is_class(first(k) + i); }
        DEVICE bool is_staged() { return false; }
        __device__ __forceinline__ int64_t start(int64_t) const { return 0; }
        /* The targets are indices. */
        template <class Array> __device__ __forceinline__ void read_staged(const Array &, int, float (&)[W]) const {}
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &, int, float (&w)[W]) const {
#pragma unroll
            for (int i = 0; i < W; i++)
                w[i] = of.weight(first(0) + i);
        }
    };

    struct Worker {
        const RowCluster &of;
        Shared &shared;
        int at; /* This thread's first vector within the block. */
        /* Whether this lane publishes the row maxima, or one of the sums. The lane that stores a partial vector does
         * both, so that its arrival orders that write too. */
        bool publishes_max, publishes_sum;
        uint32_t slots;          /* The shared address of this thread's first vector in the ring. */
        uint32_t arrivals;       /* The shared address of the barriers of this warp's copies. */
        float w[K][W], soft_sum; /* The weights of this thread's classes, and their sum. */

        __device__ __forceinline__ explicit Worker(const RowCluster &of)
            : of(of), shared(of.shared), at((int)(threadIdx.x / kLanes - kOthers) * kChunk + (int)lane()),
              slots((uint32_t)__cvta_generic_to_shared(slot(0, at))),
              arrivals(shared.copied[at / kChunk][0].address()) {
            float sums[K];
            if (lane() == 0)
                shared.partial_of_warp[at / kChunk] = find_partial();
            __syncwarp();
            publishes_max = lane() == publisher();
            publishes_sum = (lane() - publisher()) % (kLanes / publishers()) == 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                int v = in_row() + k * kLanes;
#pragma unroll
                for (int i = 0; i < W; i++)
                    w[k][i] = works() ? of.weight(of.cut.first(v) + i) : 0.0f;
                sums[k] = in_halves<Sum>(w[k]);
                if (!of.cut.whole(v)) {
#pragma unroll 1
                    for (uint32_t stage = 0; stage < kStages; stage++)
                        store_shared(stage, k, filled<E>(lowest()));
                }
            }
            soft_sum = in_halves<Sum>(sums);
            float of_warp = WholeWarp().template over<Sum>(soft_sum);
            if (lane() == 0)
                shared.soft_sum_of_warp[at / kChunk] = of_warp;
        }

        /* This thread's first vector within the row. */
        __device__ __forceinline__ int in_row() const {
            return of.first + at;
        }
        __device__ __forceinline__ uint32_t vector(uint32_t stage, int k) const {
            return slots + (stage * (kWorkers * kChunk) + (uint32_t)k * kLanes) * GPULOSSI_VECTOR_BYTES;
        }
        __device__ __forceinline__ void store_shared(uint32_t stage, int k, const Vector<E> &x) const {
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(vector(stage, k)), "r"(x.word[0]),
                         "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
                         : "memory");
        }
        __device__ __forceinline__ Vector<E> load_shared(uint32_t stage, int k) const {
            Vector<E> x;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                         : "r"(vector(stage, k))
                         : "memory");
            return x;
        }
        __device__ __forceinline__ void load_row(uint32_t stage, Vector<E> (&x)[K][1]) const {
#pragma unroll
            for (int k = 0; k < K; k++)
                x[k][0] = load_shared(stage, k);
        }
        /* Whether this warp has a part of the rows. */
        __device__ __forceinline__ bool works() const {
            return at / kChunk < of.workers;
        }
        /* The partial vector of a row among this warp's vectors, or -1. No warp has both of a row. It is in shared memory,
         * because losses have no register for it. */
        __device__ __forceinline__ int partial() const {
            return shared.partial_of_warp[at / kChunk];
        }
        __device__ __forceinline__ int find_partial() const {
            const int from = in_row() - (int)lane(), last = of.cut.vectors - 1;
            if (!has_format(GPULOSSI_FORMAT_RAGGED))
                return -1;
            if (from == 0 && of.cut.lead > 0)
                return 0;
            return (uint32_t)(last - from) < kChunk && !of.cut.whole(last) ? last - from : -1;
        }
        __device__ __forceinline__ uint32_t publisher() const {
            return warp_has_partial() ? (uint32_t)partial() % kLanes : 0;
        }
        __device__ __forceinline__ bool warp_has_partial() const {
            return has_format(GPULOSSI_FORMAT_RAGGED) && partial() >= 0;
        }
        /* Whether the partial vector belongs to this thread. If so, partial_vector() is its number in the row. */
        __device__ __forceinline__ bool has_partial() const {
            return warp_has_partial() && lane() == publisher();
        }
        __device__ __forceinline__ int partial_vector() const {
            return in_row() - (int)lane() + partial();
        }
        /* Loads the partial vectors of R rows from this one on, a lane each element. Nobody waits for the load here.
         * Other lanes prefetch the partial vectors of the next R rows. */
        template <int R> __device__ __forceinline__ Bits load_partial(uint32_t number) const {
            Bits x = E::narrow(lowest());
            const int c = (int)of.cut.first(partial_vector()) + (int)lane() % W;
            const uint32_t row = number + lane() / W;
            if (!warp_has_partial() || lane() >= 2 * R * W || row >= of.count || !of.is_class(c))
                return x;
            const Bits *at = of.loss.logits(of.row_of(row)) + c;
            if (lane() < R * W)
                x = *at;
            else
                asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
            return x;
        }
        /* Stores the partial vectors of R rows, which load_partial() has loaded, to their stages. */
        template <int R> __device__ __forceinline__ void store_partial(uint32_t stage, Bits loaded) const {
#pragma unroll 1
            for (uint32_t r = 0; r < R; r++) {
                Vector<E> x = {};
#pragma unroll
                for (int i = W - 1; i >= 0; i--)
                    x.push((Bits)__shfl_sync(0xffffffffu, (uint32_t)loaded, r * W + i));
                if (lane() == publisher())
                    store_shared(stage + r, partial() / kLanes, x);
            }
        }
        __device__ __forceinline__ void request(uint32_t number, uint32_t stage) const {
            if (lane() == 0 && number < of.count)
                of.request(number, arrivals + stage * (uint32_t)sizeof(Arrival), vector(stage, 0), in_row(), kChunk);
        }

        /* Reduces R rows from this one on. Their partial vectors, which are loaded, are in the ring afterwards. If a row
         * is past the last one, the first row is reduced again in its stead, and the result is not used. */
        template <int R> __device__ __forceinline__ void reduce(uint32_t number, uint32_t stage, Bits loaded) const {
            Vector<E> x[R][K][1];
            float highest[R], row_max[R], sums[R * kSums];
            Part *parts[R];
            if (warp_has_partial())
                store_partial<R>(stage, loaded);
#pragma unroll
            for (int r = 0; r < R; r++) {
                load_row(number + r < of.count ? stage + r : stage, x[r]);
                parts[r] = &shared.of_warp[buffer_of(number) + r][at / kChunk];
            }
#pragma unroll
            for (int r = 0; r < R; r++)
                highest[r] = largest(x[r], 0);
#pragma unroll
            for (int r = 0; r < R; r++)
                row_max[r] = largest_over(WholeWarp(), highest[r]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                uint32_t lanes = __ballot_sync(0xffffffffu, highest[r] == row_max[r]);
                if (publishes_max)
                    parts[r]->row_max = row_max[r], parts[r]->best = (int)lanes;
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                /* Relative to the thread's own maximum, which does not wait for the warp's. */
                ScaledExp<float> below(larger(highest[r], ScaledExp<float>::least()));
                float of_vectors[K], drops[K];
#pragma unroll
                for (int k = 0; k < K; k++) {
                    float power[W];
#pragma unroll
                    for (int i = 0; i < W; i++) {
                        float y = below.power(x[r][k][0].get(i));
                        power[i] = power_of_2(y);
                        drops[k] = i == 0 ? w[k][i] * y : fma(w[k][i], y, drops[k]);
                    }
                    of_vectors[k] = in_halves<Sum>(power);
                }
                float higher = below.power(larger(row_max[r], ScaledExp<float>::least()));
                sums[r * kSums] = in_halves<Sum>(of_vectors) * power_of_2(-higher);
                sums[r * kSums + 1] = fmaf(soft_sum, higher, -in_halves<Sum>(drops));
            }
            sums_by_lanes(sums);
            /* Stores the sum of a row, or its drop, which is next to the sum. */
            if (publishes_sum) {
                int which = (int)lane() / (kLanes / (R * kSums));
                (&parts[0]->sum)[which / kSums * (int)(sizeof shared.of_warp[0] / sizeof(float)) + which % kSums] =
                    sums[0];
                shared.warp_reduced[buffer_of(number)].arrive();
            }
        }

        __device__ __forceinline__ void write(uint32_t number, uint32_t stage, const RowState &it) const {
            Bits *to = (Bits *)of.p.rows.grad + of.row_of(number) * of.p.rows.grad_stride;
            char *first = (char *)(to + of.cut.first(in_row()));
            ScaledExp<float> below(0);
            below.offset = it.offset;
            Vector<E> x[K][1];
            load_row(stage, x);
            const int own = has_partial() ? partial() / kLanes : -1;
#pragma unroll
            for (int k = 0; k < K; k++) {
                float g[W];
#pragma unroll
                for (int i = 0; i < W; i++) /* Adding +0 changes -0 to +0. */
                    g[i] = fma(below.exp(x[k][0].get(i)), it.of_exp, fma(w[k][i], -it.of_weight, 0.0f));
                Vector<E> out;
                out.fill(g, true);
                if (of.cut.whole(in_row() + k * kLanes))
                    store_vector<E>((Bits *)(first + k * kLanes * GPULOSSI_VECTOR_BYTES), out);
                else if (k == own)
                    store_shared(stage, k, out);
            }
            if (own >= 0) {
                int v = partial_vector();
                keep(v); /* Its addresses would be computed ahead, and spill. */
                store_vector<E, E>(of.cut, to, v, of.cut.first(v), load_shared(stage, own));
            }
            uint32_t from_here = (uint32_t)(it.vector - in_row());
            if (from_here < kChunk && from_here % kLanes == 0)
                to[it.y] = E::narrow(it.of_target);
        }

        /* Loads a vector whose stage may be released. */
        __device__ __forceinline__ Vector<E> reread(int64_t row, int v) const {
            const Bits *logits = of.loss.logits(row);
            return of.cut.whole(v) ? load_vector<E, kRead_once>(logits + of.cut.first(v))
                                   : load_elements<E>(of.cut, logits, v, of.loss.padding());
        }
        /* Writes a row by the general code. */
        __device__ __forceinline__ void write_recomputed(int64_t row) const {
            const typename Loss::Row r = of.loss.row_of(of.loss.fetch(row));
            const typename Loss::Gradient g = of.loss.gradient(row, r, shared.general_state);
            const int end = min(in_row() + K * kLanes, of.cut.vectors);
#pragma unroll 1
            for (int v = in_row(); v < end; v += kLanes) {
                const Vector<E> x = reread(row, v);
                const Side side = {of, v};
                const int64_t target = r.target_class - of.cut.first(v);
                float y[W] = {};
                if (!g.is_zero) {
                    of.loss.gradients(g, x, side, 0, y);
                    of.loss.put_target(g, r, x, target < W ? (int)target : -1, y);
                }
                store<E, E>(of.cut, (Bits *)of.p.rows.grad + row * of.p.rows.grad_stride, v, y);
            }
        }
        /* Recomputes a row by the general code. */
        __device__ __forceinline__ void recompute_row(uint32_t number) const {
            const int64_t row = of.row_of(number);
            const int end = min(in_row() + K * kLanes, of.cut.vectors);
            State s = State::empty();
#pragma unroll 1
            for (int v = in_row(); v < end; v += kLanes) {
                const Vector<E> x = reread(row, v);
                const Side side = {of, v};
                of.loss.accumulate_alone(s, x, side);
            }
            s.reduce(WholeWarp());
            if (lane() == 0)
                shared.general_of_warp[at / kChunk] = s;
            shared.general_warp_reduced.arrive(); /* Every lane has read the general state of the row before. */
            shared.general_published.wait_by_warp(shared.row_state[buffer_of(number)].recomputed & 1);
            if (Loss::writes())
                write_recomputed(row);
        }
        /* The loop of a worker if rows are written. */
        __device__ __forceinline__ void write_rows() const {
            uint32_t stage = 0, parity = 0;
            Bits loaded = load_partial<1>(0);
#pragma unroll 1
            for (uint32_t number = 0; number < of.count + kLead; number++) {
                if (number < of.count) {
                    Arrival::wait_by_warp(arrivals + stage * (uint32_t)sizeof(Arrival), parity);
                    reduce<1>(number, stage, loaded);
                    loaded = load_partial<1>(number + 1);
                }
                if (number >= kLead) {
                    uint32_t oldest = number - kLead,
                             oldest_stage = stage < kLead ? stage + kStages - kLead : stage - kLead;
                    shared.published[buffer_of(oldest)].wait_by_warp(parity_of(oldest));
                    RowState it = shared.row_state[buffer_of(oldest)];
                    if (it.recompute)
                        recompute_row(oldest);
                    else
                        write(oldest, oldest_stage, it);
                    __syncwarp();
                    request(oldest + kStages, oldest_stage);
                }
                if (++stage == kStages)
                    stage = 0, parity ^= 1;
            }
        }
        /* The loop of a worker if rows are not written. The senders request the rows, and a published row rarely needs
         * more work. */
        __device__ __forceinline__ void read_rows() const {
            uint32_t stage = 0, parity = 0;
            Bits loaded = load_partial<kAtOnce>(0);
#pragma unroll 1
            for (uint32_t number = 0; number < of.count + kAhead; number += kAtOnce) {
                if (number < of.count) {
                    shared.copied[0][stage].wait_by_warp(parity);
                    reduce<kAtOnce>(number, stage, loaded);
                    loaded = load_partial<kAtOnce>(number + kAtOnce);
                }
                if (number >= kAhead) {
                    shared.published[buffer_of(number - kAhead)].wait_by_warp(parity_of(number - kAhead));
                    if (shared.row_state[buffer_of(number - kAhead)].recompute != kNone)
                        check_rows(number - kAhead);
                }
                stage += kAtOnce;
                if (stage == kStages)
                    stage = 0, parity ^= 1;
            }
        }
        /* Checks kAtOnce rows from this one on. If the first is recomputed, the second is published after that. */
        __device__ __forceinline__ void check_rows(uint32_t number) const {
#pragma unroll 1
            for (uint32_t last = min(number + kAtOnce, of.count); number < last; number++) {
                shared.published[buffer_of(number)].wait_by_warp(parity_of(number));
                if (shared.row_state[buffer_of(number)].recompute == kItself)
                    recompute_row(number);
            }
        }
    };

    /* The first class that has the row maximum, from the masks of the lanes that have it. */
    __device__ __forceinline__ int best_of(uint32_t number, int of_warp, float row_max) const {
        static_assert(K * W == kLanes, "a lane for each element of a thread");
        int warp = __ffs((int)__ballot_sync(0xffffffffu, of_warp != 0)) - 1, best = kNoBest;
        uint32_t lanes = __shfl_sync(0xffffffffu, (uint32_t)of_warp, warp);
#pragma unroll 1
        for (; lanes != 0; lanes &= lanes - 1) {
            int at = warp * kChunk + __ffs((int)lanes) - 1, v = at + (int)(lane() / W) * kLanes;
            float x = E::widen(((const Bits *)slot(number, v))[lane() % W]);
            int element = __ffs((int)__ballot_sync(0xffffffffu, x == row_max)) - 1;
            best = min(best, (int)cut.first(first + at + element / W * kLanes) + element % W);
        }
        return best;
    }

    /* The loop of a sender: reduces the parts of the warps, for every kSenders-th row from this one on, and sends
     * them. */
    __device__ __forceinline__ void send_all(uint32_t from) const {
        float soft_sum = shared.soft_sum_of_warp[lane() % kWorkers];
        if (!Loss::writes())
#pragma unroll 1
            for (uint32_t i = from; i < kStages; i += kSenders)
                request_for_block(i);
#pragma unroll 1
        for (uint32_t number = from; number < count; number += kSenders) {
            Part part = Part::empty();
            if (workers > 0) {
                shared.warp_reduced[buffer_of(Loss::writes() ? number : number / kAtOnce * kAtOnce)].wait_by_warp(
                    parity_of(number));
                part = shared.of_warp[buffer_of(number)][lane() % kWorkers];
                part.drop *= 0.693147181f;
                if (!(ScaledExp<float>::in_fast_range(part.row_max) || part.row_max == -Limits<float>::infinity()))
                    part.sum = Limits<float>::nan();
                float row_max = largest_over(WholeWarp(), part.row_max);
                int best = Loss::finds_best() ? best_of(number, part.row_max == row_max ? part.best : 0, row_max)
                                              : (int)kNoBest;
                /* All lanes have read the stage. */
                if (!Loss::writes()) {
                    __syncwarp();
                    request_for_block(number + kStages);
                }
                part.raise(row_max, soft_sum);
                part.best = best;
#pragma unroll
                for (int distance = kWorkers / 2; distance > 0; distance /= 2) {
                    part.sum += __shfl_xor_sync(0xffffffffu, part.sum, distance);
                    part.drop += __shfl_xor_sync(0xffffffffu, part.drop, distance);
                }
            }
            /* Without workers, a sender waits for the rows that workers of other blocks wait for. */
            if (workers == 0 && number > lead())
                shared.published[buffer_of(number - lead() - 1)].wait_by_warp(parity_of(number - lead() - 1));
            /* When all blocks have this row, buffers that were read for it may be overwritten. */
            __syncwarp();
            cluster.send(shared.block_reduced[buffer_of(number)], shared.of_block[buffer_of(number)], part);
        }
    }

    struct Manager {
        const RowCluster &of;
        Shared &shared;
        /* 32 rows, one a lane. */
        typename Loss::Row row;
        State state;
        double factor; /* The factor of the row's gradients. */
        /* next_x_y is for the 32 rows after these. */
        float x_y, next_x_y;
        float soft_sum;      /* The sum of the weights of all classes. */
        uint32_t recomputed; /* Rows that were recomputed so far. */
        bool pending;        /* Whether the row before is still to be published. */

        __device__ __forceinline__ explicit Manager(const RowCluster &of)
            : of(of), shared(of.shared), next_x_y(0), soft_sum(0), recomputed(0), pending(false) {
#pragma unroll 1
            for (uint32_t twice = 0; twice < 2; twice++)
                load_targets(lane() + (twice - 1) * kLanes);
        }

        /* The number of rows whose targets this block needs, to finish or to write them. */
        __device__ __forceinline__ uint32_t rows_with_targets() const {
            return of.cluster.rank == 0 || Loss::writes() ? of.count : 0;
        }
        __device__ __forceinline__ typename Loss::Row load_row(uint32_t number) const {
            if (number >= rows_with_targets())
                return {Loss::kIgnored, 0, 0, 1};
            return of.loss.row_of(of.loss.fetch(of.row_of(number)));
        }
        /* Loads the targets of 32 rows. Other blocks may be a few rows ahead and overwrite the logits, so the targets'
         * logits are loaded 32 rows earlier. */
        __device__ __forceinline__ void load_targets(uint32_t number) {
            x_y = __shfl_sync(0xffffffffu, next_x_y, lane()); /* The shuffle waits for the load. */
            next_x_y = E::widen(of.loss.target_logit(of.row_of(number + kLanes), load_row(number + kLanes)));
            row = load_row(number);
            factor = Loss::writes() && number < of.count ? of.loss.factor_of(of.row_of(number), row) : 0.0;
        }
        /* The row of a lane. */
        __device__ __forceinline__ typename Loss::Row row_of_lane(int of_lane) const {
            typename Loss::Row r = row;
            r.target_class = __shfl_sync(0xffffffffu, row.target_class, of_lane);
            r.weight = __shfl_sync(0xffffffffu, row.weight, of_lane);
            if (has(GPULOSSI_CE_CLASS_WEIGHTS))
                r.class_weight = __shfl_sync(0xffffffffu, row.class_weight, of_lane);
            if (has(GPULOSSI_CE_LSE_IN))
                r.lse = __shfl_sync(0xffffffffu, row.lse, of_lane);
            return r;
        }

        /* Reduces the parts of all blocks. `good`: the short formulas are valid for the row. */
        __device__ __forceinline__ Part receive(uint32_t number, bool &good) const {
            uint32_t block = lane() % GPULOSSI_CLUSTER;
            Part part = Part::empty();
            float of_block = 0;
            shared.block_reduced[buffer_of(number)].wait_by_warp(parity_of(number));
            if (block < of.cluster.size) {
                part = shared.of_block[buffer_of(number)][block];
                of_block = shared.soft_sum_of_block[block];
            }
            good = __all_sync(0xffffffffu, finite(part.sum) && finite(part.drop));
            part.raise(largest_over(WholeWarp(), part.row_max), of_block);
#pragma unroll
            for (int distance = GPULOSSI_CLUSTER / 2; distance > 0; distance /= 2) {
                part.sum += __shfl_xor_sync(0xffffffffu, part.sum, distance);
                part.drop += __shfl_xor_sync(0xffffffffu, part.drop, distance);
            }
            part.best = min_of_warp(part.best);
            good = good && part.row_max != -Limits<float>::infinity();
            return part;
        }

        __device__ __forceinline__ State state_of(const Part &part) const {
            const float smooth = of.loss.smooth;
            State s = {{part.row_max, part.sum},
                       smooth * soft_sum,
                       smooth * part.drop,
                       part.row_max,
                       part.best == kNoBest ? State::kNone : State::kNumber | (uint32_t)part.best};
            return s;
        }

        /* Publishes a row to the workers. If rows are not written, rows reduced at once are published with the last of
         * them, or with a row to be recomputed. Returns false for a row that is to be recomputed. */
        __device__ __forceinline__ bool publish(uint32_t number, const State &s, bool good) {
            RowState it = {0, 0, 0, 0, -1, -1, 0, 0};
            if (Loss::writes()) {
                const int of_row = (int)(number % kLanes);
                const typename Loss::Row r = row_of_lane(of_row);
                typename Loss::Gradient g = of.loss.unscaled(r, s);
                of.loss.set_scale(g, __shfl_sync(0xffffffffu, factor, of_row), r, s);
                it.offset = g.exp.offset;
                const float exact_x = __shfl_sync(0xffffffffu, x_y, of_row);
                if (!g.is_zero) {
                    it.of_exp = g.weight * g.exp.factor;
                    it.of_weight = g.spread;
                    it.of_target = of.loss.template target_gradient<false>(g, r, exact_x);
                    it.y = r.target_class;
                    it.vector = it.y < 0 ? -1 : of.cut.vector_of(it.y);
                }
                good = good && finite(it.of_exp) && finite(it.of_weight) && (!has(GPULOSSI_CE_LSE_IN) || g.is_fast);
            }
            it.recompute = good ? kNone : kItself;
            it.recomputed = (int)recomputed;
            /* When the row is published, buffers that were read for it may be overwritten. */
            __syncwarp();
            bool pends = !Loss::writes() && number % kAtOnce + 1 < kAtOnce && number + 1 < of.count && good;
            if (lane() == 0) {
                shared.row_state[buffer_of(number)] = it;
                if (!pends)
                    shared.published[buffer_of(number)].arrive();
                if (pending) {
                    shared.row_state[buffer_of(number - 1)].recompute = good ? kNone : kNext;
                    shared.published[buffer_of(number - 1)].arrive();
                }
            }
            pending = pends;
            return uniform(good);
        }

        /* The state of a row that is recomputed. */
        __device__ __forceinline__ State reduce_recomputed() {
            StateMessage all = {State::empty(), 0};
            State &s = all.state;
            uint32_t buffer = recomputed % 2, parity = recomputed & 1;
            if (of.workers > 0) {
                shared.general_warp_reduced.wait_by_warp(parity);
                if ((int)(lane() % kWorkers) < of.workers)
                    s = shared.general_of_warp[lane() % kWorkers];
                s.reduce(Repeated<kWorkers>(kWorkers));
            }
            __syncwarp();
            of.cluster.send(shared.general_block_reduced, shared.general_of_block[buffer], all);
            shared.general_block_reduced.wait_by_warp(parity);
            s = State::empty();
            if (lane() % GPULOSSI_CLUSTER < of.cluster.size)
                s = shared.general_of_block[buffer][lane() % GPULOSSI_CLUSTER].state;
            s.reduce(Repeated<GPULOSSI_CLUSTER>(GPULOSSI_CLUSTER));
            if (lane() == 0)
                shared.general_state = s;
            shared.general_published.arrive(); /* Every lane has read the parts of the warps. */
            recomputed++;
            return s;
        }

        __device__ __forceinline__ void rows(Totals &total) {
#pragma unroll 1
            for (uint32_t block = 0; block < of.cluster.size; block++)
                soft_sum += shared.soft_sum_of_block[block];
#pragma unroll 1
            for (uint32_t number = 0; number < of.count; number++) {
                uint32_t in_batch = number % kLanes;
                bool good;
                if (in_batch == 0 && number > 0)
                    load_targets(number + lane());
                Part part = receive(number, good);
                State s = state_of(part);
                if (!publish(number, s, good))
                    s = reduce_recomputed();
                if (lane() == in_batch)
                    state = s;
                if (of.cluster.rank == 0 && (in_batch == kLanes - 1 || number + 1 == of.count) && lane() <= in_batch)
                    of.loss.add(of.loss.finish(of.row_of(number - in_batch + lane()), row, state, x_y), total);
            }
        }
    };

    /* All threads call. Initialises the barriers before any thread arrives at them. */
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x < kWorkers * kStages)
            shared.copied[threadIdx.x / kStages][threadIdx.x % kStages].begin(Loss::writes() ? 1 : kAtOnce);
        if (threadIdx.x < kBuffers) {
            shared.warp_reduced[threadIdx.x].begin((uint32_t)max(workers, 1) * publishers());
            shared.block_reduced[threadIdx.x].begin();
            shared.published[threadIdx.x].begin();
        }
        if (threadIdx.x == 0) {
            shared.general_warp_reduced.begin((uint32_t)max(workers, 1) * kLanes);
            shared.general_block_reduced.begin();
            shared.general_published.begin(kLanes);
        }
        /* Warps without a part of a row leave these empty. */
        if (threadIdx.x < kBuffers * kWorkers)
            shared.of_warp[threadIdx.x / kWorkers][threadIdx.x % kWorkers] = Part::empty();
        __syncthreads();
    }
    __device__ __forceinline__ void exchange_soft_sums(bool sends) const {
        /* The other blocks have begun, and this block's soft sums are in shared memory. */
        Cluster::wait();
        if (sends && threadIdx.x < cluster.size)
            Cluster::put(&shared.soft_sum_of_block[cluster.rank], threadIdx.x, in_halves<Sum>(shared.soft_sum_of_warp));
        Cluster::wait();
    }

    __device__ __forceinline__ RowCluster(const gpulossi_cross_entropy &p, const Loss &loss, const Cluster &cluster,
                                          Shared &shared)
        : p(p), loss(loss), cluster(cluster), shared(shared), share(cluster, p.logits_stride),
          cut(has_format(GPULOSSI_FORMAT_RAGGED) ? loss.logits(share.row) : 0, p.rows.classes),
          count(((uint32_t)p.rows.rows - share.row + share.step - 1) / share.step),
          first((int)(cluster.rank * p.rows.of.worker_warps) * kChunk),
          workers(max(0, min((int)p.rows.of.worker_warps, (cut.vectors - first + kChunk - 1) / kChunk))) {}

  public:
    DEVICE void run(const gpulossi_cross_entropy &p) {
        __shared__ Totals totals[kLanes];
        __shared__ Shared shared;
        Loss loss(p);
        Cluster cluster;
        RowCluster rows(p, loss, cluster, shared);
        rows.begin();
        const uint32_t warp = uniform_warp();
        if (warp == 0) {
            Totals &total = totals[threadIdx.x];
            total = Totals::zero();
            Manager manager(rows);
            rows.exchange_soft_sums(true);
            manager.rows(total);
            /* No block exits while others write to its shared memory. */
            Cluster::wait();
            end_of_warp(loss, (gpulossi_scratch *)p.rows.scratch, total);
        } else if (warp < kOthers) {
            rows.exchange_soft_sums(false);
            rows.send_all(warp - 1);
            Cluster::wait();
        } else {
            Worker worker(rows);
            if (worker.works() && Loss::writes())
#pragma unroll 1
                for (uint32_t i = 0; i < kStages; i++)
                    worker.request(i, i);
            rows.exchange_soft_sums(false);
            if (worker.works()) {
                if (Loss::writes())
                    worker.write_rows();
                else
                    worker.read_rows();
            }
            Cluster::wait();
        }
    }
};

#endif
