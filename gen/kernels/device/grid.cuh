/* The tile queue of a launch, and the sums over all its blocks.
 *
 * Blocks take tiles from a queue in rising order, so that all of them access neighbouring memory. With fixed shares
 * they drift, and DRAM then loses about a twentieth of its speed when it is written. The assignment of tiles to
 * blocks is not deterministic, and a floating-point sum over blocks would not be either. The sum over tiles is
 * therefore exact: each tile's part is computed in a fixed order and added as an integer. Only the total is rounded,
 * once. */
#ifndef GPULOSSI_GRID_CUH
#define GPULOSSI_GRID_CUH

#include "pdl.cuh"
#include "reduce.cuh"

/* Counts up and wraps to zero after `times` calls, so that the counter is zero again when a launch is over. An atomic
 * addition of a constant would be aggregated over the warp by the compiler, which waits for its result at once. */
DEVICE uint32_t count_up(uint32_t *counter, uint32_t times) {
    uint32_t before;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter)), "r"(times - 1)
                 : "memory");
    return before;
}

/* The rows of a launch, distributed to teams. A team is a warp, whose groups take one row each at a time, or a group
 * that is larger than a warp. A tile is `run` iterations of a team. */
class Queue {
    gpulossi_scratch *scratch;
    struct Shared {
        uint32_t tiles;                            /* of the launch */
        uint32_t teams;                            /* of the grid */
        int run;                                   /* iterations of a tile */
        uint32_t next[2][GPULOSSI_BLOCK / kLanes]; /* next tile of each team, double-buffered */
    } * shared;                                    /* block-wide, or rarely used */
    int64_t of_group;                              /* row of this thread's group */
    uint32_t uniform_team;                         /* of this warp in its block, where groups are uniform */
    bool is_uniform;
    uint32_t fetched; /* In a team's first thread: the next tile less the teams. The first use waits for the counter. */
    int group_shift, team_shift; /* log2 of the threads of a group and of a team: indices are recomputed by shifts */
    int left;                    /* remaining iterations of this tile; 0 when all rows are done */

    __device__ __forceinline__ uint32_t team() const { return is_uniform ? uniform_team : threadIdx.x >> team_shift; }
    __device__ __forceinline__ bool first() const { return (threadIdx.x & ((1u << team_shift) - 1)) == 0; }
    __device__ __forceinline__ void fetch() {
        if (first())
            fetched = shared->tiles > shared->teams ? count_up(&scratch->taken, shared->tiles)
                                                    : shared->tiles - shared->teams;
    }
    __device__ __forceinline__ uint32_t &next() const { return shared->next[phase][team()]; }
    __device__ __forceinline__ void begin(uint32_t tile) {
        uint32_t group_in_team = (threadIdx.x & ((1u << team_shift) - 1)) >> group_shift;
        of_group = (int64_t)(((uint64_t)tile * (uint32_t)shared->run << (team_shift - group_shift)) + group_in_team);
        left = tile < shared->tiles ? shared->run : 0;
        if (more())
            fetch();
    }

  public:
    /* A tile has kRun iterations where there are many rows, otherwise 1. */
    enum { kRunShift = 2, kRun = 1 << kRunShift };
    int phase; /* the parity of the tile: selects its buffer */

    __device__ __forceinline__ Queue(gpulossi_scratch *scratch, const Group &group, int64_t rows, int run)
        : scratch(scratch), is_uniform(group.is_uniform), group_shift(group.shift), phase(0) {
        __shared__ Shared of_block;
        team_shift = max(group_shift, (int)kLaneShift);
        uniform_team = is_uniform ? uniform_warp() >> (team_shift - kLaneShift) : 0;
        shared = &of_block;
        if (threadIdx.x == 0) {
            int shift = team_shift - group_shift + (run > 1 ? kRunShift : 0); /* log2 of the rows of a tile */
            shared->tiles = (uint32_t)((rows + ((int64_t)1 << shift) - 1) >> shift);
            shared->teams = gridDim.x * (blockDim.x >> team_shift);
            shared->run = run;
        }
        __syncthreads();
        begin(blockIdx.x * (blockDim.x >> team_shift) + team());
    }
    __device__ __forceinline__ bool more() const { return left > 0; }

