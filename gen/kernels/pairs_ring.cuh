/* The schedule for losses of two arrays that need the state of a whole row before anything else of it. A row stays in the
 * shared memory of a cluster of blocks: it is read once and written once. As for cross-entropy (see ring.cuh), each warp
 * has a ring of slots that it asks for its parts of the rows by itself; the ring has room for more than a row, so that
 * the next one is on its way while this one is reduced and folded. */
#ifndef GPULOSSI_PAIRS_RING_CUH
#define GPULOSSI_PAIRS_RING_CUH

#include "ring.cuh"

/* Sums of doubles over a cluster that the leader's warp hears of one fold later, which is when it can be sure of them. */
class LateSum {
    double (*of_block)[GPULOSSI_CLUSTER];

  public:
    __device__ __forceinline__ LateSum() {
        __shared__ double of_blocks[2][GPULOSSI_CLUSTER];
        of_block = of_blocks;
    }
    /* All threads of all blocks call, with the turn of the fold before. */
    __device__ __forceinline__ void send(const Cluster &cluster, double x, int turn) const {
        __shared__ double of_warp[kWarps];
        x = WholeWarp().over<Sum>(x);
        if (threadIdx.x % kLanes == 0)
            of_warp[threadIdx.x / kLanes] = x;
        __syncthreads();
        if (threadIdx.x == 0)
            Cluster::put(&of_block[turn][cluster.rank], 0, in_halves<Sum>(of_warp));
    }
    /* A thread of the leader's block calls, after the next fold. */
    __device__ __forceinline__ double receive(const Cluster &cluster, int turn) const {
        double sum = 0;
#pragma unroll 1
        for (uint32_t block = 0; block < cluster.size; block++)
            sum += of_block[turn][block];
        return sum;
    }
};

/* For losses that add up a sum over a row once its state is folded, when they write the gradient: K vectors a thread at a
 * time, kTimes times a step of the ring. What of a row finds no room is read again. The loss has work(), and a `known` of the
 * row that says that the divergence is known without the sum; factor_of() is the divergence of a row then, and else what
 * makes it of the sum; finish() gets it. writes() is asked of each row. A whole step in the ring goes to enter_held() and
 * work_held(), which take it in a straight line, or say that it is not for them. */
