/* Rows of which each is kept in the shared memory of a cluster of blocks, on GPUs that have those: it is read once and
 * written once, however long it is, and while the gradient of one row is written the next is on its way.
 *
 * The code is that of older GPUs but for the instructions spelled out here. */
#ifndef GPULOSSI_CLUSTER_CUH
#define GPULOSSI_CLUSTER_CUH

#include "rows.cuh"

/* Copies 16 bytes to shared memory. settled<n>() waits until at most the last n groups of this thread's copies, each
 * ended by request_group(), are still under way. */
DEVICE void request(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
DEVICE void request_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int n> DEVICE void settled() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* The blocks of a cluster. All threads of all of them call what folds or waits. */
struct Cluster {
    uint32_t size, rank, number, count; /* of blocks, of this one; of this cluster, of clusters */

    __device__ __forceinline__ Cluster() {
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        number = blockIdx.x / size;
        count = gridDim.x / size;
    }
    __device__ __forceinline__ bool leads() const { return rank == 0 && threadIdx.x == 0; }

    /* An arrival releases and a wait acquires, where nothing else is said. */
    DEVICE void wait() { asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory"); }
    /* The same in two, with time for something else in between, where only the first warp has put anything: the arrival of
     * the others orders nothing, and does not wait for what they have stored elsewhere. */
    DEVICE void arrive() {
        if (threadIdx.x < kLanes)
            asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        else
            asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    }
    DEVICE void wait_for_arrivals() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

    /* Writes to where block `of` has what this one has here. */
    template <class T> DEVICE void put(T *here, uint32_t of, const T &x) {
        uint32_t there, words[sizeof(T) / 4];
        memcpy(words, &x, sizeof x);
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(there)
            : "r"((uint32_t)__cvta_generic_to_shared(here)), "r"(of));
#pragma unroll
        for (int i = 0; i < (int)(sizeof(T) / 4); i++)
            asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(there + 4 * i), "r"(words[i]) : "memory");
    }

    /* Folds the states of all threads into one, the same in all of them, and hands out the leader's word. `turn`
     * alternates between 0 and 1: then a fold needs one barrier, as nobody writes what others may still read. */
    template <class State> __device__ __forceinline__ void fold(State &state, uint32_t &word, int turn) const {
        struct Message {
            State state;
            uint32_t word, unused;
        };
        __shared__ State of_warp[kWarps];
        __shared__ Message of_block[2][GPULOSSI_CLUSTER];
        uint32_t warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
        state.fold(WholeWarp());
        if (lane == 0)
            of_warp[warp] = state;
        __syncthreads();
        if (warp == 0) {
            state = of_warp[lane % kWarps];
            state.fold(Repeated<kWarps>(kWarps));
            Message message = {state, __shfl_sync(0xffffffffu, word, 0), 0};
            if (lane < size)
                put(&of_block[turn][rank], lane, message);
        }
        arrive();
        wait_for_arrivals();
        state = of_block[turn][lane & (size - 1)].state;
        word = of_block[turn][0].word;
        state.fold(Repeated<GPULOSSI_CLUSTER>((int)size));
    }
};

/* The tiles of a launch, shared out among clusters as a Queue does among teams: those after the first come with the word
 * of a fold. */
struct ClusterQueue {
    gpulossi_scratch *scratch;
    uint32_t tiles, clusters, tile;

    __device__ __forceinline__ ClusterQueue(uint64_t scratch, const Cluster &cluster, int64_t tiles)
        : scratch((gpulossi_scratch *)scratch), tiles((uint32_t)tiles), clusters(cluster.count), tile(cluster.number) {}
    __device__ __forceinline__ bool more() const { return tile < tiles; }

    /* The leader's word: less the clusters, the tile after this one. What uses it waits for it. */
    __device__ __forceinline__ uint32_t fetch(const Cluster &cluster) const {
        return !cluster.leads() ? 0 : tiles > clusters ? count_up(&scratch->taken, tiles) : tiles - clusters;
    }
    __device__ __forceinline__ void advance(uint32_t word) { tile = clusters + word; }
};

