/* Divergences of a sparse teacher, which has k classes a row and their probabilities t, from the logits of a student. Let
 * q = softmax(logits / T), P = sum_k t and R = 1 - sum_k q. All other classes have the probability 0:
 *
 *   drop          p = t
 *   renormalise   p = t / P
 *   bucket        p = t, and the other classes are one, with rest = 1 - P of the teacher and R of the student
 *
 * With u = q df/dq of divergence_terms.cuh and S the sum of all u, the gradient of a class of the teacher is
 * (u - q S) / T. The other classes share (u - R S) / T in proportion to q. Here u is the bucket's, or the sum of the
 * other classes' u. Equal indices of a row are one class, whose probability is their sum.
 *
 * The sums of the other classes exclude the teacher's classes, so that R has all its digits however small it is. A bit
 * in shared memory says that a class is the teacher's. */
#ifndef GPULOSSI_SPARSE_DIVERGENCE_CUH
#define GPULOSSI_SPARSE_DIVERGENCE_CUH

#include "../device/class_bits.cuh"
#include "divergence_rows.cuh"
#include "divergence_terms.cuh"

template <class E> struct SparseDivergence : DivergenceRows<E, gpulossi_kl_div_sparse> {
    typedef DivergenceRows<E, gpulossi_kl_div_sparse> Base;
    typedef typename Base::N N;
    typedef typename Base::Bits Bits;
    typedef typename Base::Params Params;
    typedef typename Base::Gradients Gradients;
    typedef FormatArray<E, GPULOSSI_FORMAT_TARGET_SHIFT> TeacherValues;
    using Base::exp_from;
    using Base::finite;
    using Base::inverse_temperature;
    using Base::p;
    enum { W = Base::W, kHasEntries = 1, kClusterSlots = GPULOSSI_SLOTS };
    enum { kOther, kTeacher }; /* the classes of a row that the teacher does not have, and the teacher's classes */

    DEVICE bool has_bucket() { return has(GPULOSSI_KL_BUCKET); }
    DEVICE bool is_renormalised() { return has(GPULOSSI_KL_RENORMALIZE); }
    DEVICE bool is_forward() {
        return !has(GPULOSSI_KL_REVERSE | GPULOSSI_KL_JENSEN_SHANNON | GPULOSSI_KL_TOTAL_VARIATION);
    }
    DEVICE bool writes() { return has(GPULOSSI_KL_GRADIENT); }
    DEVICE bool reduces() { return true; }
    DEVICE bool may_have_values() { return has(GPULOSSI_KL_VALUES); }
    DEVICE bool has_values_of_all() { return false; }
    DEVICE bool sums_while_writing() { return false; }
    DEVICE bool sums_only() { return true; }

    __device__ __forceinline__ explicit SparseDivergence(const Params &p) : Base(p) {}

    DEVICE const Bits *first_input(const Params &p) { return (const Bits *)p.logits; }
    DEVICE int64_t stride_of_input(const Params &p) { return p.logits_stride; }
    DEVICE int64_t inner(const Params &) { return 1; }
    __device__ __forceinline__ const Bits *logits(int64_t row) const { return first_input(p) + row * p.logits_stride; }
    DEVICE const void *second_input(int64_t, int64_t) { return nullptr; }
    DEVICE N padding() { return -Limits<N>::infinity(); }

    /* ---- the entries of a row ---- */

    /* Entries of a thread in registers. Further ones are loaded whenever they are used. Not every schedule takes them. */
    enum { kReg = GPULOSSI_REG_ENTRIES };
    struct RowInput {
        int64_t label;
        N weight;
        uint64_t index[kReg];
        typename TeacherValues::Loaded value[kReg];
    };
    /* The part of a row that finish() needs. */
    struct DeferredRow {
        N weight; /* A weight of 0 means no divergence and gradients of 0, whatever the elements are. */
        bool is_counted;
    };
    struct Row : DeferredRow {
        static const int target_class = -1;
        int64_t index[kReg];
        N value[kReg];
    };
    /* Nobody waits for the loads before row_of(). `team` is the threads of this block that share the row. */
    template <class Team> __device__ __forceinline__ RowInput fetch(int64_t row, const Team &team) const {
        RowInput in = {0, N(1), {}, {}};
        if (has(GPULOSSI_KL_LABELS))
            in.label = read_index(p.labels, p.label_type, row);
        if (has(GPULOSSI_KL_ROW_WEIGHTS))
            in.weight = ((const N *)p.row_weights)[row];
#pragma unroll
        for (int i = 0; i < kReg; i++) {
            const int j = team.rank() + i * team.size();
            if (j < (int)p.k) {
                in.index[i] = load_index(row, j);
                in.value[i] = TeacherValues(p.values, row * p.values_stride).load(j);
            }
        }
        return in;
    }
    template <class Lanes> __device__ __forceinline__ Row row_of(const RowInput &in, const Lanes &) const {
        Row r = {{in.weight, true}, {}, {}};
#pragma unroll
        for (int i = 0; i < kReg; i++) {
            r.index[i] = index_of(in.index[i]);
            r.value[i] = TeacherValues::widen(in.value[i]);
        }
        if (has(GPULOSSI_KL_LABELS) && in.label == p.ignore_index) {
            r.weight = N(0);
            r.is_counted = false;
        }
        return r;
    }

    /* The bits of an index, which index_of() converts once it is needed. */
    __device__ __forceinline__ uint64_t load_index(int64_t row, int j) const {
        const int64_t at = row * p.indices_stride + j;
        return has_format(GPULOSSI_FORMAT_INDEX_I32)   ? ((const uint32_t *)p.indices)[at]
               : has_format(GPULOSSI_FORMAT_INDEX_I16) ? ((const uint16_t *)p.indices)[at]
               : has_format(GPULOSSI_FORMAT_INDEX_U8)  ? ((const uint8_t *)p.indices)[at]
                                                       : ((const uint64_t *)p.indices)[at];
    }
    DEVICE int64_t index_of(uint64_t bits) {
        return has_format(GPULOSSI_FORMAT_INDEX_I32)   ? (int32_t)bits
               : has_format(GPULOSSI_FORMAT_INDEX_I16) ? (int16_t)bits
                                                       : (int64_t)bits;
    }
    __device__ __forceinline__ int64_t index(int64_t row, int j) const {
        return index_of(load_index(row, j));
    }
    DEVICE N probability(N value) {
        return has(GPULOSSI_KL_TARGET_LOGARITHMS) ? exponential(value) : value >= 0 ? value : Limits<N>::nan();
    }
    __device__ __forceinline__ N value(int64_t row, int j) const {
        return TeacherValues(p.values, row * p.values_stride).template read<N>(j);
    }
    __device__ __forceinline__ bool is_class(int64_t c) const {
        return c >= 0 && c < p.rows.classes;
    }

    /* A class of the teacher, or kNone if another block has it, or if an earlier entry has the same one. Reverse KL needs the
     * logarithm that was given, since t may be 0 as a float where the logarithm is finite. */
    enum { kNone = -1 };
    struct Entry {
        int64_t c;
        N t, log; /* log if has_logs() */
        Bits logit;
    };
    DEVICE bool has_logs() {
        return has(GPULOSSI_KL_TARGET_LOGARITHMS) && has(GPULOSSI_KL_REVERSE);
    }
    DEVICE Entry entry_of(int64_t c, N value) {
        const Entry entry = {c, probability(value), has_logs() ? value : N(0), 0};
        return entry;
    }
    ClassBits bits;
    Entry reg_entries[kReg];
    int bad; /* indices of this thread that are no class */

    /* Gradients of entries that wait for a barrier after the vectors of their row. */
    struct Written {
        int64_t c;
        N y;
    };
    Written reg_written[kReg];
    int64_t written_row;

    __device__ __forceinline__ void store_written() {
        if (!writes())
            return;
        const Gradients to = this->gradients_of(written_row);
#pragma unroll
        for (int i = 0; i < kReg; i++) {
            if (reg_written[i].c != kNone)
                to.write(reg_written[i].c, reg_written[i].y);
            reg_written[i].c = kNone;
        }
    }
    /* Prepares the bits. */
    template <class Team> __device__ __forceinline__ void begin(const Team &team, uint32_t address, uint32_t bytes) {
        bits = ClassBits(address, bytes, team.positions());
        bits.clear_other(team.rank(), team.size());
        bits.next_row();
        bits.clear_other(team.rank(), team.size());
        written_row = 0;
#pragma unroll
        for (int i = 0; i < kReg; i++)
            reg_written[i] = {kNone, N(0)};
        team.settle();
    }
    /* After the last row. */
    template <class Team> __device__ __forceinline__ void end_entries(const Team &team) {
        team.settle();
        store_written();
    }
    /* Sets the bits of a row. Logits of entries in registers are loaded, and nobody waits for them here. */
    template <class Team>
    __device__ __forceinline__ void open(int64_t row, const Row &r, bool reads, const Team &team) {
        bits.next_row();
        bad = 0;
#pragma unroll
        for (int i = 0; i < kReg; i++) {
            reg_entries[i] = {kNone, N(0), N(0), 0};
            if (reads && team.rank() + i * team.size() < (int)p.k && open_entry(r.index[i], team)) {
                reg_entries[i] = entry_of(r.index[i], r.value[i]);
                reg_entries[i].logit = logits(row)[r.index[i]];
            }
        }
        if (reads && Team::kMayHaveMore)
#pragma unroll 1
            for (int j = team.rank() + kReg * team.size(); j < (int)p.k; j += team.size())
                open_entry(index(row, j), team);
        team.settle();
        bits.clear_other(team.rank(), team.size());
        store_written();
        if (bits.repeats())
#pragma unroll
            for (int i = 0; i < kReg; i++)
                if (reg_entries[i].c != kNone)
                    join_equal(row, team.rank() + i * team.size(), reg_entries[i]);
    }
    /* Whether an entry is a class of this block. Its bit is then set. */
    template <class Team> __device__ __forceinline__ bool open_entry(int64_t c, const Team &team) {
        const int at = is_class(c) ? team.position(c) : (int)ClassBits::kElsewhere;
        bad += !is_class(c);
        if (at == ClassBits::kElsewhere)
            return false;
        bits.set(at);
        return true;
    }
    /* Adds the probabilities of later entries with the same index, or drops the entry if there is an earlier one. */
    __device__ __forceinline__ void join_equal(int64_t row, int j, Entry &entry) const {
        const int64_t c = entry.c;
#pragma unroll 1
        for (int i = 0; i < (int)p.k; i++)
            if (i != j && index(row, i) == c) {
                if (i < j)
                    entry.c = kNone;
                const N more = value(row, i);
                entry.t += probability(more);
                if (has_logs())
                    entry.log = log_of_sum(entry.log, more);
            }
    }
    template <class Team> __device__ __forceinline__ Entry load_entry(int64_t row, int j, const Team &team) const {
        Entry entry = entry_of(index(row, j), value(row, j));
        if (!is_class(entry.c) || team.position(entry.c) == ClassBits::kElsewhere) {
            entry.c = kNone;
            return entry;
        }
        entry.logit = logits(row)[entry.c];
        if (bits.repeats())
            join_equal(row, j, entry);
        return entry;
    }
    /* Calls `use` with each entry of this thread. */
    template <class Team, class Use>
    __device__ __forceinline__ void each_entry(int64_t row, const Team &team, const Use &use) const {
        if constexpr (Team::kMayHaveMore) {
            Entry of[kReg];
#pragma unroll
            for (int i = 0; i < kReg; i++)
                of[i] = reg_entries[i];
#pragma unroll 1
            for (int i = 0, j = team.rank(); j < (int)p.k; i++, j += team.size()) {
                if (i >= kReg)
                    of[0] = load_entry(row, j, team);
                if (of[0].c != kNone)
                    use(of[0]);
                rotate(of);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kReg; i++)
                if (reg_entries[i].c != kNone)
                    use(reg_entries[i]);
        }
    }
    /* Bits of the elements of a vector whose classes the teacher has. */
    template <class Side> __device__ __forceinline__ uint32_t known(const Side &side, int k) const {
        uint32_t of = side.is_edge()      ? bits.get_edge(side.position(k))
                      : side.count(k) > 0 ? bits.template get<W>(side.position(k))
                                          : 0;
        if (ClassBits::may_be_another() && of != 0)
#pragma unroll 1
            for (int i = 0; i < W; i++)
                if ((of >> i & 1) != 0 && !has_entry(side.row_number(), side.first(k) + i))
                    of &= ~(1u << i);
        return of;
    }
    __device__ __forceinline__ bool has_entry(int64_t row, int64_t c) const {
#pragma unroll 1
        for (int j = 0; j < (int)p.k; j++)
            if (index(row, j) == c)
                return true;
        return false;
    }

    /* ---- the sums of a row ---- */

    struct Softmax {
        N max[2], sum[2]; /* of the other classes, and of the teacher's classes */
        double teacher;   /* sum of the teacher's probabilities */
        int bad, unused;

        DEVICE Softmax empty() {
            const N lowest = -Limits<N>::infinity();
            Softmax s = {{lowest, lowest}, {N(0), N(0)}, 0.0, 0, 0};
            return s;
        }
        __device__ __forceinline__ void raise(int classes, N higher) {
            if (higher == max[classes])
                return;
            sum[classes] *= exp_of_difference(Base::smem_inverse_temperature() * difference(max[classes], higher));
            max[classes] = higher;
        }
        template <class Lanes> __device__ __forceinline__ void reduce(const Lanes &lanes) {
#pragma unroll
            for (int i = kOther; i <= kTeacher; i++) {
                raise(i, largest_over(lanes, max[i]));
                sum[i] = lanes.template over<Sum>(sum[i]);
            }
            teacher = lanes.template over<Sum>(teacher);
            bad = sum_over(lanes, bad);
        }
    };
    /* Sums over the teacher's classes: of f, and of u. */
    struct Values {
        double f, of_log;

        DEVICE Values empty() {
            Values values = {0.0, 0.0};
            return values;
        }
        template <class Lanes> __device__ __forceinline__ void reduce(const Lanes &lanes) {
            if (has(GPULOSSI_KL_LOSS | GPULOSSI_KL_ROW_OUTPUTS))
                f = lanes.template over<Sum>(f);
            if (has(GPULOSSI_KL_INPUT_SUM))
                of_log = lanes.template over<Sum>(of_log);
        }
    };
    /* The constants of a row whose softmax is reduced. */
    struct Sides {
        N max, inverse, log_sum; /* of all classes */
        N norm;                  /* The probabilities are divided by it. */
        N left;                  /* R */
        N others_f, others_u;    /* the part of the other classes in f, and in the sum of u */
        bool is_normalised;      /* The terms of forward KL are the terms for equal sums of p and q. */
    };
    struct State : Softmax {
        Values values;
        Sides sides;
        DEVICE State empty() {
            State s = {Softmax::empty(), Values::empty(), {}};
            return s;
        }
    };

    /* A vector without the elements of some bits. */
    DEVICE Vector<E> without(const Vector<E> &x, uint32_t of) {
        Vector<E> y = x;
#pragma unroll
        for (int i = 0; i < W; i++)
            if ((of >> i & 1) != 0)
                y.replace(i, E::narrow(padding()));
        return y;
    }
    /* The constants of some vectors, of which no logit is above the maximum. */
    struct Batch {
        ScaledExp<N> exp;
        N from;
        bool is_fast;
    };
    __device__ __forceinline__ Batch batch_of(const Softmax &s) const {
        const N from = finite(s.max[kOther]);
        const Batch of = {ScaledExp<N>(from, inverse_temperature), from,
                          ScaledExp<N>::in_fast_range(from * inverse_temperature)};
        return of;
    }
    template <bool kFast>
    __device__ __forceinline__ void exponentials(const Batch &of, const Vector<E> &x, N (&e)[W]) const {
        x.unpack(e);
#pragma unroll
        for (int i = 0; i < W; i++)
            e[i] = kFast ? of.exp.exp(e[i]) : exp_from(e[i], of.from);
    }
    /* Adds the other classes of vectors to the state. */
    template <int K, class Side>
    __device__ __forceinline__ void accumulate_sums(State &s, Vector<E> (&x)[K], const Side &side) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const uint32_t of = known(side, k);
            if (of != 0)
                x[k] = without(x[k], of);
        }
        s.raise(kOther, larger(s.max[kOther], LargestOf<E, K>::of(x, false)));
        const Batch batch = batch_of(s);
        N sum = N(0), e[W];
        if (batch.is_fast) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                exponentials<true>(batch, x[k], e);
                sum += in_halves<Sum>(e);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++) { /* rare, so it is not unrolled */
                exponentials<false>(batch, x[0], e);
                sum += in_halves<Sum>(e);
                rotate(x);
            }
        }
        s.sum[kOther] = fma(sum, batch.is_fast ? batch.exp.factor : N(1), s.sum[kOther]);
    }
    /* Adds the entries of this thread. */
    template <class Team> __device__ __forceinline__ void add_entries(State &s, int64_t row, const Team &team) const {
        s.bad = team.counts_bad() ? bad : 0;
        each_entry(row, team, [&](const Entry &entry) {
            s.max[kTeacher] = larger(s.max[kTeacher], E::widen(entry.logit));
            s.teacher += (double)entry.t;
        });
        const N from = finite(s.max[kTeacher]);
        each_entry(row, team, [&](const Entry &entry) { s.sum[kTeacher] += exp_from(E::widen(entry.logit), from); });
    }

    /* ---- a row whose softmax is reduced ---- */

    __device__ __forceinline__ void complete(State &s) const {
        Sides &of = s.sides;
        of.max = finite(larger(s.max[kOther], s.max[kTeacher]));
        const N sum =
            fma(s.sum[kOther], exp_from(s.max[kOther], of.max), s.sum[kTeacher] * exp_from(s.max[kTeacher], of.max));
        of.inverse = quick_reciprocal(sum);
        of.log_sum = quick_log(sum);
        of.norm = is_renormalised() ? (N)s.teacher : N(1);
        of.left = s.sum[kOther] * exp_from(s.max[kOther], of.max) * of.inverse;
        of.others_f = of.others_u = N(0);
        /* Few dropped terms are small next to the sum of q. */
        of.is_normalised = has(GPULOSSI_KL_RENORMALIZE | GPULOSSI_KL_BUCKET) || s.teacher > 0.5;
        if (has_bucket()) {
            const double rest = 1.0 - s.teacher;
            Pair<N> bucket;
            bucket.p = rest > 0 || rest != rest ? (N)rest : N(0);
            bucket.q = of.left;
            bucket.d = quick_log(bucket.p) - fma(difference(s.max[kOther], of.max), inverse_temperature,
                                                 quick_log(s.sum[kOther] * of.inverse));
            diverge(bucket, true);
            of.others_f = bucket.f;
            of.others_u = bucket.of_lq;
        } else if (has(GPULOSSI_KL_JENSEN_SHANNON)) {
            const N c = (N)(1.0 - p.beta);
            of.others_f = of.others_u = -of.left * c * natural_log(c);
        } else if (has(GPULOSSI_KL_TOTAL_VARIATION)) {
            of.others_f = of.others_u = of.left * N(0.5);
        }
    }
    /* Completes a pair of which p, q and d are known. */
    __device__ __forceinline__ void diverge(Pair<N> &y, bool is_normalised) const {
        if (has(GPULOSSI_KL_TOTAL_VARIATION))
            y.total_variation();
        else if (has(GPULOSSI_KL_JENSEN_SHANNON))
            y.jensen_shannon((N)p.beta, (N)(1.0 - p.beta), has(GPULOSSI_KL_HALF_BETA), false, true);
        else if (has(GPULOSSI_KL_REVERSE))
            y.reverse(true, N(0), N(0), false, true);
        else
            y.forward(is_normalised, N(0), N(0), false, false);
    }
    __device__ __forceinline__ Pair<N> pair(const Sides &of, const Entry &entry) const {
        const N z = E::widen(entry.logit);
        Pair<N> y;
        y.q = exp_from(z, of.max) * of.inverse;
        y.p = is_renormalised() ? (of.norm == 0 ? N(0) : entry.t / of.norm) : entry.t;
        y.d = (has_logs() ? entry.log : quick_log_of_any(y.p)) -
              (difference(z, of.max) * inverse_temperature - of.log_sum);
        diverge(y, of.is_normalised);
        return y;
    }
    __device__ __forceinline__ bool has_values(const Row &, const State &) const {
        return may_have_values();
    }
    template <class Team> __device__ __forceinline__ void add_values(State &s, int64_t row, const Team &team) const {
        each_entry(row, team, [&](const Entry &entry) {
            const Pair<N> y = pair(s.sides, entry);
            s.values.f += (double)y.f;
            s.values.of_log += (double)y.of_lq;
        });
    }
    /* The sum of the terms of a row. */
    DEVICE double f_of(const State &s) {
        const double f = s.values.f + (double)s.sides.others_f, above = s.teacher - 1.0;
        if (is_forward() && !has_bucket()) { /* the terms include the sum of q - p, which is 1 - R less that of p */
            if (s.teacher == 0)
                return 0.0;
            return s.sides.is_normalised ? f + ((is_renormalised() ? 0.0 : above) + (double)s.sides.left) : f;
        }
        if (!has_bucket() || !(above > 0))
            return f;
        return is_forward() ? f + above : has(GPULOSSI_KL_REVERSE) ? f - above : f;
    }
    /* The sum of all u. */
    DEVICE N sum_of_u(const State &s) {
        if (!is_forward())
            return (N)(s.values.of_log + (double)s.sides.others_u);
        if (has_bucket())
            return s.teacher <= 1 ? N(-1) : (N)-s.teacher;
        if (is_renormalised()) /* NaN stays NaN */
            return s.sides.norm == 0 ? N(0) : -s.sides.norm / s.sides.norm;
        return (N)-s.teacher;
    }

    /* ---- the gradient ---- */

    struct Gradient {
        Sides sides;
        N scale, sum_of_u;
        N of_others; /* times exp((x - the maximum of the other classes) / T) */
        Batch batch;
        bool is_zero, is_fast;
    };
    __device__ __forceinline__ Gradient gradient(int64_t row, const Row &r, const State &s) const {
        Gradient g = {s.sides, N(0), sum_of_u(s), N(0), batch_of(s), !Base::is_read(r) || s.bad != 0, false};
        g.scale = (N)(this->scale_of(row, Base::weight_of(r)) * p.inverse_temperature);
        /* Without other classes it is 0, or NaN if the row has no softmax. */
        g.of_others = s.sum[kOther] == 0
                          ? g.sides.inverse * N(0)
                          : (g.sides.others_u - g.sides.left * g.sum_of_u) * quick_reciprocal(s.sum[kOther]) *
                                (g.batch.is_fast ? g.batch.exp.factor : N(1)) * g.scale;
        g.is_fast = g.batch.is_fast && fabs(g.of_others) < Limits<N>::infinity();
        return g;
    }
    /* The gradients of the other classes of a vector. */
    template <bool kFast>
    __device__ __forceinline__ void gradients(const Gradient &g, const Vector<E> &x, N (&y)[W]) const {
        exponentials<kFast>(g.batch, x, y);
        /* A class of probability 0 has the gradient 0, also where that of the others is infinite. */
        const bool has_zeros = !kFast && g.sides.inverse < Limits<N>::infinity();
#pragma unroll
        for (int i = 0; i < W; i++) /* adding 0 changes -0 to 0 */
            y[i] = has_zeros && y[i] == 0 ? N(0) : fma(y[i], g.of_others, N(0));
    }
    /* Writes the elements of a vector whose bits in `of` are 0. */
    template <class Side>
    DEVICE void write_some(const Gradients &to, const Side &side, int k, uint32_t of, const N (&y)[W]) {
#pragma unroll
        for (int i = 0; i < W; i++)
            if ((of >> i & 1) == 0 && side.is_inside(k, i))
                to.write(side.first(k) + i, y[i]);
    }
    /* Writes the gradients of a vector. Where other threads may write entries at the same time, they are excluded. */
    template <class Side>
    __device__ __forceinline__ void write(const Gradient &g, const Row &, const Vector<E> &x, const Side &side, int k,
                                          int, bool has_gradient = true) const {
        const Gradients to(p.rows.grad, side.start_of_gradient(p.rows.grad_stride));
        N y[W] = {};
        uint32_t of = 0;
        if (has_gradient) {
            of = Side::kExcludesEntries ? known(side, k) : 0;
            if (g.is_fast)
                gradients<true>(g, x, y);
            else
                gradients<false>(g, x, y);
        }
        if (of == 0)
            side.write(to, k, y);
        else
            write_some(to, side, k, of, y);
    }
    /* The gradients of a vector where the exponentials are fast. */
    __device__ __forceinline__ void fast_gradients(const Gradient &g, const Vector<E> &x, N (&y)[W]) const {
        gradients<true>(g, x, y);
    }
    __device__ __forceinline__ N gradient_of(const Gradient &g, const Entry &entry) const {
        const Pair<N> y = pair(g.sides, entry);
        return fma(y.q == 0 ? y.of_lq : y.of_lq - y.q * g.sum_of_u, g.scale, N(0));
    }
    /* Writes the gradients of the entries of this thread, which vectors exclude. */
    template <class Team>
    __device__ __forceinline__ void write_entries(const Gradient &g, int64_t row, const Team &team) const {
        const Gradients to = this->gradients_of(row);
        each_entry(row, team, [&](const Entry &entry) { to.write(entry.c, gradient_of(g, entry)); });
    }
    /* The same where vectors include them, and the gradients wait for the next barrier. */
    __device__ __forceinline__ void defer_entries(const Gradient &g, int64_t row) {
        written_row = row;
#pragma unroll
        for (int i = 0; i < kReg; i++)
            reg_written[i] = {reg_entries[i].c, gradient_of(g, reg_entries[i])};
    }
    template <class Side> __device__ __forceinline__ void write_zeros(const Side &side, int k) const {
        N zeros[W] = {};
        side.write(Gradients(p.rows.grad, side.start_of_gradient(p.rows.grad_stride)), k, zeros);
    }

    /* ---- the results ---- */

    struct Outcome {
        double f;
        int bad;
        __device__ __forceinline__ double sum() const { return bad != 0 ? CUDART_NAN : f; }
    };
    __device__ __forceinline__ Outcome outcome(const Row &, const State &s) const {
        Outcome of = {0.0, s.bad};
        if (has(GPULOSSI_KL_LOSS | GPULOSSI_KL_ROW_OUTPUTS))
            of.f = f_of(s);
        return of;
    }
    struct Result {
        typename Base::Result of_row;
        int bad;
    };
    __device__ __forceinline__ Result finish(int64_t row, const DeferredRow &r, const Outcome &outcome, N logit) const {
        const Result of = {Base::finish(row, r, outcome, logit), outcome.bad};
        return of;
    }
    __device__ __forceinline__ void add(const Result &of, typename Base::Totals &total) const {
        Base::add(of.of_row, total);
        if (of.bad != 0 && p.bad_indices)
            total.count_bad(this->scratch(), (uint64_t)of.bad);
    }
    __device__ __forceinline__ bool concludes() const {
        return Base::concludes() || p.bad_indices;
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        Base::conclude(sums, counts);
        if (p.bad_indices)
            put_sum<int64_t>(p.rows, p.bad_indices, take_number(&this->scratch()->bad_targets));
    }
};

#endif