    /* The row of this thread's group, which may lie past the last row. */
    __device__ __forceinline__ int64_t row() const { return of_group; }

    /* announce() publishes the team's next tile. After a barrier of the team, advance() goes to the next row. */
    __device__ __forceinline__ void announce() {
        if (first())
            next() = shared->teams + fetched;
    }
    __device__ __forceinline__ void advance() {
        of_group += (int64_t)1 << (team_shift - group_shift);
        if (--left > 0)
            return;
        uint32_t tile = next();
        phase ^= 1;
        begin(tile);
    }
};

/* Takes a number that blocks have added to, and resets it to zero. */
DEVICE int64_t take_number(uint64_t *number) {
    int64_t x = (int64_t)__ldcg((unsigned long long *)number);
    *number = 0;
    return x;
}

/* Sums x over the lanes of a warp in pieces of 27 bits, so that the sum of 32 pieces fits a word. Needs compute
 * capability 8.0. */
enum { kPieceBits = 27, kPieces = 3 };
DEVICE void sum_pieces(uint64_t x, uint32_t (&pieces)[kPieces]) {
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
        uint32_t piece = (uint32_t)(x >> (i * kPieceBits)) & ((1u << kPieceBits) - 1);
        asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(pieces[i]) : "r"(piece) : "memory");
    }
}
DEVICE uint64_t joined_pieces(const uint32_t (&pieces)[kPieces]) {
    return pieces[0] + ((uint64_t)pieces[1] << kPieceBits) + ((uint64_t)pieces[2] << (2 * kPieceBits));
}

/* An exact sum. A thread has a 128-bit integer in units of 2^-82, which takes every float from 2^-58 and every double
 * from 2^-29 to 2^20. Other numbers go to the digits in memory at once. Digit i counts units of 2^(32 i - 1074), so the
 * digits take every double. A digit is a 64-bit integer, which 2^31 additions of 32 bits do not overflow. */
struct Exact {
    uint64_t low;
    int64_t high;

    /* The unit 2^-82 is that of digit 31, and the integer has 4 digits. */
    enum { unit_digit = 31, kOwnDigits = 4 };

    DEVICE Exact zero() {
        Exact e = {0, 0};
        return e;
    }

    __device__ __forceinline__ void add_integer(uint64_t more_low, int64_t more_high) {
        low += more_low;
        high += more_high + (low < more_low ? 1 : 0);
    }

    /* Adds x, or returns false if it does not fit. */
    __device__ __forceinline__ bool add(double x) {
        double size = fabs(x);
        if (!(size < 0x1p20))
            return false;
        int64_t whole = __double2ll_rd(size * 0x1p18);
        double rest = fma(-(double)whole, 0x1p-18, size) * 0x1p82;
        uint64_t units = __double2ull_rz(rest);
        if ((double)units != rest)
            return false;
        if (x < 0) {
            whole = -whole - (units != 0);
            units = 0 - units;
        }
        add_integer(units, whole);
        return true;
    }

    /* The same for a float. A conversion gives 0, and floats from 2^-27 to 2^12, in units of 2^-50. */
    __device__ __forceinline__ bool add(float x) {
        const float units = x * 0x1p50f, size = fabsf(units);
        if (size < 0x1p62f && (size >= 0x1p23f || size == 0)) {
            const int64_t whole = __float2ll_rz(units);
            const uint32_t before = (uint32_t)(low >> 32), after = before + (uint32_t)whole;
            low = (uint64_t)after << 32 | (uint32_t)low;
            high += (whole >> 32) + (after < before);
            return true;
        }
        return add((double)x);
    }

    DEVICE void add_digit(int64_t *digits, int digit, int64_t units) {
        atomicAdd((unsigned long long *)&digits[digit], (unsigned long long)units);
    }

