/* Cross-entropy of short packed rows, without options, each by a lane or a few.
 *
 * Lanes read rows of whole vectors by vectors, and all others by words of 4 bytes. */
#ifndef GPULOSSI_PACKED_SMEM_CUH
#define GPULOSSI_PACKED_SMEM_CUH

#include "packed_base.cuh"

/* The first number of classes that is too many for registers. */
template <class E> struct FirstPacked {
    enum { value = GPULOSSI_PACKED_HELD + (sizeof(typename E::Bits) == 2) + 1 };
};

template <class E> class Packed : public PackedRows<E, Packed<E>, GPULOSSI_PACKED_THREADS, FirstPacked<E>::value> {
    typedef PackedRows<E, Packed<E>, GPULOSSI_PACKED_THREADS, FirstPacked<E>::value> Base;
    friend Base;
    typedef typename Base::Loss Loss;
    typedef typename Base::Params Params;
    typedef typename Base::Totals Totals;
    typedef typename Base::N N;
    typedef typename Base::Row Row;
    typedef typename Base::State State;
    typedef typename E::Bits Bits;
    typedef Words<E> Of;
    template <int bytes> using Part = typename Base::template Part<bytes>;
    using Base::p, Base::loss, Base::lane, Base::rank, Base::size, Base::shift, Base::row_bytes, Base::slots;
    using Base::slot, Base::freed, Base::reduces, Base::writes, Base::results, Base::add, Base::settle_sum;
    enum { kNone = -1, kElements = Of::kElements };

    /* What is left to do of a row when it is reduced. Where several lanes have a row, each keeps another one's. */
    struct Late {
        int64_t row;
        N top, sum, x_y;
        int place;
    } late;
    int lates;

    __device__ __forceinline__ explicit Packed(const Params &p) : Base(p), lates(0) { late.row = kNone; }

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
        if (ScaledExp<N>::in_fast_range(from)) {
            ScaledExp<N> below(from);
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
        if (ScaledExp<N>::in_fast_range(r.top) && r.place >= 0) {
            ScaledExp<N> below(r.top);
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

    /* All lanes finish a row that they keep. Which ones these are is up to chance, so that each counts by itself. */
    __device__ __forceinline__ void finish(Totals &total) {
        if (late.row != kNone) {
            Row r = this->row_of(late.row, late.place);
            State state = {late.top, late.sum};
            r.top = late.top;
            add(r, state, late.x_y, total);
            settle_sum(total);
        }
        late.row = kNone;
        lates = 0;
    }

    /* Row `row` of a stretch, by all lanes of a warp; `live`: whether this lane has one. */
    __device__ __forceinline__ void work(int64_t first, int row, bool live, Totals &total) {
        bool even = p.rows.flags & GPULOSSI_EVEN;
        Row r = this->row_of(first + row, live ? Base::places()[row] : -1);
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

    __device__ __forceinline__ void rows_of_slot(int64_t first, int count, Totals &total) {
#pragma unroll 1
        for (int row = lane >> shift; row - (lane >> shift) < count; row += kLanes >> shift)
            work(first, row, row < count, total);
    }
};

#endif
