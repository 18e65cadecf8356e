/* The schedule for losses of two arrays that need the state of a whole row before anything else of it. A row stays in the
 * shared memory of a cluster of blocks: it is read once and written once. Each warp has a ring of slots that it asks for its
 * parts of the rows by itself; the ring has room for more than a row, so that the next one is on its way while this one is
 * reduced and folded. Where only losses are wanted, rows may also just go through the ring. */
#ifndef GPULOSSI_ROW_PIPELINE2_CUH
#define GPULOSSI_ROW_PIPELINE2_CUH

#include "../device/cluster.cuh"
#include "../device/tile_scheduler.cuh"
#include "row_generic.cuh"

/* Sums of doubles over a cluster of blocks of so many warps, which only the leader's warp hears of. */
template <int warps> class LateSum {
    struct alignas(16) Part {
        double x, unused; /* sent too */
    };
    Part (*of_block)[GPULOSSI_CLUSTER];

  public:
    __device__ __forceinline__ LateSum() {
        __shared__ Part of_blocks[2][GPULOSSI_CLUSTER];
        of_block = of_blocks;
    }
    /* All threads of all blocks call, with the number of sums before. */
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
    /* A thread of the leader's block calls. */
    __device__ __forceinline__ double receive(const Cluster &cluster, uint32_t number) const {
        double sum = 0;
        Cluster::arrival(Cluster::kLateSums, number).wait(Cluster::parity(number));
#pragma unroll 1
        for (uint32_t block = 0; block < cluster.size; block++)
            sum += of_block[number % 2][block].x;
        return sum;
    }
};

/* K vectors a thread at a time, kTimes times a step of the ring. What of a row finds no room is read again. A place of the
 * ring has room for as many arrays as the loss keeps, of which those that are read come first.
 *
 * A loss of kSums adds up some over a row once its state is folded: add() and a close() with them, again while wants_sums()
 * says so. Another may add one up when it writes the gradient, by work(): unless the row is `known`, whose factor_of() is the
 * divergence then, and else what makes it of that sum. finish() gets it. writes() is asked of each row. A whole step in the
 * ring goes to enter_held(), add_held() and work_held() first, which take it in a straight line, or say that it is not for
 * them. add_held() may write over it: then the loss says that the row is `spoiled`, and what is for others is read again.
 *
 * With kStreams nothing is kept: each step that is reduced makes room for the next one, and a row that writes() is read again
 * for that. */