    DEVICE void add_digits(double x, int64_t *digits) {
        uint64_t bits = (uint64_t)__double_as_longlong(x) & 0x7fffffffffffffffull; /* fabs may keep the sign of a NaN */
        int exponent = (int)(bits >> 52);
        int64_t sign = x < 0 ? -1 : 1;
        if (exponent == 0x7ff) {
            add_digit(digits,
                      x != x  ? GPULOSSI_DIGIT_NAN
                      : x > 0 ? GPULOSSI_DIGIT_INFINITY
                              : GPULOSSI_DIGIT_MINUS_INFINITY,
                      1);
            return;
        }
        uint64_t mantissa = bits & 0x000fffffffffffffull;
        if (exponent == 0)
            exponent = 1;
        else
            mantissa |= 0x0010000000000000ull;
        int digit = (exponent - 1) / 32, shift = (exponent - 1) % 32;
        uint64_t low = mantissa << shift, high = shift == 0 ? 0 : mantissa >> (64 - shift);
        add_digit(digits, digit, sign * (int64_t)(low & 0xffffffffu));
        add_digit(digits, digit + 1, sign * (int64_t)(low >> 32));
        add_digit(digits, digit + 2, sign * (int64_t)high);
    }

    /* Reduces over the lanes of a warp. */
    __device__ __forceinline__ void reduce_warp() {
        if (is_sm_80()) {
            uint32_t of_low[kPieces], of_high[kPieces];
            sum_pieces(low, of_low);
            sum_pieces((uint64_t)high, of_high);
            low = of_low[0];
            high = (int64_t)joined_pieces(of_high);
            add_integer((uint64_t)of_low[1] << kPieceBits, 0);
            add_integer((uint64_t)of_low[2] << (2 * kPieceBits), of_low[2] >> (64 - 2 * kPieceBits));
            return;
        }
        /* This runs once a launch, so it is not unrolled. */
#pragma unroll 1
        for (int distance = kLanes / 2; distance > 0; distance /= 2) {
            uint64_t other_low = __shfl_xor_sync(0xffffffffu, (unsigned long long)low, distance);
            int64_t other_high = __shfl_xor_sync(0xffffffffu, (long long)high, distance);
            add_integer(other_low, other_high);
        }
    }

    /* Digit i of the integer, where digit 0 has the unit 2^-82. */
    __device__ __forceinline__ int64_t digit(int i) const {
        return i == 0   ? (int64_t)(low & 0xffffffffu)
               : i == 1 ? (int64_t)(low >> 32)
               : i == 2 ? high & 0xffffffff
               : i == 3 ? high >> 32
                        : 0;
    }

    /* The sum of all blocks as a double, rounded once. `own` has the digits of the integers' sum. The digits in memory
     * are `others`, if there are some. One thread calls. */
    DEVICE double rounded(const int64_t *own, const int64_t *others, bool has_others) {
        if (has_others) {
            bool has_infinity = others[GPULOSSI_DIGIT_INFINITY] != 0;
            bool has_minus_infinity = others[GPULOSSI_DIGIT_MINUS_INFINITY] != 0;
            if (others[GPULOSSI_DIGIT_NAN] != 0 || (has_infinity && has_minus_infinity))
                return CUDART_NAN;
            if (has_infinity || has_minus_infinity)
                return has_infinity ? CUDART_INF : -CUDART_INF;
        }
        /* Carries reduce the digits to words of 32 bits, of which the highest that is not zero and two more remain. The
         * last bit of these tells whether lower words are not zero. A negative number is carried again, negated. */
        const int begin = has_others ? 0 : unit_digit, end = has_others ? GPULOSSI_DIGIT_NAN : unit_digit + kOwnDigits;
        uint32_t high, middle, low, sign = 0;
        int at;
#pragma unroll 1
        for (;;) {
            int64_t carry = 0;
            uint32_t before = 0, earlier = 0;
            high = middle = low = 0;
            at = begin;
#pragma unroll 1
            for (int i = begin; i <= end; i++) { /* The last one is zero, and takes the carry. */
                int64_t digit = has_others ? others[i] : 0;
                if ((uint32_t)(i - unit_digit) < kOwnDigits)
                    digit += own[i - unit_digit];
                carry += sign ? -digit : digit;
                const uint32_t word = (uint32_t)carry;
                carry >>= 32;
                if (word != 0) {
                    high = word;
                    middle = before;
                    low = earlier;
                    at = i;
                }
                earlier = before | (earlier != 0 ? 1 : 0);
                before = word;
            }
            if (carry >= 0)
                break;
            sign = 0x80000000u;
        }
        /* The last of 64 bits is a sticky bit for the others, which suffices to round to 53 bits. */
        const int shift = __clz((int)high), power = 32 * (at - 1) - 1074 - shift;
        const uint64_t leading =
            (uint64_t)__funnelshift_l(middle, high, shift) << 32 | __funnelshift_l(low, middle, shift);
        const double size = (double)(leading | (__funnelshift_l(0, low, shift) != 0 ? 1 : 0));
        return size * power_of_two(power / 2, sign) * power_of_two(power - power / 2, 0);
    }

