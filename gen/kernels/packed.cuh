/* Cross-entropy of short packed rows, without options, a stretch of them at a time.
 *
 * Lanes read rows of whole vectors by vectors, and all others by words of 4 bytes. */
#ifndef GPULOSSI_PACKED_CUH
#define GPULOSSI_PACKED_CUH

#include "plain.cuh"
#include "stretches.cuh"

template <class E> class Packed : Stretches<Plain<E>, GPULOSSI_BLOCK, GPULOSSI_RING_STEPS> {
    typedef Stretches<Plain<E>, GPULOSSI_BLOCK, GPULOSSI_RING_STEPS> Base;
    typedef Plain<E> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename E::Bits Bits;
    typedef Words<E> Of;
    template <int bytes> using Part = typename Base::template Part<bytes>;
    using Base::p, Base::loss, Base::lane, Base::rank, Base::size, Base::shift, Base::classes, Base::row_bytes;
    using Base::slots, Base::slot, Base::first_of, Base::count_of;
    using Base::stretches, Base::run, Base::queue, Base::freed, Base::next;
    enum { kTargets = GPULOSSI_PACKED_ROWS / kLanes, kNone = -1, kElements = Of::kElements, kAlone = 22 / kElements };
    static_assert(sizeof(N) == 4, "a word has numbers of 4 bytes or less");
    static_assert(kLanes * GPULOSSI_RING_VECTORS * GPULOSSI_RING_STEPS * GPULOSSI_VECTOR_BYTES / sizeof(Bits) <=
                      INT16_MAX,
                  "places are 16 bits");

    int reduces, writes, results, further; /* results: besides the gradient; further: and besides the sum of losses */
    int alone;                             /* whether rows fit a lane's registers */
    int64_t y[kTargets];                   /* the class indices of the next stretch */

    /* What is left to do of a row when it is reduced. Where several lanes have a row, each keeps another one's. */
    struct Late {
        int64_t row;
        N top, sum, x_y;
        int place;
    } late;
    int lates;
    double sum; /* of losses */

    __device__ __forceinline__ explicit Packed(const Params &p)
        : Base(p), reduces(loss.reduces()), writes(loss.writes()),
          further(p.lse || p.rows.loss_rows ||
                  ((p.rows.flags & GPULOSSI_DATA_DIVISOR) && !(p.rows.flags & GPULOSSI_PREPARED))),
          lates(0), sum(0) {
        results = further || p.rows.loss || p.bad_targets;
        /* Losses from a given lse are summed one by one, which is left to the general way. */
        alone = size == 1 && classes / kElements <= kAlone && (reduces || !results);
        keep(reduces);
        keep(writes);
        keep(results);
        keep(further);
        late.row = kNone;
    }

    /* Of the rows of this stretch: the class index, or a number less than 0 that says why there is none. */
    DEVICE int16_t *places() {
        __shared__ int16_t of_block[kWarps][GPULOSSI_PACKED_ROWS];
        return of_block[threadIdx.x / kLanes];
    }

    /* Lanes without a row take the last one's: each load in a branch of its own would wait for the one before. */
    template <class Index> __device__ __forceinline__ void fetch_indices(int64_t first, int count) {
        const Index *from = (const Index *)p.targets + first;
#pragma unroll
        for (int i = 0; i < kTargets; i++) {
            y[i] = from[min(i * kLanes + lane, count - 1)];
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
            N other =
                exp_below(lone, from); /* two sums in turn, so that not too many numbers follow each other in one */
            part.pieces.template each_slowly<false>([&](auto &words) {
                enum { n = sizeof words / 4 * kElements };
                N e[n];
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] = exp_below(Of::get(words[i / kElements], i % kElements), from);
                N more = other + in_halves<Sum>(e);
                other = state.sum;
                state.sum = more;
            });
            state.sum += other;
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
        if (writes) {
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

    /* Rows of few words, one a lane, in registers: `least` of them at least, and at most `most`; and of what is beside
     * whole words. `even`: rows of whole vectors. Says which of the lane's rows are left: those far from 0, and those of bad
     * targets. */
    template <bool even, int least, int most>
    __device__ __forceinline__ uint32_t rows_of(int64_t first, int count, typename Loss::Totals &total) {
        enum { n = most * kElements, kPiece = even ? GPULOSSI_VECTOR_BYTES : 4, kWords = kPiece / 4 };
        const int words_of_row = classes / kElements, begin = slot(freed) + lane * row_bytes;
        const bool odd = !even && kElements > 1 && (classes & 1);
        const int to_words = odd && (lane & 1) ? sizeof(Bits) : 0,
                  to_lone = lane & 1 ? 0 : row_bytes - (int)sizeof(Bits);
        uint32_t left = 0, this_row = 1;
        const int16_t *place = places() + lane;
#pragma unroll 1
        for (int row = lane, at = begin; row < count;
             row += kLanes, this_row <<= 1, at += kLanes * row_bytes, place += kLanes) {
            Row r = row_of(first + row, *place);
            Bits *at_target = (Bits *)(slots() + at) + max(r.place, 0), *lone = (Bits *)(slots() + at + to_lone);
            uint32_t x[most];
            N x_y = E::widen(*at_target), e[n], of_lone = odd ? E::widen(*lone) : loss.absent(0);
            typename Of::Top tops[most];
            State state = {N(0), N(1)};
            auto place_of = [&](int i) { return even ? (at + 4 * i) ^ this->twist : at + to_words + 4 * i; };
#pragma unroll
            for (int i = 0; i < most; i += kWords) {
#pragma unroll
                for (int k = 0; k < kWords; k++)
                    x[i + k] = Of::absent();
                if (i < least || i < words_of_row)
                    Pieces<kPiece>::load(place_of(i), x + i);
            }
#pragma unroll
            for (int i = 0; i < most; i++)
                tops[i] = Of::top(x[i]);
            state.top =
                reduces ? larger(Of::number(LargestTop<Of, most>::of(tops)), of_lone) : ((const N *)p.lse_in)[r.row];
            if (!Below<N>::near(state.top) || r.place < -1) {
                left |= this_row;
                continue;
            }
            Below<N> below(state.top);
            of_lone = below.exp(of_lone);
#pragma unroll
            for (int i = 0; i < n; i++)
                e[i] = below.exp(Of::get(x[i / kElements], i % kElements));
            if (reduces)
                state.sum = (in_halves<Sum>(e) + of_lone) * below.factor;
            r.top = state.top;
            if (results && reduces)
                add(r, state, x_y, total);
            if (writes) {
                loss.slope(r, state, reduces);
                N weight = r.inverse * r.scale * below.factor;
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] *= weight;
#pragma unroll
                for (int i = 0; i < most; i++)
                    x[i] = r.place >= 0 ? Of::pack(e + i * kElements) : 0;
#pragma unroll
                for (int i = 0; i < most; i += kWords)
                    if (i < least || i < words_of_row)
                        Pieces<kPiece>::store(place_of(i), x + i);
                if (odd)
                    *lone = E::narrow(r.place >= 0 ? of_lone * weight : N(0));
                if (r.place >= 0)
                    *at_target = E::narrow(loss.of_target(r, x_y));
            }
        }
        return left;
    }
    __device__ __forceinline__ uint32_t rows_in_registers(int64_t first, int count, typename Loss::Totals &total) {
        enum { m = 2 / kElements }; /* words of floats are twice as many */
        const int words = classes / kElements;
        if (p.rows.flags & GPULOSSI_EVEN)
            return words == 4                     ? rows_of<true, 4, 4>(first, count, total)
                   : words == 8 || kElements == 2 ? rows_of<true, 8, 8>(first, count, total)
                                                  : rows_of<true, 12, 20>(first, count, total);
        if (words <= 4 * m)
            return rows_of<false, 0, 4 * m>(first, count, total);
        if (words <= 5 * m)
            return rows_of<false, 4 * m, 5 * m>(first, count, total);
        if (words <= 8 * m)
            return rows_of<false, 5 * m, 8 * m>(first, count, total);
        return rows_of<false, 8 * m, kAlone>(first, count, total);
    }

    __device__ __forceinline__ void rows_of_slot(int64_t first, int count, typename Loss::Totals &total) {
        uint32_t left = ~0u;
        if (alone) {
            left = rows_in_registers(first, count, total);
            if (!__any_sync(0xffffffffu, left != 0))
                return;
        }
#pragma unroll 1
        for (int row = lane >> shift; row - (lane >> shift) < count; row += kLanes >> shift, left >>= 1) {
            work(first, row, row < count && (left & 1), total);
        }
    }
    __device__ __forceinline__ void stretch(uint32_t number, uint32_t after, typename Loss::Totals &total) {
        int64_t first = first_of(number);
        int count = count_of(number), bytes = count * row_bytes;
        this->ask(writes);
        settle_targets(count);
        if (after < stretches)
            fetch_targets(after);
        this->receive(first, bytes);
        rows_of_slot(first, count, total);
        if (writes) {
            __syncwarp();
            this->send(loss.grad(first), bytes);
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