/* Where the threads of a cluster keep vectors of a row: each its own, so that no barrier comes between. */
template <class Loss> struct Stash {
    typedef typename Loss::Element E;
    typedef Schedule<Loss> OfRows;
    typedef typename OfRows::Arrays Arrays;
    enum { A = Loss::kArrays };
    int rank, step; /* of this thread in the cluster, and their number */
    int slots;      /* vectors of each array that a thread keeps: number rank + step * slot of the row */

    __device__ __forceinline__ Stash(const Cluster &cluster, uint32_t slots)
        : rank((int)(cluster.rank * GPULOSSI_BLOCK + threadIdx.x)), step((int)(cluster.size * GPULOSSI_BLOCK)),
          slots((int)slots) {}

    DEVICE uint4 *at(int slot, int a) {
        extern __shared__ uint4 stash[];
        return &stash[(slot * A + a) * GPULOSSI_BLOCK + threadIdx.x];
    }
    __device__ __forceinline__ int vector(int slot) const { return rank + slot * step; }
    /* All slots, K at a time, and as many more as a row would need. */
    template <int K> __device__ __forceinline__ int steps(const Cut<E> &cut) const {
        int all = (cut.vectors + step - 1) >> __popc((unsigned)step - 1); /* a power of 2 */
        return max(slots, (all + K - 1) / K * K);
    }

    /* Asks for K slots of a row. What can't be copied whole is there when this returns. */
    template <int K>
    __device__ __forceinline__ void ask(const Loss &loss, const Cut<E> &cut, const Arrays &arrays, int slot) const {
        int v = vector(slot);
        if (arrays.all_fit() && cut.whole(v) && cut.whole(v + (K - 1) * step)) {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++)
                    request(at(slot + k, a), arrays.at(a, v) + (int64_t)step * (k * GPULOSSI_VECTOR_BYTES));
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++, v += step)
#pragma unroll
                for (int a = 0; a < A; a++) {
                    if (cut.whole(v) && arrays.fit[a]) {
                        request(at(slot + k, a), arrays.at(a, v));
                    } else {
                        Vector<E> x = filled<E>(loss.absent(a));
                        if (v < cut.vectors)
                            x = load_elements<E>(cut, (const typename E::Bits *)arrays.vectors[a] + cut.head, v,
                                                 loss.absent(a));
                        *at(slot + k, a) = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
                    }
                }
        }
        request_group();
    }

    /* Waits for slots after which so many groups, or more, were asked for. */
    DEVICE void wait(int groups_after) {
        switch (groups_after) {
        case 0:
            settled<0>();
            break;
        case 1:
            settled<1>();
            break;
        case 2:
            settled<2>();
            break;
        default:
            settled<3>();
        }
    }
    DEVICE Vector<E> vector_of(int slot, int a) {
        uint4 w = *at(slot, a);
        Vector<E> x;
        x.word[0] = w.x, x.word[1] = w.y, x.word[2] = w.z, x.word[3] = w.w;
        return x;
    }
    template <int K> DEVICE void take(int slot, Vector<E> (&x)[K][A]) {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int a = 0; a < A; a++)
                x[k][a] = vector_of(slot + k, a);
    }
};

/* The schedule for losses that add up sums over a row once its state is folded, K vectors a thread at a time: add() and a
 * close() with them, again while wants_sums() says so of the row, twice at most. What of a row finds no room is read again.
 * factor_of() is the divergence of a row, and finish() gets it. Some slots together that hold whole vectors go to
 * enter_held(), add_held() and write_held() first, which take them in a straight line, or say that they are not for them. */