  private:
    DEVICE double power_of_two(int n, uint32_t sign) {
        return __hiloint2double((int)((uint32_t)(n + 1023) << 20 | sign), 0);
    }
};

/* Acquire and release at GPU scope. A thread that sees a later write of this one, and then calls this, sees the earlier
 * writes too. */
DEVICE void order() {
    if (is_sm_80())
        asm volatile("fence.acq_rel.gpu;" ::: "memory"); /* faster than a sequentially consistent fence */
    else
        __threadfence();
}

/* A launch has all its sums and counts. A loop over sums ends after the first sum if there is only one, because ptxas
 * does not replace a loop of one iteration with straight code. */
struct AllWanted {
    DEVICE bool sum(int) { return true; }
    DEVICE bool count(int) { return true; }
    DEVICE bool first_only() { return false; }
};

/* The sums and counts of a launch over all rows, which are the first ones of the scratch. `Wanted` says which of them
 * have anything to add up. */
template <int n_sums, int n_counts, class Wanted = AllWanted, bool kSharesWord = false> struct Total {
    typedef Wanted WantedOnes;
    enum { kSums = n_sums, kCounts = n_counts };
    Exact sums[n_sums];
    /* The last word has kMemoryBit if a number went to memory at once. With kSharesWord it is the last count, too, where
     * another word would take shared memory that a block more needs. */
    enum : uint32_t { kLast = n_counts - kSharesWord, kMemoryBit = 1u << 31 };
    uint32_t counts[kLast + 1];

    DEVICE Total zero() {
        Total t;
#pragma unroll
        for (int i = 0; i < n_sums; i++)
            t.sums[i] = Exact::zero();
#pragma unroll
        for (int i = 0; i <= (int)kLast; i++)
            t.counts[i] = 0;
        return t;
    }

    template <class R> __device__ __forceinline__ void add(int sum, R x, gpulossi_scratch *scratch) {
        if (sums[sum].add(x))
            return;
        counts[kLast] |= kMemoryBit;
        Exact::add_digits(x, scratch->digits[sum]);
    }
    __device__ __forceinline__ void count_bad(gpulossi_scratch *scratch, uint64_t bad) {
        atomicAdd((unsigned long long *)&scratch->bad_targets, (unsigned long long)bad);
        counts[kLast] |= kMemoryBit;
    }
    __device__ __forceinline__ void add(const Total &other) {
#pragma unroll
        for (int i = 0; i < n_sums; i++)
            if (Wanted::sum(i))
                sums[i].add_integer(other.sums[i].low, other.sums[i].high);
        const uint32_t memory_bit = (counts[kLast] | other.counts[kLast]) & kMemoryBit;
#pragma unroll
        for (int i = 0; i < n_counts; i++)
            if (Wanted::count(i))
                counts[i] += other.counts[i];
        counts[kLast] |= memory_bit;
    }

    /* At the end the blocks add up words, one a lane: the digits of each sum, the counts, and whether numbers went to
     * memory. Each block also adds 1 to the upper bits of each word, which count the blocks. One round trip to memory
     * thus identifies the last block and gives it the totals. There are less than 2^14 blocks. The numbers that they
     * add to a word are not negative, and their sum is less than 2^48. Adding 2^kBiasShift makes the highest digit of a
     * sum positive. */
    enum {
        kFirstCount = n_sums * Exact::kOwnDigits,
        kInMemory = kFirstCount + n_counts,
        kWords,
        kBlocksShift = 48,
        kBiasShift = 33
    };
    static_assert(kWords <= GPULOSSI_WORDS, "the scratch has room");

    /* Adds up all blocks. Returns true in the last block, whose lanes then have the words of all blocks: it writes the
     * results. The first warp of a block calls with the block's total. */
    __device__ __forceinline__ bool last(gpulossi_scratch *scratch, bool prepared, int64_t &word,
                                         bool &some_in_memory) {
        uint32_t lane = threadIdx.x % kLanes;
        __syncwarp();
        some_in_memory = __any_sync(0xffffffffu, (counts[kLast] & kMemoryBit) != 0);
        counts[kLast] &= ~kMemoryBit;
        reduce_warp();
        if (some_in_memory)
            order();
        word = lane == kInMemory ? (int64_t)some_in_memory : 0;
#pragma unroll
        for (int i = 0; i < (int)kFirstCount; i++)
            if (Wanted::sum(i / Exact::kOwnDigits))
                word = lane == i ? sums[i / Exact::kOwnDigits].digit(i % Exact::kOwnDigits) : word;
#pragma unroll
        for (int i = 0; i < n_counts; i++)
            if (Wanted::count(i))
                word = lane == kFirstCount + i ? (int64_t)counts[i] : word;
        bool counts_too = prepared && lane >= kFirstCount && lane < kInMemory;
        int64_t earlier = 0; /* counts of the prepare kernel */
        if (counts_too)
            earlier = (int64_t)scratch->counts[lane - kFirstCount];
        if (gridDim.x > 1) {
            bool highest = lane < kFirstCount && lane % Exact::kOwnDigits == Exact::kOwnDigits - 1;
            int64_t bias = highest ? (int64_t)1 << kBiasShift : 0;
            uint64_t all = 0;
            if (lane < kWords) {
                uint64_t mine = (uint64_t)(word + bias) + ((uint64_t)1 << kBlocksShift);
                all = atomicAdd((unsigned long long *)&scratch->words[lane], (unsigned long long)mine) + mine;
            }
            if (__shfl_sync(0xffffffffu, (uint32_t)(all >> kBlocksShift), 0) != gridDim.x)
                return false;
            if (lane < kWords) {
                /* The other blocks have at least issued their additions. */
                while (all >> kBlocksShift != gridDim.x)
                    all = *(volatile uint64_t *)&scratch->words[lane];
                scratch->words[lane] = 0;
            }
            word = (int64_t)(all & (((uint64_t)1 << kBlocksShift) - 1)) - bias * gridDim.x;
            some_in_memory = __shfl_sync(0xffffffffu, (uint32_t)word, kInMemory) != 0;
            if (some_in_memory)
                order();
        }
        if (counts_too)
            scratch->counts[lane - kFirstCount] = 0;
        word += earlier;
        return true;
    }

  private:
    __device__ __forceinline__ void reduce_warp() {
#pragma unroll
        for (int i = 0; i < n_sums; i++)
            if (Wanted::sum(i))
                sums[i].reduce_warp();
#pragma unroll
        for (int i = 0; i < n_counts; i++) {
            if (!Wanted::count(i))
                continue;
            counts[i] = is_sm_80() ? (uint32_t)sum_over(WholeWarp(), (int)counts[i])
                                   : SomeLanes{kLanes}.over<Sum>(counts[i]); /* not unrolled */
        }
    }
};

