/* Rows of cross-entropy with label smoothing in the shared memory of a cluster. A thread has the same classes of every row, whose
 * weights it keeps in registers, so that it reads them once a launch.
 *
 * No barrier comes between rows. Each warp reduces its part of the rows, and writes it when it hears what the whole row is,
 * some rows later. Meanwhile two warps of each block add up what these know of a row, in turn, and send it to the other
 * blocks of the cluster, and another, the manager, adds up what has come from all blocks, tells the others, and finishes the
 * row. Rows to be written each warp asks for by itself, its part when it has written another. Others are asked for by those
 * that send, all of the block's part at once: when a row is reduced its place is free, and more of them may be under way.
 *
 * All rows start on 16 bytes and fit, and logits are taken as they are. What is not finite, or too large for the short
 * formulas, is found in what they give, and the row is then gone through again in the long way. */
#ifndef GPULOSSI_ROW_CLUSTER_WS_CUH
#define GPULOSSI_ROW_CLUSTER_WS_CUH

#include "../device/mbarrier.cuh"
#include "../device/cluster.cuh"
#include "ce_full_rows.cuh"

template <class E> class Kept {
    typedef Options<E, kSmoothed> Loss;
    typedef typename E::Bits Bits;
    typedef typename Loss::State State;
    typedef typename Loss::Totals Totals;
    typedef typename Loss::OfRows Terms;
    enum {
        W = Width<E>::value,
        K = GPULOSSI_KEPT_CLASSES / W, /* vectors of a thread */
        kChunk = kLanes * K,           /* of a warp, side by side */
        kSenders = 2,                  /* warps that send what a block knows, a row each in turn */
        kOthers = 1 + kSenders,        /* and the manager, besides those that work */
        kWorkers = GPULOSSI_KEPT_WARPS,
        kRows = GPULOSSI_KEPT_VECTORS / K,   /* that there is room for */
        kLead = kRows / 3,                   /* rows that are reduced before the first of them is written */
        kAtOnce = sizeof(Bits) == 2 ? 2 : 1, /* where none is written: rows that are reduced together, at most 2, ... */
        kAhead = 14,                         /* ... and rows that are before the first of them is looked at again */
        kTurns = 32,                         /* rows that may be under way somewhere in the cluster */
        kSums = 2,                           /* of a row: its exponentials, and its drop */
        kNobody = INT32_MAX
    };
    static_assert(kTurns >= 2 * kAhead + 2 * kAtOnce && kAhead >= kLead,
                  "a block may be a lead before one that is a lead before a third");
    static_assert(kRows % kAtOnce == 0 && kAhead % kAtOnce == 0 && kTurns % kAtOnce == 0, "they come and go together");

    /* Of a row, or a part of it: with a the masses before smoothing, drop = sum a (top - x); of a warp over ln 2. */
    struct alignas(16) Part {
        float top;
        int best; /* of a warp the lanes that have the top, else the first class that has it */
        float sum, drop;

        DEVICE Part empty() {
            Part part = {-Limits<float>::infinity(), kNobody, 0, 0};
            return part;
        }
        /* To a top of several parts; mass = sum a. */
        __device__ __forceinline__ void raise(float all, float mass) {
            if (top == all)
                return;
            sum *= exp_below(top, all);
            if (mass != 0)
                drop = fma(mass, difference(all, top), drop);
            top = all;
            best = kNobody;
        }
    };
    /* What a worker needs of a row to write it: gradients are 2^(slope x - offset) of_exp - w of_weight. */
    struct alignas(16) Known {
        float offset, of_exp, of_weight, of_target;
        int y, vector; /* the target, where it has a gradient of its own, and its vector of the row; or -1 */
        int long_way;  /* which row is to be gone through again, if any ... */
        int anew;      /* ... after so many others */
    };
    enum { kNone, kItself, kNext }; /* or the next one, which is told of together with it */
    /* The state of a row that is gone through again, or of a block's part. */
    struct alignas(16) Whole {
        State state;
        int unused[2]; /* sent too */
    };
    struct Shared {
        Known known[kTurns];
        Part of_warp[kTurns][kWorkers], of_block[kTurns][GPULOSSI_CLUSTER];
        Whole long_of_block[2][GPULOSSI_CLUSTER];
        State long_of_warp[kWorkers], long_state;
        float mass_of_warp[kWorkers], mass_of_block[GPULOSSI_CLUSTER];
        Arrival copied[kWorkers][kRows];
        /* Of a row: the warps have reduced it, the blocks have, and it is known; and the same in the long way. */
        Arrival reduced[kTurns], folded[kTurns], told[kTurns], long_reduced, long_folded, long_told;
    };
    /* The rows of a cluster are numbered; each lives in the ring of its warp, and in the buffers of its turn. */
    DEVICE uint32_t place(uint32_t number) { return number % kRows; }
    DEVICE uint32_t turn(uint32_t number) { return number % kTurns; }
    DEVICE uint32_t parity_of_turn(uint32_t number) { return number / kTurns & 1; }

    const gpulossi_cross_entropy &p;
    const Loss &loss;
    const Cluster &cluster;
    Shared &shared;
    Cut<E> cut;     /* of every row */
    uint32_t count; /* rows of this cluster */
    int first;      /* vector of this block in a row */
    int workers;    /* warps of the block that have a part of the rows */

    DEVICE uint32_t lane() { return threadIdx.x % kLanes; }
    DEVICE bool finite(float x) { return fabs(x) < Limits<float>::infinity(); }
    /* What stands where a row has no class: so low that it adds nothing, also to a product with no mass. */
    DEVICE float lowest() { return E::dtype() == GPULOSS_F16 ? -65504.0f : -0x1p100f; }
    /* Sums of m numbers over the lanes of a warp, m a power of two: each in the lanes of an m-th of it, as the first. */
    template <int m> DEVICE void sums_by_lanes(float (&x)[m]) {
#pragma unroll
        for (int n = m / 2, distance = kLanes / 2; distance > 0; n /= 2, distance /= 2) {
            bool in_other = lane() & distance;
#pragma unroll
            for (int i = 0; i < max(n, 1); i++) {
                float kept = n > 0 && in_other ? x[n + i] : x[i], given = n == 0 || in_other ? x[i] : x[n + i];
                x[i] = kept + __shfl_xor_sync(0xffffffffu, given, distance);
            }
        }
    }
    DEVICE int least_of_warp(int x) {
        int all;
        asm volatile("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(x) : "memory");
        return all;
    }
    __device__ __forceinline__ int64_t row_of(uint32_t number) const {
        return cluster.number + (int64_t)number * cluster.count;
    }
    /* Where a block has vector v of its own. */
    DEVICE uint4 *slot(uint32_t number, int v) {
        return &stash_of_block()[place(number) * (kWorkers * kChunk) + (uint32_t)v];
    }
    /* Asks for a row's whole vectors of n from v on, that the block has, to an address of the ring. */
    __device__ __forceinline__ void ask(uint32_t number, uint32_t arrival, uint32_t to, int v, int n) const {
        uint32_t bytes = (uint32_t)(max(0, min((int)cut.whole_vectors - v, n)) * GPULOSSI_VECTOR_BYTES);
        Arrival::expect(arrival, bytes);
        if (bytes != 0)
            Arrival::copy(arrival, to, loss.array(0, row_of(number)) + (int64_t)v * W, bytes);
    }
    /* For all warps of the block; rows that are reduced together come together, also where there is no second one. */
    __device__ __forceinline__ void ask_for_all(uint32_t number) const {
        if (lane() == 0 && number / kAtOnce * kAtOnce < count && workers > 0)
            ask(number, shared.copied[0][place(number) / kAtOnce * kAtOnce].address(),
                (uint32_t)__cvta_generic_to_shared(slot(number, 0)), first, number < count ? workers * kChunk : 0);
    }
    /* Lanes of a warp that tell of what it has reduced. */
    __device__ __forceinline__ uint32_t tellers() const {
        return kSums * (loss.writes() ? 1 : kAtOnce);
    }
    /* Rows that are reduced before the first of them is looked at again. */
    __device__ __forceinline__ uint32_t lead() const {
        return loss.writes() ? kLead : kAhead;
    }
    /* The mass of a class before smoothing. */
    __device__ __forceinline__ float weight(int64_t c) const {
        return cut.inside(c) ? loss.terms.class_weight(p.class_offset + c) : 0.0f;
    }

    struct Worker {
        const Kept &of;
        Shared &shared;
        int at; /* this thread's first vector within the block */
        /* Whether this lane tells of the tops of rows, or of one of their sums; of both, if it writes what others read. */
        bool speaks, tells;
        uint32_t slots;      /* the addresses of this thread's first vector in the ring, ... */
        uint32_t arrivals;   /* ... and of its warp's copies */
        float w[K][W], mass; /* of its classes, and their sum */

        __device__ __forceinline__ explicit Worker(const Kept &of)
            : of(of), shared(of.shared), at((int)(threadIdx.x / kLanes - kOthers) * kChunk + (int)lane()),
              speaks(lane() == speaker()), tells((lane() - speaker()) % (kLanes / of.tellers()) == 0),
              slots((uint32_t)__cvta_generic_to_shared(slot(0, at))),
              arrivals(shared.copied[at / kChunk][0].address()) {
            float sums[K];
#pragma unroll
            for (int k = 0; k < K; k++) {
                int v = in_row() + k * kLanes;
#pragma unroll
                for (int i = 0; i < W; i++)
                    w[k][i] = works() ? of.weight(of.cut.first(v) + i) : 0.0f;
                sums[k] = in_halves<Sum>(w[k]);
                if (!of.cut.whole(v)) {
#pragma unroll 1
                    for (uint32_t place = 0; place < kRows; place++)
                        put(place, k, filled<E>(lowest()));
                }
            }
            mass = in_halves<Sum>(sums);
            float of_warp = WholeWarp().template over<Sum>(mass);
            if (lane() == 0)
                shared.mass_of_warp[at / kChunk] = of_warp;
        }

        /* The same in the row. */
        __device__ __forceinline__ int in_row() const {
            return of.first + at;
        }
        __device__ __forceinline__ uint32_t vector(uint32_t place, int k) const {
            return slots + (place * (kWorkers * kChunk) + (uint32_t)k * kLanes) * GPULOSSI_VECTOR_BYTES;
        }
        __device__ __forceinline__ void put(uint32_t place, int k, const Vector<E> &x) const {
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(vector(place, k)), "r"(x.word[0]),
                         "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
                         : "memory");
        }
        __device__ __forceinline__ Vector<E> taken(uint32_t place, int k) const {
            Vector<E> x;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                         : "r"(vector(place, k))
                         : "memory");
            return x;
        }
        __device__ __forceinline__ void take(uint32_t place, Vector<E> (&x)[K][1]) const {
#pragma unroll
            for (int k = 0; k < K; k++)
                x[k][0] = taken(place, k);
        }
        /* Whether this warp has a part of the rows. */
        __device__ __forceinline__ bool works() const {
            return at / kChunk < of.workers;
        }
        __device__ __forceinline__ uint32_t speaker() const {
            uint32_t of_warp = (uint32_t)(of.cut.vectors - 1 - (in_row() - (int)lane()));
            return of.p.rows.classes % W != 0 && of_warp < kChunk ? of_warp % kLanes : 0;
        }
        /* Whether this thread has the last vector of a row and it is not whole; and which of its own that is. */
        __device__ __forceinline__ bool partial() const {
            return of.p.rows.classes % W != 0 && (uint32_t)(of.cut.vectors - 1 - in_row()) < kChunk &&
                   (of.cut.vectors - 1 - in_row()) % kLanes == 0;
        }
        __device__ __forceinline__ int last() const {
            return (of.cut.vectors - 1 - in_row()) / kLanes;
        }
        __device__ __forceinline__ void ask(uint32_t number, uint32_t place) const {
            if (lane() == 0 && number < of.count)
                of.ask(number, arrivals + place * (uint32_t)sizeof(Arrival), vector(place, 0), in_row(), kChunk);
        }

        /* The row of this number and the next ones, R in all; their parts of what is not whole are there afterwards as well.
         * In place of a row past the last the first is reduced again, and nobody looks at it. */
        template <int R> __device__ __forceinline__ void reduce(uint32_t number, uint32_t place) const {
            Vector<E> x[R][K][1];
            float highest[R], top[R], sums[R * kSums];
            Part *parts[R];
            if (partial())
#pragma unroll 1
                for (int r = 0; r < R && number + r < of.count; r++)
                    put(place + r, last(),
                        load_elements<E>(of.cut, of.loss.array(0, of.row_of(number + r)), of.cut.vectors - 1,
                                         lowest()));
#pragma unroll
            for (int r = 0; r < R; r++) {
                take(number + r < of.count ? place + r : place, x[r]);
                parts[r] = &shared.of_warp[turn(number) + r][at / kChunk];
            }
#pragma unroll
            for (int r = 0; r < R; r++)
                highest[r] = largest(x[r], 0);
#pragma unroll
            for (int r = 0; r < R; r++)
                top[r] = largest_over(WholeWarp(), highest[r]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                uint32_t lanes = __ballot_sync(0xffffffffu, highest[r] == top[r]);
                if (speaks)
                    parts[r]->top = top[r], parts[r]->best = (int)lanes;
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                /* Below the thread's own, which need not wait for the warp's. */
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
                float higher = below.power(larger(top[r], ScaledExp<float>::least()));
                sums[r * kSums] = in_halves<Sum>(of_vectors) * power_of_2(-higher);
                sums[r * kSums + 1] = fmaf(mass, higher, -in_halves<Sum>(drops));
            }
            sums_by_lanes(sums);
            if (tells) { /* of a row's sum, or its drop, which is beside it */
                int which = (int)lane() / (kLanes / (R * kSums));
                (&parts[0]->sum)[which / kSums * (int)(sizeof shared.of_warp[0] / sizeof(float)) + which % kSums] =
                    sums[0];
                shared.reduced[turn(number)].arrive();
            }
        }

        __device__ __forceinline__ void write(uint32_t number, uint32_t place, const Known &it) const {
            Bits *to = (Bits *)of.p.rows.grad + of.row_of(number) * of.p.rows.grad_stride;
            char *first = (char *)to + (int64_t)in_row() * GPULOSSI_VECTOR_BYTES;
            ScaledExp<float> below(0);
            below.offset = it.offset;
            Vector<E> x[K][1];
            take(place, x);
#pragma unroll
            for (int k = 0; k < K; k++) {
                float g[W];
#pragma unroll
                for (int i = 0; i < W; i++) /* adding 0 turns -0 into 0 */
                    g[i] = fma(below.exp(x[k][0].get(i)), it.of_exp, fma(w[k][i], -it.of_weight, 0.0f));
                if (of.cut.whole(in_row() + k * kLanes))
                    store_whole<E, E>((Bits *)(first + k * kLanes * GPULOSSI_VECTOR_BYTES), g, true);
            }
            if (partial()) {
                int v = of.cut.vectors - 1;
                Vector<E> one = taken(place, last());
                float g[W];
#pragma unroll
                for (int i = 0; i < W; i++)
                    g[i] =
                        fma(below.exp(one.get(i)), it.of_exp, fma(of.weight(of.cut.first(v) + i), -it.of_weight, 0.0f));
                store<E, E>(of.cut, to, v, g);
            }
            uint32_t from_here = (uint32_t)(it.vector - in_row());
            if (from_here < kChunk && from_here % kLanes == 0)
                to[it.y] = E::narrow(it.of_target);
        }

        /* A vector that may be gone from the ring. */
        __device__ __forceinline__ Vector<E> reread(uint32_t number, int v) const {
            const Bits *row = of.loss.array(0, of.row_of(number));
            return of.cut.whole(v) ? load_vector<E, kRead_once>(row + of.cut.first(v))
                                   : load_elements<E>(of.cut, row, v, lowest());
        }
        /* Once more, the long way. */
        template <bool kWritten> __device__ __forceinline__ void go_again(uint32_t number, uint32_t place) const {
            typename Loss::Row r;
            State s = State::empty();
            r.of = of.loss.terms.row(of.row_of(number));
#pragma unroll 1
            for (int k = 0; k < K && in_row() + k * kLanes < of.cut.vectors; k++)
                of.loss.enter_one(r, s, of.cut, in_row() + k * kLanes,
                                  kWritten ? taken(place, k) : reread(number, in_row() + k * kLanes));
            s.reduce(WholeWarp());
            if (lane() == 0) {
                shared.long_of_warp[at / kChunk] = s;
                shared.long_reduced.arrive();
            }
            shared.long_told.wait(shared.known[turn(number)].anew & 1);
            if (!kWritten)
                return;
            typename Terms::Gradient of_row = of.loss.terms.gradient(r.of, shared.long_state);
#pragma unroll 1
            for (int k = 0; k < K && in_row() + k * kLanes < of.cut.vectors; k++) {
                int v = in_row() + k * kLanes;
                int64_t target = r.of.y - of.cut.first(v);
                Vector<E> x = taken(place, k);
                float g[W];
#pragma unroll
                for (int i = 0; i < W; i++)
                    g[i] = of.loss.terms.element(of_row, x.get(i),
                                                 of.loss.terms.of_block.smooth * of.weight(of.cut.first(v) + i),
                                                 r.of.y >= 0 && i == target);
                store<E, E>(of.cut, (Bits *)of.p.rows.grad + r.of.row * of.p.rows.grad_stride, v, g);
            }
        }

        /* Rows that are written. */
        __device__ __forceinline__ void write_rows() const {
            uint32_t place = 0, parity = 0;
#pragma unroll 1
            for (uint32_t number = 0; number < of.count + kLead; number++) {
                if (number < of.count) {
                    Arrival::wait(arrivals + place * (uint32_t)sizeof(Arrival), parity);
                    reduce<1>(number, place);
                }
                if (number >= kLead) {
                    uint32_t known = number - kLead, before = place < kLead ? place + kRows - kLead : place - kLead;
                    shared.told[turn(known)].wait(parity_of_turn(known));
                    Known it = shared.known[turn(known)];
                    if (it.long_way)
                        go_again<true>(known, before);
                    else
                        write(known, before, it);
                    __syncwarp();
                    ask(known + kRows, before);
                }
                if (++place == kRows)
                    place = 0, parity ^= 1;
            }
        }
        /* Rows that are not: other warps ask for them, and nothing is left to do when they are known, as a rule. */
        __device__ __forceinline__ void read_rows() const {
            uint32_t place = 0, parity = 0;
#pragma unroll 1
            for (uint32_t number = 0; number < of.count + kAhead; number += kAtOnce) {
                if (number < of.count) {
                    shared.copied[0][place].wait(parity);
                    reduce<kAtOnce>(number, place);
                }
                if (number >= kAhead) {
                    shared.told[turn(number - kAhead)].wait(parity_of_turn(number - kAhead));
                    if (shared.known[turn(number - kAhead)].long_way != kNone)
                        look_again(number - kAhead);
                }
                place += kAtOnce;
                if (place == kRows)
                    place = 0, parity ^= 1;
            }
        }
        /* At kAtOnce rows from this one on. A second one is told of after the first has been gone through again, if that is to
         * be. */
        __device__ __forceinline__ void look_again(uint32_t number) const {
#pragma unroll 1
            for (uint32_t last = min(number + kAtOnce, of.count); number < last; number++) {
                shared.told[turn(number)].wait(parity_of_turn(number));
                if (shared.known[turn(number)].long_way == kItself)
                    go_again<false>(number, 0);
            }
        }
    };

    /* The first class that has the top, from which lanes of each warp do. */
    __device__ __forceinline__ int best_of(uint32_t number, int of_warp, float top) const {
        static_assert(K * W == kLanes, "a lane for each element of a thread");
        int warp = __ffs((int)__ballot_sync(0xffffffffu, of_warp != 0)) - 1, best = kNobody;
        uint32_t lanes = __shfl_sync(0xffffffffu, (uint32_t)of_warp, warp);
#pragma unroll 1
        for (; lanes != 0; lanes &= lanes - 1) {
            int at = warp * kChunk + __ffs((int)lanes) - 1, v = at + (int)(lane() / W) * kLanes;
            float x = E::widen(((const Bits *)slot(number, v))[lane() % W]);
            int element = __ffs((int)__ballot_sync(0xffffffffu, x == top)) - 1;
            best = min(best, (first + at + element / W * kLanes) * W + element % W);
        }
        return best;
    }

    /* Adds up what the warps know of rows, from this one on, and sends it. */
    __device__ __forceinline__ void send_all(uint32_t from) const {
        float mass = shared.mass_of_warp[lane() % kWorkers];
        if (!loss.writes())
#pragma unroll 1
            for (uint32_t i = from; i < kRows; i += kSenders)
                ask_for_all(i);
#pragma unroll 1
        for (uint32_t number = from; number < count; number += kSenders) {
            Part part = Part::empty();
            if (workers > 0) {
                shared.reduced[turn(loss.writes() ? number : number / kAtOnce * kAtOnce)].wait(parity_of_turn(number));
                part = shared.of_warp[turn(number)][lane() % kWorkers];
                part.drop *= 0.693147181f;
                if (!(ScaledExp<float>::in_fast_range(part.top) || part.top == -Limits<float>::infinity()))
                    part.sum = Limits<float>::nan();
                float top = largest_over(WholeWarp(), part.top);
                int best =
                    loss.terms.finds_best() ? best_of(number, part.top == top ? part.best : 0, top) : (int)kNobody;
                if (!loss.writes()) { /* all have read it */
                    __syncwarp();
                    ask_for_all(number + kRows);
                }
                part.raise(top, mass);
                part.best = best;
#pragma unroll
                for (int distance = kWorkers / 2; distance > 0; distance /= 2) {
                    part.sum += __shfl_xor_sync(0xffffffffu, part.sum, distance);
                    part.drop += __shfl_xor_sync(0xffffffffu, part.drop, distance);
                }
            }
            if (workers == 0 && number > lead()) /* as the workers of other blocks do */
                shared.told[turn(number - lead() - 1)].wait(parity_of_turn(number - lead() - 1));
            __syncwarp(); /* what is read of this row may be written over when all know it */
            cluster.send(shared.folded[turn(number)], shared.of_block[turn(number)], part);
        }
    }

    struct Manager {
        const Kept &of;
        Shared &shared;
        /* Of 32 rows, a lane each. */
        typename Terms::Row row;
        State state;
        float x_y, weight, scale, next_x_y; /* the last of the 32 rows after those */
        float mass;                         /* of a row */
        uint32_t anew;                      /* rows gone through again so far */
        bool held;                          /* whether the row before is still to be told of */

        __device__ __forceinline__ explicit Manager(const Kept &of)
            : of(of), shared(of.shared), next_x_y(0), mass(0), anew(0), held(false) {
#pragma unroll 1
            for (uint32_t twice = 0; twice < 2; twice++)
                look_at(lane() + (twice - 1) * kLanes);
        }

        /* Rows whose targets matter here: where they are finished, or written. */
        __device__ __forceinline__ uint32_t looked_at() const {
            return of.cluster.rank == 0 || of.loss.writes() ? of.count : 0;
        }
        __device__ __forceinline__ float logit_of(uint32_t number) const {
            if (number >= looked_at())
                return 0;
            return of.loss.pick(of.cut, of.loss.begin(of.cut, of.row_of(number), true));
        }
        /* Other blocks may be a few rows ahead, and write over the logits: those of the targets are read 32 rows earlier. */
        __device__ __forceinline__ void look_at(uint32_t number) {
            typename Loss::Row r = of.loss.begin(of.cut, 0, false);
            x_y = __shfl_sync(0xffffffffu, next_x_y, lane()); /* waits for it */
            next_x_y = logit_of(number + kLanes);
            weight = scale = 0;
            if (number < looked_at()) {
                r = of.loss.begin(of.cut, of.row_of(number), true);
                scale = (float)of.loss.terms.factor_of(r.of.row);
                if (r.of.y >= 0)
                    weight = of.loss.terms.class_weight(r.of.y + of.p.class_offset);
            }
            row = r.of;
        }

        /* What all blocks know of a row. */
        __device__ __forceinline__ Part receive(uint32_t number, bool &good) const {
            uint32_t block = lane() % GPULOSSI_CLUSTER;
            Part part = Part::empty();
            float of_block = 0;
            shared.folded[turn(number)].wait(parity_of_turn(number));
            if (block < of.cluster.size) {
                part = shared.of_block[turn(number)][block];
                of_block = shared.mass_of_block[block];
            }
            good = __all_sync(0xffffffffu, finite(part.sum) && finite(part.drop));
            part.raise(largest_over(WholeWarp(), part.top), of_block);
#pragma unroll
            for (int distance = GPULOSSI_CLUSTER / 2; distance > 0; distance /= 2) {
                part.sum += __shfl_xor_sync(0xffffffffu, part.sum, distance);
                part.drop += __shfl_xor_sync(0xffffffffu, part.drop, distance);
            }
            part.best = least_of_warp(part.best);
            good = good && part.top != -Limits<float>::infinity();
            return part;
        }

        __device__ __forceinline__ State state_of(const Part &part) const {
            const float smooth = of.loss.terms.of_block.smooth;
            State s = {{part.top, part.sum},
                       smooth * mass,
                       smooth * part.drop,
                       part.best == kNobody ? State::kNone : (int64_t)part.best};
            return s;
        }

        /* Tells the workers, where rows are not written of those that are reduced together at the last one, or at one that is to
         * be gone through again. False for such a row. */
        __device__ __forceinline__ bool tell(uint32_t number, const Part &part, bool good) {
            const Terms &terms = of.loss.terms;
            int of_row = (int)(number % kLanes);
            float exact_x = __shfl_sync(0xffffffffu, x_y, of_row),
                  class_weight = __shfl_sync(0xffffffffu, weight, of_row),
                  factor = __shfl_sync(0xffffffffu, scale, of_row);
            int y = __shfl_sync(0xffffffffu, (int)row.y, of_row);
            bool counts = __shfl_sync(0xffffffffu, (int)row.target, of_row) == kClass;
            Known it = {0, 0, 0, 0, -1, -1, 0, 0};
            if (of.loss.writes()) {
                ScaledExp<float> below(part.top);
                float smooth = terms.of_block.smooth, inverse = reciprocal(part.sum);
                float hard = terms.of_block.keep * class_weight, rest = smooth * mass;
                if (of.p.lse_square_scale != 0)
                    rest += 2.0f * (float)of.p.lse_square_scale * (part.top + natural_log(part.sum));
                it.offset = below.offset;
                if (counts) {
                    float exact = at_most_1(exp_below(exact_x, part.top) * inverse); /* exact - 1 is formed first */
                    it.of_exp = (hard + rest) * inverse * below.factor * factor;
                    it.of_weight = smooth * factor;
                    it.of_target = (hard * (exact - 1.0f) + (exact * rest - smooth * class_weight)) * factor;
                    it.y = y;
                    it.vector = y < 0 ? -1 : y / W;
                }
                good = good && finite(it.of_exp) && finite(it.of_weight);
            }
            it.long_way = good ? kNone : kItself;
            it.anew = (int)anew;
            __syncwarp(); /* what is read of this row may be written over when all know it */
            bool holds = !of.loss.writes() && number % kAtOnce + 1 < kAtOnce && number + 1 < of.count && good;
            if (lane() == 0) {
                shared.known[turn(number)] = it;
                if (!holds)
                    shared.told[turn(number)].arrive();
                if (held) {
                    shared.known[turn(number - 1)].long_way = good ? kNone : kNext;
                    shared.told[turn(number - 1)].arrive();
                }
            }
            held = holds;
            return good;
        }

        /* The state of a row that is gone through again. */
        __device__ __forceinline__ State fold_anew() {
            Whole all = {State::empty(), {}};
            State &s = all.state;
            uint32_t buffer = anew % 2, parity = anew & 1;
            if (of.workers > 0) {
                shared.long_reduced.wait(parity);
                if ((int)(lane() % kWorkers) < of.workers)
                    s = shared.long_of_warp[lane() % kWorkers];
                s.reduce(Repeated<kWorkers>(kWorkers));
            }
            __syncwarp();
            of.cluster.send(shared.long_folded, shared.long_of_block[buffer], all);
            shared.long_folded.wait(parity);
            s = State::empty();
            if (lane() % GPULOSSI_CLUSTER < of.cluster.size)
                s = shared.long_of_block[buffer][lane() % GPULOSSI_CLUSTER].state;
            s.reduce(Repeated<GPULOSSI_CLUSTER>(GPULOSSI_CLUSTER));
            __syncwarp();
            if (lane() == 0) {
                shared.long_state = s;
                shared.long_told.arrive();
            }
            anew++;
            return s;
        }

        __device__ __forceinline__ void rows(Totals &total) {
#pragma unroll 1
            for (uint32_t block = 0; block < of.cluster.size; block++)
                mass += shared.mass_of_block[block];
#pragma unroll 1
            for (uint32_t number = 0; number < of.count; number++) {
                uint32_t in_batch = number % kLanes;
                bool good;
                if (in_batch == 0 && number > 0)
                    look_at(number + lane());
                Part part = receive(number, good);
                State s = state_of(part);
                if (!tell(number, part, good))
                    s = fold_anew();
                if (lane() == in_batch)
                    state = s;
                if (of.cluster.rank == 0 && (in_batch == kLanes - 1 || number + 1 == of.count) && lane() <= in_batch)
                    of.loss.finish({row, state, x_y}, total);
            }
        }
    };

    /* All threads call. Nobody arrives at a barrier before it is there, and the weights are known afterwards. */
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x < kWorkers * kRows)
            shared.copied[threadIdx.x / kRows][threadIdx.x % kRows].begin(loss.writes() ? 1 : kAtOnce);
        if (threadIdx.x < kTurns) {
            shared.reduced[threadIdx.x].begin((uint32_t)max(workers, 1) * tellers());
            shared.folded[threadIdx.x].begin();
            shared.told[threadIdx.x].begin();
        }
        if (threadIdx.x == 0) {
            shared.long_reduced.begin((uint32_t)max(workers, 1));
            shared.long_folded.begin();
            shared.long_told.begin();
        }
        if (threadIdx.x < kTurns * kWorkers) /* of those that have no part of a row */
            shared.of_warp[threadIdx.x / kWorkers][threadIdx.x % kWorkers] = Part::empty();
        __syncthreads();
    }
    __device__ __forceinline__ void exchange_masses(bool sends) const {
        Cluster::wait(); /* the others have begun, and this block's are there */
        if (sends && threadIdx.x < cluster.size)
            Cluster::put(&shared.mass_of_block[cluster.rank], threadIdx.x, in_halves<Sum>(shared.mass_of_warp));
        Cluster::wait();
    }

    __device__ __forceinline__ Kept(const gpulossi_cross_entropy &p, const Loss &loss, const Cluster &cluster,
                                    Shared &shared)
        : p(p), loss(loss), cluster(cluster), shared(shared), cut(0, p.rows.classes),
          count(cluster.number < p.rows.rows
                    ? (uint32_t)((p.rows.rows - cluster.number + cluster.count - 1) / cluster.count)
                    : 0),
          first((int)(cluster.rank * p.rows.slots) * kChunk),
          workers(max(0, min((int)p.rows.slots, (cut.vectors - first + kChunk - 1) / kChunk))) {}

  public:
    DEVICE void run(const gpulossi_cross_entropy &p) {
        __shared__ Totals totals[kLanes];
        __shared__ Shared shared;
        Loss loss(p);
        Cluster cluster;
        Kept kept(p, loss, cluster, shared);
        kept.begin();
        if (threadIdx.x < kLanes) {
            Totals &total = totals[threadIdx.x];
            total = Totals::zero();
            Manager manager(kept);
            kept.exchange_masses(true);
            manager.rows(total);
            Cluster::wait(); /* nobody leaves while others write here */
            end_of_warp(loss, (gpulossi_scratch *)p.rows.scratch, total);
        } else if (threadIdx.x < kOthers * kLanes) {
            kept.exchange_masses(false);
            kept.send_all(threadIdx.x / kLanes - 1);
            Cluster::wait();
        } else {
            Worker worker(kept);
            if (worker.works() && loss.writes())
#pragma unroll 1
                for (uint32_t i = 0; i < kRows; i++)
                    worker.ask(i, i);
            kept.exchange_masses(false);
            if (worker.works() && loss.writes())
                worker.write_rows();
            else if (worker.works())
                worker.read_rows();
            Cluster::wait();
        }
    }
};

#endif