template <class Loss, int K> struct Clustered {
    typedef typename Loss::Element E;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef Schedule<Loss> OfRows;
    typedef typename OfRows::Arrays Arrays;
    enum { A = Loss::kArrays, kHeld = GPULOSSI_VECTORS_STREAMED };

    struct Held {
        enum { vectors = kHeld };
        int slot;
        __device__ __forceinline__ Vector<E> vector(int i, int a) const { return Stash<Loss>::vector_of(slot + i, a); }
    };
    DEVICE bool whole(const Cut<E> &cut, const Stash<Loss> &stash, int slot) {
        return slot < stash.slots && cut.whole(stash.vector(slot)) && cut.whole(stash.vector(slot + kHeld - 1));
    }

    DEVICE void ask_all(const Loss &loss, const Stash<Loss> &stash, const typename Loss::Params &p, uint32_t tile) {
        Cut<E> cut(loss.array(0, tile), p.rows.classes);
        Arrays arrays(loss, cut, tile);
#pragma unroll 1
        for (int slot = 0; slot < stash.slots; slot += K)
            stash.template ask<K>(loss, cut, arrays, slot);
    }

    DEVICE void run(const typename Loss::Params &p) {
        __shared__ typename Loss::Totals total;
        Loss loss(p);
        Cluster cluster;
        ClusterQueue queue(p.rows.scratch, cluster, p.rows.rows);
        Stash<Loss> stash(cluster, p.rows.slots);
        int turn = 0;
        if (threadIdx.x == 0)
            total = Loss::Totals::zero();
        if (queue.more())
            ask_all(loss, stash, p, queue.tile);
        cluster.wait(); /* the others have begun */
#pragma unroll 1
        while (queue.more()) {
            int64_t row = queue.tile;
            uint32_t word = queue.fetch(cluster);
            Cut<E> cut(loss.array(0, row), p.rows.classes);
            Arrays arrays(loss, cut, row);
            Row r = loss.begin(cut, row, true);
            typename Loss::State state = loss.empty();
            Vector<E> x[K][A];
            int steps = stash.template steps<K>(cut);
#pragma unroll 1
            for (int first = 0; first < steps; first += kHeld) {
                if (first < stash.slots)
                    stash.wait((stash.slots - first - kHeld) / K);
                if (whole(cut, stash, first) && loss.enter_held(state, Held{first}))
                    continue;
#pragma unroll 1
                for (int slot = first; slot < min(first + kHeld, steps); slot += K) {
                    if (slot < stash.slots)
                        stash.template take<K>(slot, x);
                    else
                        OfRows::template load<K, kRead_again>(loss, cut, arrays, stash.vector(slot), stash.step, x);
                    loss.enter(r, state, cut, stash.vector(slot), stash.step, x);
                }
            }
            cluster.fold(state, word, turn);
            loss.close(r, state);
            uint32_t unused = 0;
#pragma unroll 1
            for (int round = 0; loss.wants_sums(r); round++) { /* two at most, by the turns of a fold */
                typename Loss::Sums sums = {};
#pragma unroll 1
                for (int first = (steps - 1) / kHeld * kHeld; first >= 0; first -= kHeld) {
                    if (whole(cut, stash, first) && loss.add_held(r, Held{first}, sums))
                        continue;
#pragma unroll 1
                    for (int slot = min(first + kHeld, steps) - K; slot >= first; slot -= K) {
                        if (slot < stash.slots)
                            stash.template take<K>(slot, x);
                        else
                            OfRows::template load<K, kRead_again>(loss, cut, arrays, stash.vector(slot), stash.step, x);
                        loss.add(cut, r, stash.vector(slot), stash.step, x, sums);
                    }
                }
                cluster.fold(sums, unused, turn ^ round);
                loss.close(r, sums);
            }
            if (cluster.leads())
                loss.finish(row, loss.factor_of(r), total);
            queue.advance(word);
            if (!loss.writes(r)) {
                if (queue.more())
                    ask_all(loss, stash, p, queue.tile);
                turn ^= 1;
                continue;
            }
            int64_t next = queue.more() ? (int64_t)queue.tile : row; /* any row will do when there is none */
            Cut<E> cut_of_next(loss.array(0, next), p.rows.classes);
            Arrays arrays_of_next(loss, cut_of_next, next);
            /* First what found no room, from its end: what was read last is still in the cache. */
#pragma unroll 1
            for (int step = stash.slots - steps; step < stash.slots;) {
                int first = step, v = stash.vector(first);
                if (first >= 0 && whole(cut, stash, first) && loss.write_held(cut, r, v, stash.step, Held{first}))
                    step += kHeld;
                else
                    do {
                        int slot = step < 0 ? stash.slots - K - step : step;
                        if (step < 0)
                            OfRows::template load<K, kRead_once>(loss, cut, arrays, stash.vector(slot), stash.step, x);
                        else
                            stash.template take<K>(slot, x);
                        v = stash.vector(slot);
                        loss.write(cut, r, v, stash.step, x, cut.whole(v) && cut.whole(v + (K - 1) * stash.step));
                        step += K;
                    } while (step % kHeld != 0 && step < stash.slots);
#pragma unroll 1
                for (int slot = max(first, 0); slot < step && queue.more(); slot += K)
                    stash.template ask<K>(loss, cut_of_next, arrays_of_next, slot);
            }
            turn ^= 1;
        }
        typename Loss::Totals mine = Loss::Totals::zero();
        if (threadIdx.x == 0)
            mine = total;
        end(loss, (gpulossi_scratch *)p.rows.scratch, mine);
    }
};

#endif