/* The divisor of the sum over rows, where rows do not decide it. */
template <class R> DEVICE double divisor_of(const gpulossi_rows &p) {
    return p.divisor_in ? (double)*(const R *)p.divisor_in : p.divisor;
}

/* a / b for results of the type of the first argument. The division of doubles is a function of its own with many
 * cases. An assembler takes a seventh of its time for it. */
DEVICE double quotient_for(double, double a, double b) {
    return a / b;
}
/* The steps are the same as in the main case of that function, so the result has the same bits. The factor brings any b
 * into the range of that case. A quotient that is not rounded correctly is 0 or infinite as a float. */
DEVICE double quotient_for(float, double a, double b) {
    const double size = fabs(b), factor = size < 0x1p-500 ? 0x1p600 : size > 0x1p500 ? 0x1p-600 : 1.0;
    double estimate;
    a *= factor;
    b *= factor;
    const double rounded = quick_quotient(a, b, estimate);
    /* If an operand is 0, infinite or NaN, the steps give 0 or NaN. */
    return fabs(rounded) > 0 ? rounded : a * estimate;
}

/* The factor of all gradients: the host's times the device's, over the divisor. `part` is the factor of the divisor
 * that rows decide, 1 with divisor_in. A mean over no rows, or over rows of no weight, has the gradient 0. */
