/* The schedule for losses of two arrays that need the state of the whole row before its terms or gradients. Steps of a row
 * that fit stay in the shared memory of a cluster. All other steps are read again. Each warp has a ring of stages, and copies its
 * own parts of the rows. The ring has space for more than one row: the next row is in flight while this one is reduced. */
#ifndef GPULOSSI_PAIR_PIPELINE_CUH
#define GPULOSSI_PAIR_PIPELINE_CUH

#include "../device/cluster.cuh"
#include "../device/tile_scheduler.cuh"
#include "row_generic.cuh"

/* Sums of doubles over a cluster whose blocks have `warps` warps. Only the leader's warp receives them. */
template <int warps> class DeferredSum {
    struct alignas(16) Part {
        double x, unused; /* Padding: messages are multiples of 16 bytes. */
    };
    Part (*of_block)[GPULOSSI_CLUSTER];

  public:
    __device__ __forceinline__ DeferredSum() {
        __shared__ Part of_blocks[2][GPULOSSI_CLUSTER];
        of_block = of_blocks;
    }
    /* All threads of all blocks call. `number` counts the sums before this one. */
    __device__ __forceinline__ void send(const Cluster &cluster, double x, uint32_t number) const {
        __shared__ double of_warp[warps];
        x = WholeWarp().over<Sum>(x);
        if (threadIdx.x % kLanes == 0)
            of_warp[threadIdx.x / kLanes] = x;
        __syncthreads();
        if (threadIdx.x == 0) {
            Arrival &arrived = Cluster::arrival(Cluster::kLateSums, number);
            Part part = {in_halves<Sum>(of_warp), 0.0};
            if (cluster.size == 1) {
                of_block[number % 2][0] = part;
                arrived.arrive();
                return;
            }
            if (cluster.rank == 0)
                Arrival::expect(arrived.address(), cluster.size * (uint32_t)sizeof part);
            arrived.put(0, &of_block[number % 2][cluster.rank], part);
        }
    }
    /* A warp of the leader's block calls. */
    __device__ __forceinline__ double receive(const Cluster &cluster, uint32_t number) const {
        double sum = 0;
        Arrival::wait_by_warp(Cluster::arrival(Cluster::kLateSums, number).address(), Cluster::parity(number));
#pragma unroll 1
        for (uint32_t block = 0; block < cluster.size; block++)
            sum += of_block[number % 2][block].x;
        return sum;
    }
};

/* A step of a row has K * kTimes vectors a thread, in parts of K, and fills a stage of the ring. Steps that do not fit
 * in the ring are read again. A stage has space for smem_vectors() of each vector of a row, of which the arrays that
 * are read come first.
 *
 * A loss with kSums needs sums over a row after its state is reduced: add() finds them, and close() takes them. This is
 * repeated while wants_sums() is true. A loss without kSums may find a sum in work(), with the gradient. factor_of() is
 * the divergence of a row that is `known`. For any other row, factor_of() times the sum of work() is the divergence.
 * finish() gets the divergence. writes() is called for each row.
 *
 * A whole step in the ring goes to enter_step(), add_step() and write_step() first. They have no branches for special
 * cases, and return false for a step that needs the general code. add_step() may overwrite the stage. The loss then
 * says that the row is `spoiled`, and the general code reads the step again. */