template <class Loss, int K, int kTimes> class PairsRing {
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
        kPlaces = GPULOSSI_SLOTS / (A * K * kTimes)
    };

    const Params &p;
    Loss loss;
    Cluster cluster;
    int warps, warp; /* of the cluster, and this one */
    int steps;       /* of a row */
    bool plain;      /* whether all vectors of all rows can be copied whole */
    Ahead queue;
    int begin, used;   /* the steps in the ring: the first one's place, and their number */
    uint32_t parities; /* of the phases that the places wait for */
    uint32_t arrivals; /* the address of this warp's, of which each place has one ... */
    uint32_t slots;    /* ... and of its slots: a place has a chunk of each array */
    int next, visit;   /* what is asked for next: of the rows that are known, and of its steps */

    __device__ __forceinline__ explicit PairsRing(const Params &p)
        : p(p), loss(p), warps((int)cluster.size * kWarps), warp((int)(cluster.rank * kWarps + threadIdx.x / kLanes)),
          steps(max(held(), steps_of(p, warps))), plain(is_plain(p)),
          queue(p.rows.scratch, p.rows.rows, cluster.number, cluster.count, 2 * held() <= kPlaces ? 3 : 2, 0), begin(0),
          used(0), parities(0), next(0), visit(0) {
        __shared__ Arrival of_block[kWarps][kPlaces];
        extern __shared__ uint4 stash[];
        arrivals = of_block[threadIdx.x / kLanes][0].address();
        slots = (uint32_t)__cvta_generic_to_shared(&stash[(int)(threadIdx.x / kLanes) * kPlaces * (A * kChunk)]);
        keep(arrivals);
        keep(slots);
        if (lane() == 0)
#pragma unroll
            for (int i = 0; i < kPlaces; i++)
                of_block[threadIdx.x / kLanes][i].begin();
        __syncwarp();
    }
    /* Those of a row that stay in the ring. */
    __device__ __forceinline__ int held() const {
        return (int)(p.rows.slots / (K * kTimes));
    }
    DEVICE int steps_of(const Params &p, int warps) {
        int64_t most = p.rows.flags & GPULOSSI_EVEN ? p.rows.classes + W - 1 : p.rows.classes + 2 * (W - 1);
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
        return begin + step < kPlaces ? begin + step : begin + step - kPlaces;
    }
    __device__ __forceinline__ uint32_t arrival(int place) const {
        return arrivals + (uint32_t)place * (uint32_t)sizeof(Arrival);
    }
    /* The address of one of a warp's slots, for vectors of the first array; those of another are a chunk away. */
    __device__ __forceinline__ uint32_t slot(int place, int i) const {
        return slots + (uint32_t)(place * (A * kChunk) + i) * GPULOSSI_VECTOR_BYTES;
    }
    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const {
        return (step * warps + warp) * kChunk;
    }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        return p.rows.flags & GPULOSSI_EVEN ? Cut<E>(0, p.rows.classes) : Cut<E>(loss.array(0, row), p.rows.classes);
    }

    /* Asks for as many steps of the rows that are known as there is room for. Nobody in the warp uses what was freed. */
    __device__ __forceinline__ void ask() {
        __syncwarp();
#pragma unroll 1
        while (used < kPlaces && next < queue.known) {
            uint32_t tile = queue.after(next);
            if (tile >= queue.tiles)
                return;
            if (plain)
                request_plain(tile, vector(visit), place(used));
            else
                request(tile, vector(visit), place(used));
            used++;
            if (++visit == held())
                visit = 0, next++;
        }
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
        int first = max(v, cut.lead), end = min(v + (int)kChunk, cut.lead + (int)cut.whole_vectors);
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
        if (!arrays.all_fit() || first != v || end < min(v + (int)kChunk, cut.vectors))
            fill(cut, arrays, v, to);
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
                    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot(to, a * kChunk + i)),
                                 "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
                                 : "memory");
                }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __device__ __forceinline__ void wait(int step) const {
        int at = place(step);
        Arrival::wait(arrival(at), parities >> at & 1);
    }
    /* Of the first step. */
    __device__ __forceinline__ void free() {
        parities ^= 1u << begin;
        begin = place(1);
        used--;
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
        part.held = step < held();
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
    };

    __device__ __forceinline__ void reduce(const Cut<E> &cut, const Row &r, typename Loss::State &state) const {
        Vector<E> x[K][A];
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            Part part = part_of(step, 0);
            if (part.held) {
                wait(step);
                if (all_whole(cut, part) && loss.enter_held(state, Held{part.slot}))
                    continue;
            }
#pragma unroll 1
            for (int i = 0; i < kTimes && part.first < cut.vectors; i++, part.advance()) {
                take<kRead_again>(cut, r.row, part, x);
                loss.enter(r, state, cut, part.at, kLanes, x);
            }
        }
    }
    /* First what found no room, from its end. Gives the sum of what was written. */
    __device__ __forceinline__ double write(const Cut<E> &cut, const Row &r) {
        Vector<E> x[K][A];
        double sum = 0;
        int read = steps - held();
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            Part part = part_of(i < read ? steps - 1 - i : i - read, max(i - read, 0));
            if (!(part.held && all_whole(cut, part) && loss.work_held(cut, r, part.at, Held{part.slot})))
#pragma unroll 1
                for (int j = 0; j < kTimes && part.first < cut.vectors; j++, part.advance()) {
                    take<kRead_once>(cut, r.row, part, x);
                    loss.work(cut, r, part.at, kLanes, x, whole(cut, part), sum);
                }
            if (part.held) {
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
    __device__ __forceinline__ void finish(Late (&lates)[kLanes], Totals *totals) const {
        Late &late = own(lates);
        loss.finish(late.row, late.f, totals[threadIdx.x % kLanes]);
    }

    __device__ __forceinline__ void rows(Totals *totals) {
        __shared__ Late lates[kLanes];
        LateSum late_sum;
        uint32_t rank = cluster.rank * GPULOSSI_BLOCK + threadIdx.x, late = 0;
        int turn = 0;
        bool awaited = false; /* the sum of the row before */
        Cluster::wait();      /* the others have begun */
#pragma unroll 1
        for (; queue.more(); turn ^= 1) {
            int64_t row = queue.tile[0];
            uint32_t word = 0;
            if (cluster.leads()) {
                keep(queue.teams); /* and what is worked out from them is not */
                word = queue.fetch();
            }
            ask();
            Cut<E> cut = cut_of(row);
            Row r = loss.begin(cut, row, true);
            typename Loss::State state = loss.empty();
            reduce(cut, r, state);
            cluster.fold(state, word, turn);
            queue.advance(word);
            next--;
            loss.close(r, state);
            if (awaited && rank == late - 1)
                own(lates).f *= late_sum.receive(cluster, turn ^ 1);
            if (late == kLanes) {
                if (rank < kLanes)
                    finish(lates, totals);
                late = 0;
            }
            if (rank == late)
                own(lates) = {row, loss.factor_of(r)};
            late++;
            awaited = !r.known;
            if (loss.writes(r)) {
                double sum = write(cut, r);
                if (awaited)
                    late_sum.send(cluster, sum, turn);
            } else {
#pragma unroll 1
                for (int i = 0; i < held(); i++)
                    free();
            }
        }
        Cluster::wait();
        if (awaited && rank == late - 1)
            own(lates).f *= late_sum.receive(cluster, turn ^ 1);
        if (rank < late)
            finish(lates, totals);
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ Totals totals[kLanes]; /* of the leader's warp */
        PairsRing ring(p);
        if (threadIdx.x < kLanes)
            totals[threadIdx.x] = Totals::zero();
        ring.rows(totals);
        Totals mine = Totals::zero();
        if (threadIdx.x < kLanes)
            mine = totals[threadIdx.x];
        end(ring.loss, (gpulossi_scratch *)p.rows.scratch, mine);
    }
};

#endif