template <class R> DEVICE double gradient_scale(const gpulossi_rows &p, double part) {
    const double divisor = p.divisor_in ? (double)*(const R *)p.divisor_in : part;
    double scale = p.grad_scale;
    if (p.grad_loss)
        scale *= *(const R *)p.grad_loss;
    return divisor != 0 ? quotient_for(R(), scale, divisor) : 0.0;
}

/* Writes a sum over all rows, or adds it to the number there, which is then rounded once. One thread calls. The load
 * passes by the L1 cache, which may have a line from while the kernel ahead was running. */
template <class R, class Sum> DEVICE void put_sum(const gpulossi_rows &p, uint64_t address, Sum sum) {
    if (p.flags & GPULOSSI_ADDS) {
        const R before = *(const volatile R *)address;
        sum += (Sum)before;
    }
    *(R *)address = (R)sum;
}

/* Computes the loss from the totals of all blocks. The first warp of the last block calls. */
template <class Loss>
DEVICE void conclude(const Loss &loss, gpulossi_scratch *scratch, bool some_in_memory, int64_t word) {
    typedef typename Loss::Totals Totals;
    __shared__ int64_t words[kLanes], digits[GPULOSSI_DIGITS];
    __shared__ double sums[Totals::kSums];
    const uint32_t lane = threadIdx.x % kLanes;
    words[lane] = word;
#pragma unroll 1
    for (int i = 0; i < Totals::kSums; i++) {
        if (some_in_memory)
#pragma unroll 1
            for (uint32_t k = lane; k < GPULOSSI_DIGITS; k += kLanes)
                digits[k] = take_number((uint64_t *)&scratch->digits[i][k]);
        __syncwarp();
        if (lane == 0)
            sums[i] = loss.wants(i) ? Exact::rounded(words + i * Exact::kOwnDigits, digits, some_in_memory) : 0.0;
        if (Totals::kSums == 1 || Totals::WantedOnes::first_only())
            break;
        __syncwarp();
    }
    if (lane == 0)
        loss.conclude(sums, words + Totals::kFirstCount);
}

/* The last step of a kernel. The first warp of a block calls with the block's total. */
template <class Loss>
DEVICE void end_of_warp(const Loss &loss, gpulossi_scratch *scratch, typename Loss::Totals total) {
    int64_t word;
    bool some_in_memory;
    let_next_begin();
    if (loss.concludes() && total.last(scratch, loss.prepared(), word, some_in_memory))
        conclude(loss, scratch, some_in_memory, word);
}
/* The last step of a kernel. Each thread has left its total in shared memory. */
template <int threads = GPULOSSI_BLOCK, class Loss>
DEVICE void end(const Loss &loss, gpulossi_scratch *scratch, const typename Loss::Totals *totals) {
    __syncthreads();
    if (threadIdx.x >= kLanes)
        return;
    typename Loss::Totals total = totals[threadIdx.x];
#pragma unroll 1
    for (uint32_t i = threadIdx.x + kLanes; i < threads; i += kLanes)
        total.add(totals[i]);
    end_of_warp(loss, scratch, total);
}

#endif