template <class Loss, int K, int kTimes, int kThreads = GPULOSSI_BLOCK> class PairsRing {
    typedef typename Loss::Element E;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::Params Params;
    typedef typename Loss::Totals Totals;
    typedef Schedule<Loss> OfRows;
    typedef typename OfRows::Arrays Arrays;
    enum {
        A = Loss::kArrays,
        W = Width<E>::value,
        kPart = kLanes * K,
        kChunk = kPart * kTimes,
        kStages = Loss::kStages,
        kWarps = kThreads / kLanes
    };
    const Params &p;
    Loss loss;
    Cluster cluster;
    uint32_t warp_in_block;
    uint32_t arrivals; /* The shared address of this warp's barriers, one a stage. */
    uint32_t slots;    /* The shared address of this warp's ring. A stage has a chunk of each array. */

    /* The state of a warp that is rarely used: in shared memory it takes no registers. */
    struct WarpState {
        Ahead queue;
        /* The numbers of reduced rows, of sums of rows, and of released steps so far. */
        uint32_t done, summed, released;
        int used; /* Steps in the ring. */
        /* The next request: its row among the queue's known rows, and the step of that row. */
        int next_row, next_step;
        int warps, warp;   /* Warps of the cluster, and the number of this warp. */
        int steps;         /* Steps of a row. */
        bool copies_whole; /* Whether all vectors of all rows can be copied whole. */
        /* Whether the rows of each array are contiguous, and are not overwritten by gradients. */
        bool packed;
    };
    __device__ __forceinline__ WarpState &warp_state() const {
        __shared__ WarpState of_warps[kWarps];
        return of_warps[warp_in_block];
    }

    __device__ __forceinline__ explicit PairsRing(const Params &p) : p(p), loss(p), warp_in_block(uniform_warp()) {
        __shared__ Arrival of_block[kWarps][kStages];
        arrivals = of_block[warp_in_block][0].address();
        slots = (uint32_t)__cvta_generic_to_shared(&stash_of_block()[(int)warp_in_block * kStages * stage_vectors()]);
        keep(slots);
        if (is_elected()) {
            WarpState &own = warp_state();
            own.queue = Ahead(p.rows.scratch, p.rows.rows, cluster.number, cluster.count,
                              2 * smem_steps() <= kStages ? 3 : 2, 0);
            own.done = own.summed = own.released = 0;
            own.used = own.next_row = own.next_step = 0;
            own.warps = (int)cluster.size * kWarps;
            own.warp = (int)cluster.rank_of(warp_in_block);
            own.steps = max(smem_steps(), steps_of(p, own.warps));
            own.copies_whole = can_copy_whole(p);
            own.packed = p.input_stride == p.rows.classes && p.target_stride == p.rows.classes &&
                         p.rows.grad != p.input && p.rows.grad != p.target;
#pragma unroll
            for (int i = 0; i < kStages; i++)
                of_block[warp_in_block][i].begin();
        }
        __syncwarp();
    }
    /* The steps of a row that stay in the ring. */
    __device__ __forceinline__ int smem_steps() const {
        return (int)(p.rows.of.smem_vectors / (K * kTimes));
    }
    DEVICE int steps_of(const Params &p, int warps) {
        int64_t most =
            p.rows.classes + W - 1 + (p.rows.flags & GPULOSSI_EVEN ? 0 : kLine / (int)sizeof(typename E::Bits) - 1);
        int step = kChunk * warps;
        return ((int)(most / W) + step - 1) / step;
    }
    DEVICE bool can_copy_whole(const Params &p) {
        return (p.rows.flags & GPULOSSI_EVEN) && (p.rows.classes | p.target_stride) % W == 0 &&
               p.target % GPULOSSI_VECTOR_BYTES == 0;
    }

    DEVICE int lane() {
        return (int)(threadIdx.x % kLanes);
    }
    /* The vectors of a stage. */
    DEVICE int stage_vectors() {
        return Loss::smem_vectors() * kChunk;
    }
    /* The stage of a step, counted from the oldest step in the ring. The ring never has more than kStages steps. */
    __device__ __forceinline__ int stage_of(int step) const {
        return (int)((warp_state().released + (uint32_t)step) % kStages);
    }
    __device__ __forceinline__ uint32_t arrival(int stage) const {
        return arrivals + (uint32_t)stage * (uint32_t)sizeof(Arrival);
    }
    /* The shared address of vector i of the first array in a stage. The next array begins a chunk later. */
    __device__ __forceinline__ uint32_t slot(int stage, int i) const {
        return slots + (uint32_t)(stage * stage_vectors() + i) * GPULOSSI_VECTOR_BYTES;
    }
    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const {
        return (step * warp_state().warps + warp_state().warp) * kChunk;
    }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        return p.rows.flags & GPULOSSI_EVEN ? Cut<E>(0, p.rows.classes)
                                            : Cut<E>(loss.array(0, row), p.rows.classes, kLine);
    }

    /* Requests steps of the known rows while stages are free. No lane of the warp still uses a released stage. */
    __device__ __forceinline__ void request_ahead() {
        WarpState &own = warp_state();
        int used = own.used, next_row = own.next_row, next_step = own.next_step;
        __syncwarp();
#pragma unroll 1
        while (used < kStages && next_row < own.queue.known) {
            uint32_t tile = own.queue.after(next_row);
            if (tile >= own.queue.tiles)
                break;
            if (own.copies_whole)
                request_whole(tile, vector(next_step), stage_of(used));
            else
                request(tile, vector(next_step), stage_of(used));
            used++;
            if (++next_step == smem_steps())
                next_step = 0, next_row++;
        }
        if (lane() == 0)
            own.used = used, own.next_row = next_row, own.next_step = next_step;
        __syncwarp();
    }
    __device__ __forceinline__ void request_whole(int64_t row, int v, int to) const {
        if (is_elected()) {
            int vectors = min((int)kChunk, (int)(p.rows.classes / W) - v);
            uint32_t bytes = (uint32_t)(max(vectors, 0) * GPULOSSI_VECTOR_BYTES);
            Arrival::expect(arrival(to), A * bytes);
            if (bytes != 0)
#pragma unroll
                for (int a = 0; a < A; a++)
                    Arrival::copy(arrival(to), slot(to, a * kChunk), loss.array(a, row) + (int64_t)v * W, bytes);
        }
        __syncwarp();
    }
    /* Whole vectors are in flight when this returns, and all other vectors are in the stage. */
    __device__ __forceinline__ void request(int64_t row, int v, int to) const {
        Cut<E> cut = cut_of(row);
        Arrays arrays(loss, cut, row);
        const bool ends = copies_ends(cut, row);
        int lead = ends ? cut.head / W : cut.lead;
        int first = max(v, lead), end = min(v + (int)kChunk, ends ? cut.vectors : cut.lead + (int)cut.whole_vectors);
        uint32_t bytes = (uint32_t)(max(end - first, 0) * GPULOSSI_VECTOR_BYTES);
        if (is_elected()) {
            uint32_t all = 0;
#pragma unroll
            for (int a = 0; a < A; a++)
                all += arrays.fit[a] ? bytes : 0;
            Arrival::expect(arrival(to), all);
#pragma unroll
            for (int a = 0; a < A; a++)
                if (bytes != 0 && arrays.fit[a])
                    Arrival::copy(arrival(to), slot(to, a * kChunk + (first - v)), arrays.at(a, first), bytes);
        }
        if (!ends && (!arrays.all_fit() || first != v || end < min(v + (int)kChunk, cut.vectors)))
            fill(cut, arrays, v, to);
    }
    /* Whether the vectors at the ends of a row are copied too, with elements of its neighbours. The first and the last
     * row lack a neighbour, and the memory beyond may not exist. */
    __device__ __forceinline__ bool copies_ends(const Cut<E> &cut, int64_t row) const {
        return warp_state().packed && row > 0 && row + 1 < p.rows.rows && cut.fits(loss.array(1, row));
    }
    /* Removes the elements of other rows from a step that has arrived. Each lane changes only vectors that it reads
     * itself. */
    __device__ __forceinline__ void clear_ends(const Cut<E> &cut, int v, int in) const {
#pragma unroll 1
        for (int first = 0; first < kChunk && v + first < cut.vectors; first += kLanes) {
            const int i = first + lane();
            if (v + i >= cut.vectors || cut.whole(v + i))
                continue;
#pragma unroll 1
            for (int a = 0; a < A; a++) {
                Vector<E> x = filled<E>(loss.absent(a));
                N y[W];
                if (v + i >= cut.head / W)
                    x = load_shared(slot(in, a * kChunk + i), 0);
#pragma unroll
                for (int n = 0; n < W; n++)
                    y[n] = cut.inside(cut.first(v + i) + n) ? x.get(n) : loss.absent(a);
                x.fill(y);
                store_shared(slot(in, a * kChunk + i), x);
            }
        }
        /* Orders these writes before later copies to the stage. */
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    DEVICE void store_shared(uint32_t slot, const Vector<E> &x) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot), "r"(x.word[0]), "r"(x.word[1]),
                     "r"(x.word[2]), "r"(x.word[3])
                     : "memory");
    }
    /* Each lane fills in the vectors that it reads itself. The fence orders these writes before later copies to the
     * stage. */
    __device__ __forceinline__ void fill(const Cut<E> &cut, const Arrays &arrays, int v, int to) const {
#pragma unroll 1
        for (int first = 0; first < kChunk && v + first < cut.vectors; first += kLanes)
#pragma unroll
            for (int a = 0; a < A; a++) {
                const int i = first + lane();
                if (v + i < cut.vectors && !(cut.whole(v + i) && arrays.fit[a])) {
                    Vector<E> x = load_elements<E>(cut, (const typename E::Bits *)arrays.vectors[a] + cut.head, v + i,
                                                   loss.absent(a));
                    store_shared(slot(to, a * kChunk + i), x);
                }
            }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __device__ __forceinline__ void wait(int step) const {
        Arrival::wait_by_warp(arrival(stage_of(step)), (warp_state().released + (uint32_t)step) / kStages & 1);
    }
    /* Increments a number of the warp. All lanes see the old number before, and the new one afterwards. */
    DEVICE void count(uint32_t &number) {
        __syncwarp();
        if (lane() == 0)
            number++;
        __syncwarp();
    }
    /* Releases the oldest step. */
    __device__ __forceinline__ void release() {
        if (lane() == 0)
            warp_state().used--;
        count(warp_state().released);
    }

    /* Goes on to the next row. All lanes have read the state of the queue before. */
    __device__ __forceinline__ void advance(uint32_t word) const {
        if (lane() == 0) {
            warp_state().queue.advance(word);
            warp_state().next_row--;
            warp_state().done++;
        }
        __syncwarp();
    }

    /* K vectors of each thread: one of the kTimes parts of a step. */
    struct Part {
        uint32_t slot; /* The shared address of this thread's first vector, if the step is in the ring. */
        int first, at; /* The first vector of the warp, and of this thread. */
        bool in_smem;

        __device__ __forceinline__ void advance() {
            slot += kPart * GPULOSSI_VECTOR_BYTES;
            first += kPart;
            at += kPart;
        }
    };
    /* The first part of a step of a row of which some steps are released. */
    __device__ __forceinline__ Part part_of(int step, int released) const {
        Part part;
        part.first = vector(step);
        part.at = part.first + lane();
        part.in_smem = step < smem_steps();
        part.slot = slot(stage_of(step - released), lane());
        return part;
    }
    DEVICE bool whole(const Cut<E> &cut, const Part &part) {
        return part.first >= cut.lead && part.first + kPart <= cut.lead + (int)cut.whole_vectors;
    }
    /* Whether all vectors of the step are whole. */
    DEVICE bool all_whole(const Cut<E> &cut, const Part &part) {
        return part.first >= cut.lead && part.first + kChunk <= cut.lead + (int)cut.whole_vectors;
    }
    /* Loads a part from the ring, or again from memory. */
    template <Stay stay>
    __device__ __forceinline__ void load_part(const Cut<E> &cut, int64_t row, const Part &part,
                                              Vector<E> (&x)[K][A]) const {
        if (!part.in_smem) {
            Arrays arrays(loss, cut, row);
            OfRows::template load<K, stay>(loss, cut, arrays, part.at, kLanes, x);
        } else if (part.first + kPart <= cut.vectors) {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++)
                    x[k][a] = load_shared(part.slot, a * kChunk + k * kLanes);
        } else {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++) {
                    x[k][a] = filled<E>(loss.absent(a));
                    if (part.at + k * kLanes < cut.vectors)
                        x[k][a] = load_shared(part.slot, a * kChunk + k * kLanes);
                }
        }
    }
    DEVICE Vector<E> load_shared(uint32_t slot, int i) {
        Vector<E> x;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                     : "r"(slot + (uint32_t)i * GPULOSSI_VECTOR_BYTES)
                     : "memory");
        return x;
    }

    /* All vectors of a thread in a whole step that is in the ring. */
    struct SmemStep {
        enum { vectors = K * kTimes, step = kLanes };
        uint32_t slot;
        __device__ __forceinline__ Vector<E> vector(int i, int a) const {
            return load_shared(slot, a * kChunk + i * kLanes);
        }
        /* Stores a number for each element of a vector, over the slots of the arrays from `a` on. */
        __device__ __forceinline__ void store(int i, int a, const float (&x)[W]) const {
#pragma unroll
            for (int j = 0; j < W; j += 4, a++)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address(i, a)), "f"(x[j]), "f"(x[j + 1]),
                             "f"(x[j + 2]), "f"(x[j + 3])
                             : "memory");
        }
        __device__ __forceinline__ void load(int i, int a, float (&x)[W]) const {
#pragma unroll
            for (int j = 0; j < W; j += 4, a++)
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(x[j]), "=f"(x[j + 1]), "=f"(x[j + 2]), "=f"(x[j + 3])
                             : "r"(address(i, a))
                             : "memory");
        }
        __device__ __forceinline__ uint32_t address(int i, int a) const {
            return slot + (uint32_t)(a * kChunk + i * kLanes) * GPULOSSI_VECTOR_BYTES;
        }
    };

    __device__ __forceinline__ void reduce(const Cut<E> &cut, const Row &r, typename Loss::State &state) {
#pragma unroll 1
        for (int step = 0; step < warp_state().steps; step++)
            reduce_step(cut, r, step, state);
    }
    __device__ __forceinline__ void reduce_step(const Cut<E> &cut, const Row &r, int step,
                                                typename Loss::State &state) const {
        Vector<E> x[K][A];
        Part part = part_of(step, 0);
        if (part.in_smem) {
            wait(step);
            if (!warp_state().copies_whole && !all_whole(cut, part) && copies_ends(cut, r.row))
                clear_ends(cut, part.first, stage_of(step));
            if (all_whole(cut, part) && loss.enter_step(state, SmemStep{part.slot}))
                return;
        }
#pragma unroll 1
        for (int i = 0; i < kTimes && part.first < cut.vectors; i++, part.advance()) {
            load_part<kRead_again>(cut, r.row, part, x);
            loss.enter(r, state, cut, part.at, kLanes, x);
        }
    }
    /* Backwards: the vectors that were read last are still in the cache. */
    template <class Sums> __device__ __forceinline__ void add(const Cut<E> &cut, Row &r, Sums &sums) const {
        Vector<E> x[K][A];
#pragma unroll 1
        for (int step = warp_state().steps - 1; step >= 0; step--) {
            Part part = part_of(step, 0);
            if (part.in_smem && all_whole(cut, part) && loss.add_step(r, SmemStep{part.slot}, sums))
                continue;
            part.in_smem = part.in_smem && !loss.spoiled(r);
#pragma unroll 1
            for (int i = 0; i < kTimes && part.first < cut.vectors; i++, part.advance()) {
                load_part<kRead_again>(cut, r.row, part, x);
                loss.add(cut, r, part.at, kLanes, x, sums);
            }
        }
    }
    /* The steps that are not in the ring come first, backwards. Returns the sum that work() has found. */
    __device__ __forceinline__ double write(const Cut<E> &cut, const Row &r) {
        Vector<E> x[K][A];
        double sum = 0;
        int steps = warp_state().steps, read = steps - smem_steps();
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            Part part = part_of(i < read ? steps - 1 - i : i - read, max(i - read, 0));
            bool frees = part.in_smem;
            if (!(part.in_smem && all_whole(cut, part) && loss.write_step(cut, r, part.at, SmemStep{part.slot}, sum))) {
                part.in_smem = part.in_smem && !loss.spoiled(r);
#pragma unroll 1
                for (int j = 0; j < kTimes && part.first < cut.vectors; j++, part.advance()) {
                    load_part<kRead_once>(cut, r.row, part, x);
                    loss.work(cut, r, part.at, kLanes, x, whole(cut, part), sum);
                }
            }
            if (frees) {
                /* Orders the writes of add_step() before later copies to the stage. */
                if (loss.spoiled(r))
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                release();
                request_ahead();
            }
        }
        return sum;
    }

    /* Rows whose results are not written yet. A lane of the leader's warp finishes a row, while other lanes finish other
     * rows. If the sum is not known yet, f is its factor. */
    struct Deferred {
        double f[kLanes];
        uint32_t row[kLanes];
    };
    /* This lane. keep() makes the compiler form the address of its entry again each time, so that it takes no register in
     * between. */
    DEVICE uint32_t entry() {
        uint32_t lane = threadIdx.x % kLanes;
        keep(lane);
        return lane;
    }
    /* Whether this lane of the leader's warp finishes row `number`. */
    __device__ __forceinline__ bool is_for(uint32_t number) const {
        return leads() && lane() == (int)(number % kLanes);
    }
    __device__ __forceinline__ bool leads() const {
        return warp_state().warp == 0;
    }
    /* The leader's warp completes row `number`, whose sum was not known. */
    __device__ __forceinline__ void complete(Deferred &deferred, const DeferredSum<kWarps> &deferred_sum,
                                             uint32_t number) const {
        const double sum = deferred_sum.receive(cluster, warp_state().summed - 1);
        if (is_for(number))
            deferred.f[entry()] *= sum;
    }
    __device__ __forceinline__ void finish(const Deferred &deferred, Totals *totals) const {
        const uint32_t of_lane = entry();
        loss.finish(deferred.row[of_lane], deferred.f[of_lane], totals[of_lane]);
    }

    __device__ __forceinline__ void rows(Totals *totals) {
        __shared__ Deferred deferred;
        DeferredSum<kWarps> deferred_sum;
        bool pending = false; /* Whether the sum of the row before is still to be received. */
        Cluster::begin();
#pragma unroll 1
        while (warp_state().queue.more()) {
            int64_t row = warp_state().queue.tile[0];
            uint32_t word = 0;
            if (cluster.leads())
                word = warp_state().queue.fetch();
            request_ahead();
            Cut<E> cut = cut_of(row);
            Row r = loss.begin(cut, row, true);
            typename Loss::State state = loss.empty();
            reduce(cut, r, state);
            cluster.template reduce<kWarps>(state, loss.empty(), word, 0, Cluster::kStates, warp_state().done);
            advance(word);
            loss.close(r, state);
            if constexpr (Loss::kSums) {
                uint32_t unused = 0;
#pragma unroll 1
                while (loss.wants_sums(r)) {
                    typename Loss::Sums sums = {}, none = {};
                    add(cut, r, sums);
                    cluster.template reduce<kWarps>(sums, none, unused, 0, Cluster::kSums, warp_state().summed);
                    count(warp_state().summed);
                    loss.close(r, sums);
                }
            }
            double sum = 0;
            if (loss.writes(r)) {
                sum = write(cut, r);
            } else {
#pragma unroll 1
                for (int i = 0; i < smem_steps(); i++)
                    release();
            }
            uint32_t number = warp_state().done - 1;
            if (pending && leads())
                complete(deferred, deferred_sum, number - 1);
            if (number % kLanes == 0 && number > 0 && leads())
                finish(deferred, totals);
            if (is_for(number)) {
                const uint32_t of_lane = entry();
                deferred.row[of_lane] = (uint32_t)r.row;
                deferred.f[of_lane] = loss.factor_of(r);
            }
            pending = !Loss::kSums && uniform(!r.known);
            if (pending) {
                deferred_sum.send(cluster, sum, warp_state().summed);
                count(warp_state().summed);
            }
        }
        uint32_t rows = warp_state().done;
        if (pending && leads())
            complete(deferred, deferred_sum, rows - 1);
        if (rows > 0 && leads() && lane() <= (int)((rows - 1) % kLanes))
            finish(deferred, totals);
        Cluster::leave();
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ Totals totals[kLanes]; /* Totals of the leader's warp. */
        PairsRing ring(p);
        if (threadIdx.x < kLanes)
            totals[threadIdx.x] = Totals::zero();
        ring.rows(totals);
        if (threadIdx.x < kLanes)
            end_of_warp(ring.loss, (gpulossi_scratch *)p.rows.scratch, totals[threadIdx.x]);
    }
};

#endif
