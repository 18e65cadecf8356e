/* Cross-entropy of short packed rows, without options, on GPUs that copy stretches of memory by themselves. Rows that
 * follow each other are one stretch of memory, whatever the alignment of each: a warp has a ring of slots for stretches of
 * whole rows, and the next ones come while it works on one. In its slot a row belongs to one lane or to a few; its
 * gradients take the place of its logits there, and the stretch goes out as it came, in whole vectors.
 *
 * Lanes read rows of whole vectors by vectors, and all others by words of 4 bytes. */
#ifndef GPULOSSI_PACKED_CUH
#define GPULOSSI_PACKED_CUH

#include "ring.cuh"

/* The elements of words. A Top is the largest of several, or of those in the same place of several words. */
template <class E, int bytes = sizeof(typename E::Bits)> struct Words;
template <class E> struct Words<E, 4> {
    enum { kElements = 1 };
    typedef float Top;
    DEVICE Top none() { return -Limits<float>::infinity(); }
    DEVICE Top top(uint32_t word) { return E::widen(word); }
    DEVICE Top larger_of(Top a, Top b) { return larger(a, b); }
    DEVICE float number(Top a) { return a; }
    DEVICE float get(uint32_t word, int) { return E::widen(word); }
    DEVICE uint32_t pack(const float *x) { return E::narrow(x[0]); }
};
template <class E> struct Words<E, 2> {
    enum { kElements = 2 };
    typedef uint32_t Top;
    DEVICE Top none() { return E::narrow(-Limits<float>::infinity()) * 0x00010001u; }
    DEVICE Top top(uint32_t word) { return word; }
    DEVICE Top larger_of(Top a, Top b) { return E::larger_of_pairs(a, b); }
    DEVICE float number(Top a) { return larger(get(a, 0), get(a, 1)); }
    DEVICE float get(uint32_t word, int i) { return E::widen((typename E::Bits)(word >> (16 * i))); }
    DEVICE uint32_t pack(const float *x) { return E::pair(x[0], x[1], false); }
};

/* The largest of n Tops, half by half. */
template <class Of, int n> struct LargestTop {
    DEVICE typename Of::Top of(const typename Of::Top *x) {
        return Of::larger_of(LargestTop<Of, n / 2>::of(x), LargestTop<Of, n - n / 2>::of(x + n / 2));
    }
};
template <class Of> struct LargestTop<Of, 1> {
    DEVICE typename Of::Top of(const typename Of::Top *x) { return x[0]; }
};