template <class Loss, int K, int kTimes, int kThreads = GPULOSSI_BLOCK, bool kStreams = false> class PairsRing {
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
        kPlaces = Loss::kPlaces,
        kPlace = Loss::kKept * kChunk, /* vectors of one */
        kWarps = kThreads / kLanes
    };
    static_assert(!(kStreams && Loss::kSums), "what is added up afterwards has to be kept");
    const Params &p;
    Loss loss;
    Cluster cluster;
    uint32_t arrivals; /* the address of this warp's, of which each place has one ... */
    uint32_t slots;    /* ... and of its slots: a place has a chunk of each array */

    /* What a warp seldom looks at takes no registers. */
    struct Seldom {
        Ahead queue;
        uint32_t done, summed, freed; /* so far: rows that are reduced, sums of rows, and steps */
        int used;                     /* and those in the ring */
        int next, visit;              /* what is asked for next: of the rows that are known, and of its steps */
        int warps, warp;              /* of the cluster, and this one */
        int steps;                    /* of a row */
        bool plain;                   /* whether all vectors of all rows can be copied whole */
        bool packed;                  /* whether rows lie side by side, in all arrays, and are not written over */
    };
    DEVICE Seldom &seldom() {
        __shared__ Seldom of_warps[kWarps];
        return of_warps[threadIdx.x / kLanes];
    }

    __device__ __forceinline__ explicit PairsRing(const Params &p) : p(p), loss(p) {
        __shared__ Arrival of_block[kWarps][kPlaces];
        arrivals = of_block[threadIdx.x / kLanes][0].address();
        slots = (uint32_t)__cvta_generic_to_shared(&stash_of_block()[(int)(threadIdx.x / kLanes) * kPlaces * kPlace]);
        keep(slots);
        if (lane() == 0) {
            Seldom &own = seldom();
            own.queue = Ahead(p.rows.scratch, p.rows.rows, cluster.number, cluster.count,
                              !kStreams && 2 * held() <= kPlaces ? 3 : 2, 0);
            own.done = own.summed = own.freed = 0;
            own.used = own.next = own.visit = 0;
            own.warps = (int)cluster.size * kWarps;
            own.warp = (int)cluster.warp();
            own.steps = max(kStreams ? 0 : held(), steps_of(p, own.warps));
            own.plain = is_plain(p);
            own.packed = p.input_stride == p.rows.classes && p.target_stride == p.rows.classes &&
                         p.rows.grad != p.input && p.rows.grad != p.target;
#pragma unroll
            for (int i = 0; i < kPlaces; i++)
                of_block[threadIdx.x / kLanes][i].begin();
        }
        __syncwarp();
    }
    /* The steps of a row that come to the ring, ... */
    __device__ __forceinline__ int held() const {
        return kStreams ? seldom().steps : (int)(p.rows.slots / (K * kTimes));
    }
    /* ... and those that stay there. */
    __device__ __forceinline__ int kept() const {
        return kStreams ? 0 : held();
    }
    DEVICE int steps_of(const Params &p, int warps) {
        int64_t most =
            p.rows.classes + W - 1 + (p.rows.flags & GPULOSSI_EVEN ? 0 : kLine / (int)sizeof(typename E::Bits) - 1);
        int step = kChunk * warps;
        return ((int)(most / W) + step - 1) / step;
    }
    DEVICE bool is_plain(const Params &p) {
        return (p.rows.flags & GPULOSSI_EVEN) && (p.rows.classes | p.target_stride) % W == 0 &&
               p.target % GPULOSSI_VECTOR_BYTES == 0;
    }

    DEVICE int lane() {
        return (int)(threadIdx.x % kLanes);
    }
    /* The place in the ring of a step from the first on; there are no more of those than places. */
    __device__ __forceinline__ int place(int step) const {
        return (int)((seldom().freed + (uint32_t)step) % kPlaces);
    }
    __device__ __forceinline__ uint32_t arrival(int place) const {
        return arrivals + (uint32_t)place * (uint32_t)sizeof(Arrival);
    }
    /* The address of one of a warp's slots, for vectors of the first array; those of another are a chunk away. */
    __device__ __forceinline__ uint32_t slot(int place, int i) const {
        return slots + (uint32_t)(place * kPlace + i) * GPULOSSI_VECTOR_BYTES;
    }
    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const {
        return (step * seldom().warps + seldom().warp) * kChunk;
    }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        return p.rows.flags & GPULOSSI_EVEN ? Cut<E>(0, p.rows.classes)
                                            : Cut<E>(loss.array(0, row), p.rows.classes, kLine);
    }

    /* Asks for as many steps of the rows that are known as there is room for. Nobody in the warp uses what was freed. */
    __device__ __forceinline__ void ask() {
        Seldom &own = seldom();
        int used = own.used, next = own.next, visit = own.visit;
        __syncwarp();
#pragma unroll 1
        while (used < kPlaces && next < own.queue.known) {
            uint32_t tile = own.queue.after(next);
            if (tile >= own.queue.tiles)
                break;
            if (own.plain)
                request_plain(tile, vector(visit), place(used));
            else
                request(tile, vector(visit), place(used));
            used++;
            if (++visit == held())
                visit = 0, next++;
        }
        if (lane() == 0)
            own.used = used, own.next = next, own.visit = visit;
        __syncwarp();
    }
    __device__ __forceinline__ void request_plain(int64_t row, int v, int to) const {
        if (lane() == 0) {
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
    /* What can't be copied whole is there when this returns. */
    __device__ __forceinline__ void request(int64_t row, int v, int to) const {
        Cut<E> cut = cut_of(row);
        Arrays arrays(loss, cut, row);
        const bool ends = copies_ends(cut, row);
        int lead = ends ? cut.head / W : cut.lead;
        int first = max(v, lead), end = min(v + (int)kChunk, ends ? cut.vectors : cut.lead + (int)cut.whole_vectors);
        uint32_t bytes = (uint32_t)(max(end - first, 0) * GPULOSSI_VECTOR_BYTES);
        if (lane() == 0) {
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
    /* Whether the vectors at the ends of a row, of which others have a part, are copied whole as well: not where there may be
     * nothing beside the row. */
    __device__ __forceinline__ bool copies_ends(const Cut<E> &cut, int64_t row) const {
        return seldom().packed && row > 0 && row + 1 < p.rows.rows && cut.fits(loss.array(1, row));
    }
    /* Each lane takes what other rows have out of those that it takes later, in a step that has come. */
    __device__ __forceinline__ void clear_ends(const Cut<E> &cut, int v, int in) const {
#pragma unroll 1
        for (int i = lane(); i < kChunk && v + i < cut.vectors; i += kLanes) {
            if (cut.whole(v + i))
                continue;
#pragma unroll 1
            for (int a = 0; a < A; a++) {
                Vector<E> x = filled<E>(loss.absent(a));
                N y[W];
                if (v + i >= cut.head / W)
                    x = taken(slot(in, a * kChunk + i), 0);
#pragma unroll
                for (int n = 0; n < W; n++)
                    y[n] = cut.inside(cut.first(v + i) + n) ? x.get(n) : loss.absent(a);
                x.fill(y);
                put(slot(in, a * kChunk + i), x);
            }
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* copies to the same place come after that */
    }
    DEVICE void put(uint32_t slot, const Vector<E> &x) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot), "r"(x.word[0]), "r"(x.word[1]),
                     "r"(x.word[2]), "r"(x.word[3])
                     : "memory");
    }
    /* Each lane fills what it takes later. Copies to the same places come after that. */
    __device__ __forceinline__ void fill(const Cut<E> &cut, const Arrays &arrays, int v, int to) const {
#pragma unroll 1
        for (int i = lane(); i < kChunk && v + i < cut.vectors; i += kLanes)
#pragma unroll
            for (int a = 0; a < A; a++)
                if (!(cut.whole(v + i) && arrays.fit[a])) {
                    Vector<E> x = load_elements<E>(cut, (const typename E::Bits *)arrays.vectors[a] + cut.head, v + i,
                                                   loss.absent(a));
                    put(slot(to, a * kChunk + i), x);
                }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __device__ __forceinline__ void wait(int step) const {
        Arrival::wait(arrival(place(step)), (seldom().freed + (uint32_t)step) / kPlaces & 1);
    }
    /* One more. What all lanes see before is the old number, and the new one afterwards. */
    DEVICE void count(uint32_t &number) {
        __syncwarp();
        if (lane() == 0)
            number++;
        __syncwarp();
    }
    /* Of the first step. */
    __device__ __forceinline__ void free() {
        if (lane() == 0)
            seldom().used--;
        count(seldom().freed);
    }

    /* To the next row. All lanes have read what was there before. */
    DEVICE void advance(uint32_t word) {
        if (lane() == 0) {
            seldom().queue.advance(word);
            seldom().next--;
            seldom().done++;
        }
        __syncwarp();
    }

    /* K vectors of each thread, of the kTimes parts of a step. */
    struct Part {
        uint32_t slot; /* where this thread has the first, if the step is in the ring */
        int first, at; /* the warp's first vector, and this thread's */
        bool held;

        __device__ __forceinline__ void advance() {
            slot += kPart * GPULOSSI_VECTOR_BYTES;
            first += kPart;
            at += kPart;
        }
    };
    /* The first part of a step of a row, some of whose steps have been freed. */
    __device__ __forceinline__ Part part_of(int step, int freed) const {
        Part part;
        part.first = vector(step);
        part.at = part.first + lane();
        part.held = !kStreams && step < held();
        part.slot = slot(place(step - freed), lane());
        return part;
    }
    DEVICE bool whole(const Cut<E> &cut, const Part &part) {
        return part.first >= cut.lead && part.first + kPart <= cut.lead + (int)cut.whole_vectors;
    }
    /* The same of all of a step. */
    DEVICE bool all_whole(const Cut<E> &cut, const Part &part) {
        return part.first >= cut.lead && part.first + kChunk <= cut.lead + (int)cut.whole_vectors;
    }
    /* From the ring, or once more from memory. */
    template <Stay stay>
    __device__ __forceinline__ void take(const Cut<E> &cut, int64_t row, const Part &part, Vector<E> (&x)[K][A]) const {
        if (!part.held) {
            Arrays arrays(loss, cut, row);
            OfRows::template load<K, stay>(loss, cut, arrays, part.at, kLanes, x);
        } else if (part.first + kPart <= cut.vectors) {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++)
                    x[k][a] = taken(part.slot, a * kChunk + k * kLanes);
        } else {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++) {
                    x[k][a] = filled<E>(loss.absent(a));
                    if (part.at + k * kLanes < cut.vectors)
                        x[k][a] = taken(part.slot, a * kChunk + k * kLanes);
                }
        }
    }
    DEVICE Vector<E> taken(uint32_t slot, int i) {
        Vector<E> x;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                     : "r"(slot + (uint32_t)i * GPULOSSI_VECTOR_BYTES)
                     : "memory");
        return x;
    }

    /* All vectors of a thread in a whole step that is in the ring. */
    struct Held {
        enum { vectors = K * kTimes, step = kLanes };
        uint32_t slot;
        __device__ __forceinline__ Vector<E> vector(int i, int a) const { return taken(slot, a * kChunk + i * kLanes); }
        /* Numbers of a vector's elements, where arrays from `a` on have it. */
        __device__ __forceinline__ void keep(int i, int a, const float (&x)[W]) const {
#pragma unroll
            for (int j = 0; j < W; j += 4, a++)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address(i, a)), "f"(x[j]), "f"(x[j + 1]),
                             "f"(x[j + 2]), "f"(x[j + 3])
                             : "memory");
        }
        __device__ __forceinline__ void kept(int i, int a, float (&x)[W]) const {
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
        for (int step = 0; step < seldom().steps; step++) {
            reduce_step(cut, r, step, kStreams ? step : 0, state);
            if (kStreams)
                pass_on(r.row, step + kPlaces);
        }
    }
    __device__ __forceinline__ void reduce_step(const Cut<E> &cut, const Row &r, int step, int freed,
                                                typename Loss::State &state) const {
        Vector<E> x[K][A];
        Part part = part_of(step, freed);
        part.held |= kStreams;
        if (part.held) {
            wait(step - freed);
            if (!seldom().plain && !all_whole(cut, part) && copies_ends(cut, r.row))
                clear_ends(cut, part.first, place(step - freed));
            if (all_whole(cut, part) && loss.enter_held(state, Held{part.slot}))
                return;
        }
#pragma unroll 1
        for (int i = 0; i < kTimes && part.first < cut.vectors; i++, part.advance()) {
            take<kRead_again>(cut, r.row, part, x);
            loss.enter(r, state, cut, part.at, kLanes, x);
        }
    }
    /* Asks for a step of this row in the place of one that is done with, and past its end for one of the next. Where nothing
     * but copies is to be done, what a warp knows of the ring changes little: it is as full as before. */
    __device__ __forceinline__ void pass_on(int64_t row, int step) {
        Seldom &own = seldom();
        if (!(own.plain && step < own.steps)) {
            free();
            ask();
            return;
        }
        __syncwarp();
        request_plain(row, vector(step), place(0));
        if (lane() == 0) {
            own.freed++;
            if (step + 1 == own.steps)
                own.next = 1, own.visit = 0;
        }
        __syncwarp();
    }
    /* From the end: what was read last is still in the cache. */
    template <class Sums> __device__ __forceinline__ void add(const Cut<E> &cut, Row &r, Sums &sums) const {
        Vector<E> x[K][A];
#pragma unroll 1
        for (int step = seldom().steps - 1; step >= 0; step--) {
            Part part = part_of(step, 0);
            if (part.held && all_whole(cut, part) && loss.add_held(r, Held{part.slot}, sums))
                continue;
            part.held = part.held && !loss.spoiled(r);
#pragma unroll 1
            for (int i = 0; i < kTimes && part.first < cut.vectors; i++, part.advance()) {
                take<kRead_again>(cut, r.row, part, x);
                loss.add(cut, r, part.at, kLanes, x, sums);
            }
        }
    }
    /* First what found no room, from its end. Gives the sum of what was written. */
    __device__ __forceinline__ double write(const Cut<E> &cut, const Row &r) {
        Vector<E> x[K][A];
        double sum = 0;
        int steps = seldom().steps, read = steps - kept();
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            Part part = part_of(i < read ? steps - 1 - i : i - read, max(i - read, 0));
            bool frees = part.held;
            if (!(part.held && all_whole(cut, part) && loss.work_held(cut, r, part.at, Held{part.slot}))) {
                part.held = part.held && !loss.spoiled(r);
#pragma unroll 1
                for (int j = 0; j < kTimes && part.first < cut.vectors; j++, part.advance()) {
                    take<kRead_once>(cut, r.row, part, x);
                    loss.work(cut, r, part.at, kLanes, x, whole(cut, part), sum);
                }
            }
            if (frees) {
                if (loss.spoiled(r)) /* copies to the same place come after that */
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                free();
                ask();
            }
        }
        return sum;
    }

    /* What is left to do of a row: a lane of the leader's warp does it, together with others that have other rows. Where
     * the sum is not known yet, f is what it is to be multiplied by. */
    struct Late {
        int64_t row;
        double f;
    };
    /* The lane's own, found anew each time: that takes no register meanwhile. */
    template <class T> DEVICE T &own(T (&of_lanes)[kLanes]) {
        uint32_t lane = threadIdx.x % kLanes;
        keep(lane);
        return of_lanes[lane];
    }
    /* Whether this is the lane of the leader's warp that a row's rest is left to. */
    DEVICE bool is_for(uint32_t number) {
        return seldom().warp == 0 && lane() == (int)(number % kLanes);
    }
    __device__ __forceinline__ void finish(Late (&lates)[kLanes], Totals *totals) const {
        Late &late = own(lates);
        loss.finish(late.row, late.f, totals[threadIdx.x % kLanes]);
    }

    __device__ __forceinline__ void rows(Totals *totals) {
        __shared__ Late lates[kLanes];
        LateSum<kWarps> late_sum;
        bool awaited = false; /* the sum of the row before */
        Cluster::begin();
#pragma unroll 1
        while (seldom().queue.more()) {
            int64_t row = seldom().queue.tile[0];
            uint32_t word = 0;
            if (cluster.leads())
                word = seldom().queue.fetch();
            ask();
            Cut<E> cut = cut_of(row);
            Row r = loss.begin(cut, row, true);
            typename Loss::State state = loss.empty();
            reduce(cut, r, state);
            cluster.template reduce<kWarps>(state, loss.empty(), word, 0, Cluster::kStates, seldom().done);
            advance(word);
            loss.close(r, state);
            if constexpr (Loss::kSums) {
                uint32_t unused = 0;
#pragma unroll 1
                while (loss.wants_sums(r)) {
                    typename Loss::Sums sums = {}, none = {};
                    add(cut, r, sums);
                    cluster.template reduce<kWarps>(sums, none, unused, 0, Cluster::kSums, seldom().summed);
                    count(seldom().summed);
                    loss.close(r, sums);
                }
            }
            double sum = 0;
            if (loss.writes(r)) {
                sum = write(cut, r);
            } else {
#pragma unroll 1
                for (int i = 0; i < kept(); i++)
                    free();
            }
            uint32_t number = seldom().done - 1;
            if (awaited && is_for(number - 1))
                own(lates).f *= late_sum.receive(cluster, seldom().summed - 1);
            if (number % kLanes == 0 && number > 0 && seldom().warp == 0)
                finish(lates, totals);
            if (is_for(number))
                own(lates) = {r.row, loss.factor_of(r)};
            awaited = !Loss::kSums && !r.known;
            if (awaited) {
                late_sum.send(cluster, sum, seldom().summed);
                count(seldom().summed);
            }
        }
        uint32_t rows = seldom().done;
        if (awaited && is_for(rows - 1))
            own(lates).f *= late_sum.receive(cluster, seldom().summed - 1);
        if (rows > 0 && seldom().warp == 0 && lane() <= (int)((rows - 1) % kLanes))
            finish(lates, totals);
        Cluster::leave();
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ Totals totals[kLanes]; /* of the leader's warp */
        PairsRing ring(p);
        if (threadIdx.x < kLanes)
            totals[threadIdx.x] = Totals::zero();
        ring.rows(totals);
        if (threadIdx.x < kLanes)
            end_of_warp(ring.loss, (gpulossi_scratch *)p.rows.scratch, totals[threadIdx.x]);
    }
};

#endif
