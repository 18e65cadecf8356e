/* Rows of cross-entropy with options in the shared memory of a cluster, where the weights of the classes are kept too: a
 * thread has the same classes of every row, so that it reads their weights once a launch.
 *
 * All rows start on 16 bytes and fit, and logits are taken as they are. What is not finite, or too large for the short
 * formulas, is found in what they give, and the row is then gone through again in the long way. */
#ifndef GPULOSSI_KEPT_CUH
#define GPULOSSI_KEPT_CUH

#include "cluster.cuh"
#include "options.cuh"

template <class E> struct Kept {
    typedef Options<E, false> Loss;
    typedef typename E::Bits Bits;
    typedef typename Loss::State State;
    typedef typename Loss::OfRows Terms;
    enum { K = GPULOSSI_VECTORS_STREAMED, W = Width<E>::value, kNoBest = INT32_MAX };
    typedef Vector<E> Vectors[K][1];

    /* Of a row, or a part of it: with a the masses before smoothing, drop = sum a (top - x). */
    struct Part {
        float top, sum, drop;
        int best; /* class */

        DEVICE Part empty() {
            Part part = {-Limits<float>::infinity(), 0, 0, kNoBest};
            return part;
        }
        /* To a top of several parts; mass = sum a. */
        __device__ __forceinline__ void raise(float all, float mass) {
            if (top == all)
                return;
            sum *= exp_below(top, all);
            if (mass != 0)
                drop = fma(mass, difference(all, top), drop);
            best = kNoBest;
        }
    };
    /* What the leader knows of a row. */
    struct Head {
        uint32_t word; /* of the queue */
        int y;         /* the target, or Terms::kZero */
        float weight, x_y, scale, unused[3];
    };
    struct Message {
        Part part;
        Head head;
    };
    enum { kBatch = 16 }; /* rows that the leader's warp finishes at once, a lane each */
    struct Shared {
        Head head; /* the leader's, of the row to come */
        typename Loss::Unfinished
            unfinished[2 * kBatch]; /* also the leader's, by the number of the row in its cluster */
        Part of_warp[kWarps];
        Message of_block[2][GPULOSSI_CLUSTER];
        float mass_of_warp[kWarps], mass_of_block[GPULOSSI_CLUSTER], mass_of_row;
    };

    const gpulossi_cross_entropy &p;
    const Loss &loss;
    const Cluster &cluster;
    const Stash<Loss> &stash;
    Shared &shared;
    Cut<E> cut; /* of every row */

    __device__ __forceinline__ static uint32_t warp() { return threadIdx.x / kLanes; }
    __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % kLanes; }
    DEVICE bool finite(float x) { return fabs(x) < Limits<float>::infinity(); }

    /* What stands where a row has no class: so low that it adds nothing, also to a product with no mass. */
    DEVICE float lowest() { return E::kDtype == GPULOSS_F16 ? -65504.0f : -0x1p100f; }

    DEVICE int least_of_warp(int x) {
        int all;
        asm volatile("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(x) : "memory");
        return all;
    }
    DEVICE float highest_of(const Vector<E> &x) {
        if constexpr (sizeof(Bits) == 2) {
            uint32_t best[4] = {x.word[0], x.word[1], x.word[2], x.word[3]};
#pragma unroll
            for (int n = 2; n > 0; n /= 2)
#pragma unroll
                for (int i = 0; i < n; i++)
                    if (E::kDtype == GPULOSS_BF16)
                        asm("max.bf16x2 %0, %0, %1;" : "+r"(best[i]) : "r"(best[i + n]));
                    else
                        asm("max.f16x2 %0, %0, %1;" : "+r"(best[i]) : "r"(best[i + n]));
            return larger(E::widen((Bits)best[0]), E::widen((Bits)(best[0] >> 16)));
        } else {
            float y[W];
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = x.get(i);
            return in_halves<Maximum>(y);
        }
    }

    /* Asks for K slots of a row. */
    __device__ __forceinline__ void ask(int64_t row, int slot) const {
        const char *vectors = (const char *)loss.array(0, row);
        int v = stash.vector(slot);
        if (cut.whole(v + (K - 1) * stash.step)) {
#pragma unroll
            for (int k = 0; k < K; k++)
                request(stash.at(slot + k, 0), vectors + (int64_t)(v + k * stash.step) * GPULOSSI_VECTOR_BYTES);
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++, v += stash.step) {
                if (cut.whole(v)) {
                    request(stash.at(slot + k, 0), vectors + (int64_t)v * GPULOSSI_VECTOR_BYTES);
                } else {
                    Vector<E> x = filled<E>(lowest());
                    if (v < cut.vectors)
                        x = load_elements<E>(cut, (const Bits *)vectors, v, lowest());
                    *stash.at(slot + k, 0) = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
                }
            }
        }
        request_group();
    }
    __device__ __forceinline__ void ask_all(int64_t row) const {
#pragma unroll 1
        for (int slot = 0; slot < stash.slots; slot += K)
            ask(row, slot);
    }

    /* The weights of a slot come after all slots of the row. */
    __device__ __forceinline__ float4 *weights_at(int slot, int part) const {
        return (float4 *)stash.at(stash.slots + slot * (W / 4) + part, 0);
    }
    __device__ __forceinline__ void keep_weights() {
        float own = 0;
        if (loss.terms.has_masses())
#pragma unroll 1
            for (int slot = 0; slot < stash.slots; slot++)
#pragma unroll
                for (int part = 0; part < W / 4; part++) {
                    int64_t c = cut.first(stash.vector(slot)) + 4 * part;
                    float w[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        w[i] = cut.inside(c + i) ? loss.terms.class_weight(p.class_offset + c + i) : 0.0f;
                    *weights_at(slot, part) = make_float4(w[0], w[1], w[2], w[3]);
                    own += in_halves<Sum>(w);
                }
        own = WholeWarp().template over<Sum>(own);
        if (lane() == 0)
            shared.mass_of_warp[warp()] = own;
        __syncthreads();
        own = in_halves<Sum>(shared.mass_of_warp);
        cluster.wait(); /* the others have begun */
        if (threadIdx.x < cluster.size)
            Cluster::put(&shared.mass_of_block[cluster.rank], threadIdx.x, own);
        cluster.wait();
        own = 0;
#pragma unroll 1
        for (uint32_t block = 0; block < cluster.size; block++)
            own += shared.mass_of_block[block];
        if (threadIdx.x == 0)
            shared.mass_of_row = own; /* read after a fold */
    }
    __device__ __forceinline__ void take_weights(int slot, float (&w)[W]) const {
#pragma unroll
        for (int part = 0; part < W / 4; part++) {
            float4 four = *weights_at(slot, part);
            w[4 * part] = four.x, w[4 * part + 1] = four.y, w[4 * part + 2] = four.z, w[4 * part + 3] = four.w;
        }
    }

    /* What a warp knows of the row that lies in the slots. */
    template <bool kMasses> __device__ __forceinline__ Part reduce() const {
        Part part = Part::empty();
        float highest = part.top;
        int at = 0;
        Vectors x;
#pragma unroll 1
        for (int slot = 0; slot < stash.slots; slot += K) {
            stash.wait((stash.slots - slot) / K - 1);
            stash.template take<K>(slot, x);
#pragma unroll
            for (int k = 0; k < K; k++) {
                float of_vector = highest_of(x[k][0]);
                if (of_vector > highest)
                    highest = of_vector, at = slot + k;
            }
        }
        if (stash.rank - (int)lane() >= cut.vectors)
            return part;
        part.top = largest_over(WholeWarp(), highest);
        Below<float> below(Below<float>::near(part.top) ? part.top : Limits<float>::nan());
#pragma unroll 1
        for (int slot = 0; slot < stash.slots; slot += K) {
            stash.template take<K>(slot, x);
#pragma unroll
            for (int k = 0; k < K; k++) {
                float y[W], power[W], w[W], drop = 0;
                if (kMasses)
                    take_weights(slot + k, w);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    y[i] = fma(x[k][0].get(i), below.slope, -below.offset);
                    power[i] = power_of_2(y[i]);
                    if (kMasses)
                        drop = i == 0 ? w[i] * y[i] : fma(w[i], y[i], drop);
                }
                part.sum += in_halves<Sum>(power);
                if (kMasses)
                    part.drop += drop;
            }
        }
        part.sum = WholeWarp().template over<Sum>(part.sum) * below.factor;
        if (kMasses) {
            float rest = fmaf(part.top, below.slope, -below.offset);
            part.drop =
                0.693147181f * fmaf(rest, shared.mass_of_warp[warp()], -WholeWarp().template over<Sum>(part.drop));
        }
        if (loss.terms.finds_best()) {
            if (highest == part.top) {
                Vector<E> best[1][1];
                stash.template take<1>(at, best);
#pragma unroll
                for (int i = W - 1; i >= 0; i--)
                    if (best[0][0].get(i) == highest)
                        part.best = stash.vector(at) * W + i;
            }
            part.best = least_of_warp(part.best);
        }
        return part;
    }

    /* What the leader says of a row, and keeps of it. */
    __device__ __forceinline__ void look_at(int64_t row, uint32_t number) const {
        typename Loss::Row r = loss.begin(cut, row, true);
        Head head = {0, Terms::kZero, 0, loss.pick(cut, r), (float)loss.terms.factor_of(row), {}};
        if (p.rows.rows > cluster.count)
            head.word = count_up(&((gpulossi_scratch *)p.rows.scratch)->taken, (uint32_t)p.rows.rows);
        if (r.of.y >= 0) {
            head.y = (int)r.of.y;
            head.weight = loss.terms.class_weight(r.of.y + p.class_offset);
        }
        shared.unfinished[number % (2 * kBatch)].of = r.of;
        shared.head = head;
    }

    /* Folds what the warps know over the cluster: the row's top and sum in all threads, the rest in the leader's warp.
     * False, in all of them, where something is not finite. While the leader waits for the others, it looks at the next
     * row, and now and then its warp finishes those before. */
    __device__ __forceinline__ bool fold(Part &part, Head &head, uint32_t number, uint32_t next,
                                         typename Loss::Totals *totals) const {
        uint32_t turn = number % 2;
        if (lane() == 0)
            shared.of_warp[warp()] = part;
        __syncthreads();
        if (warp() == 0) {
            Message message;
            message.part = shared.of_warp[lane() % kWarps];
            float all = largest_over(WholeWarp(), message.part.top);
            message.part.raise(all, shared.mass_of_warp[lane() % kWarps]);
            message.part.top = all;
#pragma unroll
            for (int distance = kWarps / 2; distance > 0; distance /= 2) {
                message.part.sum += __shfl_xor_sync(0xffffffffu, message.part.sum, distance);
                message.part.drop += __shfl_xor_sync(0xffffffffu, message.part.drop, distance);
            }
            message.part.best = least_of_warp(message.part.best);
            message.head = shared.head;
            if (lane() < cluster.size)
                Cluster::put(&shared.of_block[turn][cluster.rank], lane(), message);
            __syncwarp();
        }
        cluster.arrive();
        if (number > 0 && number % kBatch == 0)
            finish(number - kBatch, number, totals);
        if (cluster.leads() && next < (uint32_t)p.rows.rows)
            look_at(next, number + 1);
        cluster.wait_for_arrivals();
        uint32_t block = lane() % GPULOSSI_CLUSTER;
        part = Part::empty();
        if (block < cluster.size)
            part = shared.of_block[turn][block].part;
        head = shared.of_block[turn][0].head;
        bool good = __all_sync(0xffffffffu, finite(part.sum) && finite(part.drop));
        float all = largest_over(WholeWarp(), part.top);
        part.raise(all, block < cluster.size ? shared.mass_of_block[block] : 0.0f);
        part.top = all;
#pragma unroll
        for (int distance = GPULOSSI_CLUSTER / 2; distance > 0; distance /= 2)
            part.sum += __shfl_xor_sync(0xffffffffu, part.sum, distance);
        if (cluster.rank == 0 && warp() == 0) {
#pragma unroll
            for (int distance = GPULOSSI_CLUSTER / 2; distance > 0; distance /= 2)
                part.drop += __shfl_xor_sync(0xffffffffu, part.drop, distance);
            part.best = least_of_warp(part.best);
        }
        return good;
    }

    __device__ __forceinline__ State state_of(const Part &part) const {
        State s = {{part.top, part.sum}, 0, 0, part.best == kNoBest ? State::kNone : (int64_t)part.best};
        if (loss.terms.has_masses()) {
            s.mass = loss.terms.of_block.smooth * shared.mass_of_row;
            s.drop = loss.terms.of_block.smooth * part.drop;
        }
        return s;
    }

    /* The row that lies in the slots, the long way. */
    __device__ __forceinline__ State reduce_long(const typename Loss::Row &r, int turn) const {
        State s = State::empty();
        uint32_t unused = 0;
#pragma unroll 1
        for (int slot = 0; slot < stash.slots && stash.vector(slot) < cut.vectors; slot++) {
            Vector<E> x[1][1];
            stash.template take<1>(slot, x);
            loss.enter_one(r, s, cut, stash.vector(slot), x[0][0]);
        }
        cluster.fold(s, unused, turn);
        return s;
    }
    __device__ __forceinline__ void write_long(const typename Loss::Row &r, const State &s) const {
        typename Terms::Gradient of_row = loss.terms.gradient(r.of, s);
#pragma unroll 1
        for (int slot = 0; slot < stash.slots && stash.vector(slot) < cut.vectors; slot++) {
            int v = stash.vector(slot);
            int64_t target = r.of.y - cut.first(v);
            Vector<E> x[1][1];
            float g[W], w[W];
#pragma unroll
            for (int i = 0; i < W; i++)
                w[i] = 0;
            stash.template take<1>(slot, x);
            if (loss.terms.has_masses())
                take_weights(slot, w);
#pragma unroll
            for (int i = 0; i < W; i++)
                g[i] = loss.terms.element(of_row, x[0][0].get(i), loss.terms.of_block.smooth * w[i],
                                          r.of.y >= 0 && i == target);
            store<E, E>(cut, (Bits *)p.rows.grad + r.of.row * p.rows.grad_stride, v, g);
        }
    }

    /* The gradients of a vector: p of_exp - w of_weight; without a target all are 0. */
    template <bool kMasses>
    __device__ __forceinline__ void gradients(const Vector<E> &x, int slot, const Below<float> &below, float of_exp,
                                              float of_weight, float (&g)[W]) const {
        float w[W];
        if (kMasses)
            take_weights(slot, w);
#pragma unroll
        for (int i = 0; i < W; i++) /* adding 0 turns -0 into 0 */
            g[i] = fma(below.exp(x.get(i)), of_exp, kMasses ? fma(w[i], -of_weight, 0.0f) : 0.0f);
    }
    /* Those of the row that lies in the slots, and on the way the next row is asked for, where there is one. */
    template <bool kMasses>
    __device__ __forceinline__ void write(Bits *to, const Below<float> &below, float of_exp, float of_weight, bool zero,
                                          uint32_t next) const {
#pragma unroll 1
        for (int slot = 0; slot < stash.slots; slot += K) {
            int v = stash.vector(slot);
            if (cut.whole(v + (K - 1) * stash.step) && !zero) {
                char *at = (char *)to + (int64_t)v * GPULOSSI_VECTOR_BYTES;
                Vectors x;
                stash.template take<K>(slot, x);
#pragma unroll
                for (int k = 0; k < K; k++) {
                    float g[W];
                    gradients<kMasses>(x[k][0], slot + k, below, of_exp, of_weight, g);
                    store_whole<E, E>((Bits *)at, g, true);
                    at += stash.step * GPULOSSI_VECTOR_BYTES;
                }
            } else {
#pragma unroll 1
                for (int k = 0; k < K; k++, v += stash.step) {
                    Vector<E> x[1][1];
                    float g[W];
                    stash.template take<1>(slot + k, x);
                    gradients<kMasses>(x[0][0], slot + k, below, of_exp, of_weight, g);
#pragma unroll
                    for (int i = 0; i < W; i++)
                        g[i] = zero ? 0.0f : g[i];
                    if (v < cut.vectors)
                        store<E, E>(cut, to, v, g);
                }
            }
            if (next < (uint32_t)p.rows.rows)
                ask(next, slot);
        }
    }
    /* The factors of all that, and the target's own element. False where they are out of the ordinary: nothing has been
     * written then. */
    __device__ __forceinline__ bool write(const Part &part, const Head &head, int64_t row, uint32_t next) const {
        Below<float> below(part.top);
        bool zero = head.y == Terms::kZero;
        float smooth = loss.terms.has_masses() ? loss.terms.of_block.smooth : 0.0f, inverse = reciprocal(part.sum);
        float hard = loss.terms.of_block.keep * head.weight, rest = smooth * shared.mass_of_row;
        if (p.lse_square_scale != 0)
            rest += 2.0f * (float)p.lse_square_scale * (part.top + natural_log(part.sum));
        float of_exp = (hard + rest) * inverse * below.factor * head.scale, of_weight = smooth * head.scale;
        Bits *to = (Bits *)p.rows.grad + row * p.rows.grad_stride;
        if (!zero && !(finite(of_exp) && finite(of_weight)))
            return false;
        if (loss.terms.has_masses())
            write<true>(to, below, of_exp, of_weight, zero, next);
        else
            write<false>(to, below, of_exp, of_weight, zero, next);
        if (!zero && (cut.vector_of(head.y) - stash.rank) % stash.step == 0) {
            float exact = exp_below(head.x_y, part.top) * inverse; /* exact - 1 is formed first */
            to[head.y] = E::narrow((hard * (exact - 1.0f) + (exact * rest - smooth * head.weight)) * head.scale);
        }
        return true;
    }

    /* Some rows of the cluster, by their numbers. */
    __device__ __forceinline__ void finish(uint32_t number, uint32_t end, typename Loss::Totals *totals) const {
        number += lane();
        __syncwarp();
        if (cluster.rank == 0 && warp() == 0 && number < end)
            loss.finish(shared.unfinished[number % (2 * kBatch)], totals[lane()]);
    }

    /* The rows are shared out in rising order: with the first two of a cluster fixed, the word of a fold says which is
     * the one after the next. */
    __device__ __forceinline__ void rows(typename Loss::Totals *totals) {
        uint32_t tiles = (uint32_t)p.rows.rows, row = cluster.number, next = row + cluster.count, number = 0;
        if (cluster.leads() && row < tiles)
            look_at(row, number);
#pragma unroll 1
        for (; row < tiles; number++) {
            Head head;
            Part part = loss.terms.has_masses() ? reduce<true>() : reduce<false>();
            bool good = fold(part, head, number, next, totals);
            typename Loss::Unfinished &unfinished = shared.unfinished[number % (2 * kBatch)];
            if (cluster.leads()) {
                unfinished.state = state_of(part);
                unfinished.x_y = head.x_y;
            }
            if (!good || !loss.writes() || !write(part, head, row, next)) {
                if (!good || loss.writes()) {
                    typename Loss::Row r;
                    r.of = loss.terms.row(row);
                    State s = state_of(part);
                    if (!good)
                        s = reduce_long(r, (int)(number % 2));
                    if (cluster.leads())
                        unfinished.state = s;
                    if (loss.writes())
                        write_long(r, s);
                }
                if (next < tiles)
                    ask_all(next);
            }
            row = next;
            next = 2 * cluster.count + head.word;
        }
        finish((max(number, 1u) - 1) / kBatch * kBatch, number, totals);
    }

    DEVICE void run(const gpulossi_cross_entropy &p) {
        __shared__ typename Loss::Totals totals[kBatch];
        __shared__ Shared shared;
        Loss loss(p);
        Cluster cluster;
        Stash<Loss> stash(cluster, p.rows.slots);
        Kept kept = {p, loss, cluster, stash, shared, Cut<E>(0, p.rows.classes)};
        if (threadIdx.x < kBatch)
            totals[threadIdx.x] = Loss::Totals::zero();
        if (threadIdx.x == 0) {
            shared.head = {}; /* only the leader's is looked at, but all are sent */
        }
        if (cluster.number < p.rows.rows)
            kept.ask_all(cluster.number);
        kept.keep_weights();
        kept.rows(totals);
        typename Loss::Totals mine = Loss::Totals::zero();
        if (threadIdx.x < kBatch)
            mine = totals[threadIdx.x];
        end(loss, (gpulossi_scratch *)p.rows.scratch, mine);
    }
};

#endif