template <class E> class Packed {
    typedef Plain<E> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename E::Bits Bits;
    typedef Words<E> Of;
    enum { kSteps = GPULOSSI_RING_STEPS, kSlot = kLanes * GPULOSSI_RING_VECTORS, kRun = 4 };
    enum { kTargets = GPULOSSI_PACKED_ROWS / kLanes, kNone = -1, kElements = Of::kElements, kAlone = 10 };
    static_assert(sizeof(N) == 4, "a word has numbers of 4 bytes or less");
    static_assert(kSlot * GPULOSSI_VECTOR_BYTES / sizeof(Bits) <= INT16_MAX, "places are 16 bits");

    const Params &p;
    Loss loss;
    int reduces, writes_any, results,
        further;                           /* results: besides the gradient; further: and besides the sum of losses */
    int lane, rank, size, shift;           /* this lane, its number among those of a row, their count and its log2 */
    int classes, row_bytes, pieces, twist; /* of a row; and the vectors or words of this lane, and their order */
    int alone;                             /* the words of a row where they fit a lane's registers, or 0 */
    int rows, last_rows;                   /* of a stretch, and of the last */
    uint32_t stretches, run;               /* in all, and those of a tile */
    Ahead queue;
    uint32_t asked, freed; /* stretches so far */
    int next;              /* what is asked for next: of the tiles that are known, ... */
    uint32_t visit;        /* ... and of the stretches of one */
    int64_t y[kTargets];   /* the class indices of the next stretch */

    /* What is left to do of a row when it is reduced. Where several lanes have a row, each keeps another one's. */
    struct Late {
        int64_t row;
        N top, sum, x_y;
        int place;
    } late;
    int lates;
    double sum; /* of losses */

    DEVICE uint32_t run_of(uint32_t stretches) { return stretches > 16 * kRun * kWarps * gridDim.x ? kRun : 1; }

    /* Floats are always written: their losses alone are not for this kernel. */
    __device__ __forceinline__ bool writes() const { return sizeof(Bits) == 4 || writes_any; }
    __device__ __forceinline__ explicit Packed(const Params &p)
        : p(p), loss(p), reduces(loss.reduces()), writes_any(loss.writes()),
          further(p.lse || p.rows.loss_rows ||
                  ((p.rows.flags & GPULOSSI_DATA_DIVISOR) && !(p.rows.flags & GPULOSSI_PREPARED))),
          lane((int)(threadIdx.x % kLanes)), rank((int)(threadIdx.x & (p.rows.group - 1))), size((int)p.rows.group),
          shift(__popc(p.rows.group - 1)), classes((int)p.rows.classes), row_bytes(classes * (int)sizeof(Bits)),
          alone(0), rows((int)p.rows.slots), stretches((uint32_t)((p.rows.rows + rows - 1) / rows)),
          run(run_of(stretches)),
          queue(p.rows.scratch, (stretches + run - 1) / run, blockIdx.x * kWarps + threadIdx.x / kLanes,
                gridDim.x * kWarps, run < kSteps ? 3 : 2, 14),
          asked(0), freed(0), next(0), visit(0), lates(0), sum(0) {
        last_rows = (int)(p.rows.rows - (int64_t)(stretches - 1) * rows);
        results = further || p.rows.loss || p.bad_targets;
        /* Losses from a given lse are summed one by one, which is left to the general way. */
        if (size == 1 && classes % kElements == 0 && classes <= kAlone && (reduces || !results))
            alone = classes / kElements;
        keep(reduces);
        keep(writes_any);
        keep(results);
        keep(further);
        bool even = p.rows.flags & GPULOSSI_EVEN;
        int all = even ? row_bytes / GPULOSSI_VECTOR_BYTES : row_bytes / 4;
        /* Lanes that have different rows take the vectors of each in an order of their own, so that they do not meet in
         * the same banks: at addresses with some bits changed, which stay in the row where its bytes are a power of 2. */
        int swaps = even && (all & (all - 1)) == 0 ? (((lane & 7) >> shift) * min(all, 8)) >> 3 : 0;
        pieces = (all - rank + size - 1) >> shift;
        twist = swaps * size * GPULOSSI_VECTOR_BYTES;
        late.row = kNone;
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < kSteps; i++)
                arrival(i).begin();
        __syncwarp();
    }

    DEVICE Arrival &arrival(uint32_t step) {
        __shared__ Arrival arrivals[kWarps][kSteps];
        return arrivals[threadIdx.x / kLanes][step % kSteps];
    }
    DEVICE char *slots() {
        return (char *)stash_of_block();
    }
    /* Where in the slots of the block that of a stretch begins. */
    DEVICE int slot(uint32_t step) {
        return (int)((threadIdx.x / kLanes * kSteps + step % kSteps) * kSlot) * GPULOSSI_VECTOR_BYTES;
    }
    /* Of the rows of this stretch: the class index, or a number less than 0 that says why there is none. */
    DEVICE int16_t *places() {
        __shared__ int16_t of_block[kWarps][GPULOSSI_PACKED_ROWS];
        return of_block[threadIdx.x / kLanes];
    }

    __device__ __forceinline__ int64_t first_of(uint32_t stretch) const {
        return (int64_t)stretch * rows;
    }
    __device__ __forceinline__ int count_of(uint32_t stretch) const {
        return stretch + 1 == stretches ? last_rows : rows;
    }

    /* Asks for as many stretches of the tiles that are known as there is room for. Nobody in the warp uses what was
     * freed. */
    __device__ __forceinline__ void ask() {
        if (writes())
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
#pragma unroll 1
        while (asked - freed < kSteps && next < queue.known) {
            uint32_t tile = queue.after(next), stretch = tile * run + visit;
            if (tile >= queue.tiles)
                return;
            if (stretch < stretches) {
                if (lane == 0)
                    arrival(asked).request(slots() + slot(asked), loss.array(0, first_of(stretch)),
                                           (uint32_t)(count_of(stretch) * row_bytes & -GPULOSSI_VECTOR_BYTES));
                asked++;
            }
            if (++visit == run)
                visit = 0, next++;
        }
    }

    template <class Index> __device__ __forceinline__ void fetch_indices(int64_t first, int count) {
        const Index *from = (const Index *)p.targets + first;
#pragma unroll
        for (int i = 0; i < kTargets; i++) {
            if (i * kLanes + lane < count)
                y[i] = from[i * kLanes + lane];
            if ((i + 1) * kLanes >= count)
                break;
        }
    }
    /* They are waited for where they are settled. */
    __device__ __forceinline__ void fetch_targets(uint32_t stretch) {
        int64_t first = first_of(stretch);
        int count = count_of(stretch);
        switch (p.target_type) {
        case GPULOSS_I32:
            fetch_indices<int32_t>(first, count);
            break;
        case GPULOSS_I16:
            fetch_indices<int16_t>(first, count);
            break;
        case GPULOSS_U8:
            fetch_indices<uint8_t>(first, count);
            break;
        default:
            fetch_indices<int64_t>(first, count);
        }
    }
    __device__ __forceinline__ void settle_targets(int count) const {
#pragma unroll
        for (int i = 0; i < kTargets; i++) {
            if (i * kLanes + lane < count) {
                int place = (uint64_t)y[i] < (uint64_t)p.total_classes ? (int)y[i] : -2;
                if ((p.rows.flags & GPULOSSI_IGNORES) && y[i] == p.ignore_index)
                    place = -1;
                places()[i * kLanes + lane] = (int16_t)place;
            }
            if ((i + 1) * kLanes >= count)
                break;
        }
    }

    /* A lane's pieces of a row, of so many bytes. */
    template <int bytes> struct Pieces {
        enum { kWords = bytes / 4, kAtOnce = bytes == 16 ? 2 : 4 };
        int start, count, step, twist; /* in bytes, but for the count */

        DEVICE void load(int at, uint32_t *words) {
            if (bytes == 16) {
                uint4 w = *(const uint4 *)(slots() + at);
                words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
            } else {
                words[0] = *(const uint32_t *)(slots() + at);
            }
        }
        DEVICE void store(int at, const uint32_t *words) {
            if (bytes == 16)
                *(uint4 *)(slots() + at) = make_uint4(words[0], words[1], words[2], words[3]);
            else
                *(uint32_t *)(slots() + at) = words[0];
        }
        template <bool writes, int m, class Use> __device__ __forceinline__ void some(int &at, Use use) const {
            uint32_t words[m * kWords];
            int from[m];
#pragma unroll
            for (int k = 0; k < m; k++) {
                from[k] = bytes == 16 ? at ^ twist : at;
                load(from[k], words + k * kWords);
                at += step;
            }
            use(words);
            if (writes)
#pragma unroll
                for (int k = 0; k < m; k++)
                    store(from[k], words + k * kWords);
        }
        /* Calls `use` with the words of some pieces at a time; `writes`: which it changes. */
        template <bool writes, class Use> __device__ __forceinline__ void each(Use use) const {
            int at = start;
            int left = count;
#pragma unroll 1
            for (; left >= kAtOnce; left -= kAtOnce)
                some<writes, kAtOnce>(at, use);
            if (kAtOnce > 2 && (left & 2))
                some<writes, 2>(at, use);
            if (left & 1)
                some<writes, 1>(at, use);
        }
        /* The same for what is seldom: shorter. */
        template <bool writes, class Use> __device__ __forceinline__ void each_slowly(Use use) const {
            int at = start;
#pragma unroll 1
            for (int left = count; left > 0; left--)
                some<writes, 1>(at, use);
        }
    };

    /* A lane's part of row `row` of a slot. Where a row of 16 bits has an odd number of classes, one of them is in a word
     * with one of another row: the first class or the last. */
    template <int bytes> struct Part {
        Pieces<bytes> pieces;
        Bits *lone;

        __device__ __forceinline__ Part(int slot, int row, bool live, const Packed &of) {
            int first = row * of.row_bytes;
            lone = NULL;
            if (bytes == 4 && kElements == 2 && (of.classes & 1)) {
                if (of.rank == 0 && live)
                    lone = (Bits *)(slots() + slot + first) + (first & 2 ? 0 : of.classes - 1);
                first = (first + 2) & ~3;
            }
            pieces.start = slot + first + of.rank * bytes;
            pieces.twist = of.twist;
            pieces.step = of.size * bytes;
            pieces.count = live ? of.pieces : 0;
        }
    };

    template <int bytes> __device__ __forceinline__ void reduce(const Part<bytes> &part, State &state) const {
        typename Of::Top top = Of::none();
        part.pieces.template each<false>([&](auto &words) {
            enum { n = sizeof words / 4 };
            typename Of::Top of_word[n];
#pragma unroll
            for (int i = 0; i < n; i++)
                of_word[i] = Of::top(words[i]);
            top = Of::larger_of(top, LargestTop<Of, n>::of(of_word));
        });
        N lone = part.lone ? E::widen(*part.lone) : loss.absent(0);
        UpTo<kLanes> lanes = {size};
        state.top = larger(Of::number(top), lone);
        if (size > 1)
            state.top = lanes.template over<Maximum>(state.top);
        N from = State::finite(state.top);
        if (Below<N>::near(from)) {
            Below<N> below(from);
            state.sum = below.exp(lone);
            part.pieces.template each<false>([&](auto &words) {
                enum { n = sizeof words / 4 * kElements };
                N e[n];
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] = below.exp(Of::get(words[i / kElements], i % kElements));
                state.sum += in_halves<Sum>(e);
            });
            state.sum *= below.factor;
        } else {
            state.sum = exp_below(lone, from);
            part.pieces.template each_slowly<false>([&](auto &words) {
#pragma unroll
                for (int i = 0; i < (int)sizeof words / 4 * kElements; i++)
                    state.sum += exp_below(Of::get(words[i / kElements], i % kElements), from);
            });
        }
        if (size > 1)
            state.sum = lanes.template over<Sum>(state.sum);
    }

    template <int bytes> __device__ __forceinline__ void write(const Part<bytes> &part, const Row &r) const {
        N weight = r.inverse * r.scale;
        if (Below<N>::near(r.top) && r.place >= 0) {
            Below<N> below(r.top);
            weight *= below.factor;
            part.pieces.template each<true>([&](auto &words) {
#pragma unroll
                for (int i = 0; i < (int)sizeof words / 4; i++) {
                    N g[kElements];
#pragma unroll
                    for (int n = 0; n < kElements; n++)
                        g[n] = below.exp(Of::get(words[i], n)) * weight;
                    words[i] = Of::pack(g);
                }
            });
            if (part.lone)
                *part.lone = E::narrow(below.exp(E::widen(*part.lone)) * weight);
        } else {
            /* Where there is no target, also what is NaN gets 0. */
            part.pieces.template each_slowly<true>([&](auto &words) {
#pragma unroll
                for (int i = 0; i < (int)sizeof words / 4; i++) {
                    N g[kElements];
#pragma unroll
                    for (int n = 0; n < kElements; n++)
                        g[n] = r.place >= 0 ? exp_below(Of::get(words[i], n), r.top) * weight : N(0);
                    words[i] = Of::pack(g);
                }
            });
            if (part.lone)
                *part.lone = E::narrow(r.place >= 0 ? exp_below(E::widen(*part.lone), r.top) * weight : N(0));
        }
    }

    DEVICE Row row_of(int64_t row, int place) {
        Row r;
        r.row = row;
        r.vector = -1;
        r.place = place;
        return r;
    }
    __device__ __forceinline__ void add(Row &r, const State &state, N x_y, typename Loss::Totals &total) {
        if (further || r.place < -1) {
            sum += (double)loss.result(loss.unfinished(r, state, &x_y), total);
        } else if (r.place >= 0) {
            N log_sum = reduces ? natural_log(state.sum) : N(0);
            sum += (double)(log_sum + (r.top - x_y));
        }
    }
    __device__ __forceinline__ void settle_sum(typename Loss::Totals &total) {
        if (sum != 0)
            loss.add(sum, total);
        sum = 0;
    }
    /* All lanes finish a row that they keep. Which ones these are is up to chance, so that each counts by itself. */
    __device__ __forceinline__ void finish(typename Loss::Totals &total) {
        if (late.row != kNone) {
            Row r = row_of(late.row, late.place);
            State state = {late.top, late.sum};
            r.top = late.top;
            add(r, state, late.x_y, total);
            settle_sum(total);
        }
        late.row = kNone;
        lates = 0;
    }

    /* Row `row` of a stretch, by all lanes of a warp; `live`: whether this lane has one. */
    __device__ __forceinline__ void work(int64_t first, int row, bool live, typename Loss::Totals &total) {
        bool even = p.rows.flags & GPULOSSI_EVEN;
        Row r = row_of(first + row, live ? places()[row] : -1);
        State state = State::empty();
        Bits *at_target = (Bits *)(slots() + slot(freed) + row * row_bytes) + r.place;
        N x_y = r.place >= 0 ? E::widen(*at_target) : N(0);
        if (reduces && even)
            reduce(Part<16>(slot(freed), row, live, *this), state);
        else if (reduces)
            reduce(Part<4>(slot(freed), row, live, *this), state);
        if (live)
            r.top = reduces ? state.top : ((const N *)p.lse_in)[r.row];
        if (size == 1) {
            if (live && results)
                add(r, state, x_y, total);
            if (!reduces) /* such losses may cancel */
                settle_sum(total);
        } else if (results) {
            if (live && rank == lates)
                late.row = r.row, late.top = r.top, late.sum = state.sum, late.x_y = x_y, late.place = r.place;
            if (++lates == size)
                finish(total);
        }
        if (writes()) {
            __syncwarp(); /* whoever wants the target's logit has it */
            if (live)
                loss.slope(r, state, reduces);
            if (live && even)
                write(Part<16>(slot(freed), row, live, *this), r);
            else if (live)
                write(Part<4>(slot(freed), row, live, *this), r);
            __syncwarp();
            if (rank == 0 && r.place >= 0)
                *at_target = E::narrow(loss.of_target(r, x_y));
        }
    }

    /* Rows of few words, one a lane, in registers: of so many words or, where those are of one element, of one less. Says
     * which of the lane's rows are left: those far from 0, and those of bad targets. */
    template <int n_words>
    __device__ __forceinline__ uint32_t rows_of(int of_row, int64_t first, int count, typename Loss::Totals &total) {
        enum { n = n_words * kElements };
        uint32_t *words = (uint32_t *)(slots() + slot(freed)) + lane * of_row, left = 0, this_row = 1;
        const int16_t *place = places() + lane;
#pragma unroll 1
        for (int row = lane; row < count; row += kLanes, this_row <<= 1, words += kLanes * of_row, place += kLanes) {
            Row r = row_of(first + row, *place);
            Bits *at_target = (Bits *)words + max(r.place, 0);
            N x_y = E::widen(*at_target), e[n];
            typename Of::Top tops[n_words];
            State state = {N(0), N(1)};
            uint32_t x[n_words];
#pragma unroll
            for (int i = 0; i < n_words; i++) {
                x[i] = i + 1 < n_words || kElements > 1 || of_row == n_words ? words[i] : E::narrow(loss.absent(0));
                tops[i] = Of::top(x[i]);
            }
            state.top = reduces ? Of::number(LargestTop<Of, n_words>::of(tops)) : ((const N *)p.lse_in)[r.row];
            if (!Below<N>::near(state.top) || r.place < -1) {
                left |= this_row;
                continue;
            }
            Below<N> below(state.top);
#pragma unroll
            for (int i = 0; i < n; i++)
                e[i] = below.exp(Of::get(x[i / kElements], i % kElements));
            if (reduces)
                state.sum = in_halves<Sum>(e) * below.factor;
            r.top = state.top;
            if (results && reduces)
                add(r, state, x_y, total);
            if (writes()) {
                loss.slope(r, state, reduces);
                N weight = r.inverse * r.scale * below.factor;
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] *= weight;
#pragma unroll
                for (int i = 0; i < n_words; i++)
                    if (i + 1 < n_words || kElements > 1 || of_row == n_words)
                        words[i] = r.place >= 0 ? Of::pack(e + i * kElements) : 0;
                if (r.place >= 0)
                    *at_target = E::narrow(loss.of_target(r, x_y));
            }
        }
        return left;
    }
    __device__ __forceinline__ uint32_t rows_in_registers(int64_t first, int count, typename Loss::Totals &total) {
        enum { step = kElements == 1 ? 2 : 1 };
        switch ((alone + step - 1) / step) {
        case 1:
            return rows_of<step>(alone, first, count, total);
        case 2:
            return rows_of<2 * step>(alone, first, count, total);
        case 3:
            return rows_of<3 * step>(alone, first, count, total);
        case 4:
            return rows_of<4 * step>(alone, first, count, total);
        case 5:
            return rows_of<5 * step>(alone, first, count, total);
        default:
            return ~0u;
        }
    }

    __device__ __forceinline__ void rows_of_slot(int64_t first, int count, typename Loss::Totals &total) {
        uint32_t left = ~0u;
        if (alone > 0) {
            left = rows_in_registers(first, count, total);
            if (!__any_sync(0xffffffffu, left != 0))
                return;
        }
#pragma unroll 1
        for (int row = lane >> shift; row - (lane >> shift) < count; row += kLanes >> shift, left >>= 1) {
            work(first, row, row < count && (left & 1), total);
        }
    }
    /* What the stretch at the end has beside whole vectors. */
    DEVICE void copy_rest(Bits *to, const Bits *from, int bytes, int lane) {
        int whole = (bytes & -GPULOSSI_VECTOR_BYTES) / (int)sizeof(Bits);
        if (whole + lane < bytes / (int)sizeof(Bits))
            to[whole + lane] = from[whole + lane];
    }
    __device__ __forceinline__ void send(int64_t first, int bytes) {
        uint4 *to = (uint4 *)loss.grad(first);
        const uint4 *from = (const uint4 *)(slots() + slot(freed));
#pragma unroll 4
        for (int v = lane; v < bytes / GPULOSSI_VECTOR_BYTES; v += kLanes)
            __stcs(&to[v], from[v]);
        copy_rest((Bits *)to, (const Bits *)from, bytes, lane);
    }

    __device__ __forceinline__ void stretch(uint32_t number, uint32_t after, typename Loss::Totals &total) {
        int64_t first = first_of(number);
        int count = count_of(number), bytes = count * row_bytes;
        ask();
        settle_targets(count);
        if (after < stretches)
            fetch_targets(after);
        if (bytes % GPULOSSI_VECTOR_BYTES != 0)
            copy_rest((Bits *)(slots() + slot(freed)), loss.array(0, first), bytes, lane);
        arrival(freed).wait(freed / kSteps & 1);
        __syncwarp();
        rows_of_slot(first, count, total);
        if (writes()) {
            __syncwarp();
            send(first, bytes);
        }
        freed++;
    }

    __device__ __forceinline__ void all(typename Loss::Totals &total) {
        if (queue.more())
            fetch_targets(queue.tile[0] * run);
#pragma unroll 1
        while (queue.more()) {
            uint32_t word = lane == 0 ? queue.fetch() : 0;
            uint32_t number = queue.tile[0] * run, end = min(number + run, stretches);
#pragma unroll 1
            for (; number < end; number++)
                stretch(number, number + 1 < end ? number + 1 : queue.tile[1] * run, total);
            settle_sum(total);
            queue.advance(__shfl_sync(0xffffffffu, word, 0));
            next--;
        }
        finish(total);
    }

  public:
    DEVICE void run_on(const Params &p) {
        __shared__ typename Loss::Totals totals[GPULOSSI_BLOCK]; /* seldom touched, so they take no registers */
        Packed packed(p);
        totals[threadIdx.x] = Loss::Totals::zero();
        packed.all(totals[threadIdx.x]);
        end(packed.loss, packed.loss.scratch(), totals);
    }
};

#endif
