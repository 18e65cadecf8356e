/* What the blocks of a launch do together: share out the work, and sum over all of it.
 *
 * Work is taken from a queue, tile by tile in rising order, so that the blocks always work close together in memory;
 * fixed shares drift apart, and DRAM then loses about a twentieth of its speed when it is written. Which block gets
 * which tile is therefore up to chance, and a floating-point sum over blocks would be too. So the sum over tiles is
 * exact: each tile's part (computed in a fixed order) is added as an integer, and only the total is rounded, once. */
#ifndef GPULOSSI_GRID_CUH
#define GPULOSSI_GRID_CUH

#include "pdl.cuh"
#include "reduce.cuh"

/* Counts up and wraps to zero after `times` calls, so that it is zero again when a launch is over. (Adding a constant
 * would be taken for something that a whole warp does, and be waited for at once.) */
DEVICE uint32_t count_up(uint32_t *counter, uint32_t times) {
    uint32_t before;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter)), "r"(times - 1)
                 : "memory");
    return before;
}

/* The rows of a launch, shared out among teams: a team is a warp, whose groups take a row each at a time, or a group
 * that is larger than a warp. A team takes `run` turns in a row before it asks for more. */
class Queue {
    gpulossi_scratch *scratch;
    struct Shared {
        uint32_t tiles;                            /* that can be taken: `run` turns of a team each */
        uint32_t teams;                            /* in the grid */
        int run;                                   /* turns that a tile has */
        uint32_t next[2][GPULOSSI_BLOCK / kLanes]; /* by team, used in turn */
    } * shared;                                    /* what the block shares, and what is seldom looked at */
    int64_t of_group;                              /* the row of this thread's group */
    uint32_t fetched; /* less the teams, the tile after this one, in the first thread: what uses it waits for it */
    int group_shift, team_shift; /* log2 of the threads; worked out anew where they are needed, so they are shifts */
    int left;                    /* turns that are left of this tile: none when all is done */

    __device__ __forceinline__ bool first() const { return (threadIdx.x & ((1u << team_shift) - 1)) == 0; }
    __device__ __forceinline__ void fetch() {
        if (first())
            fetched = shared->tiles > shared->teams ? count_up(&scratch->taken, shared->tiles)
                                                    : shared->tiles - shared->teams;
    }
    __device__ __forceinline__ uint32_t &next() const { return shared->next[turn][threadIdx.x >> team_shift]; }
    __device__ __forceinline__ void begin(uint32_t tile) {
        uint32_t in_turn = (threadIdx.x & ((1u << team_shift) - 1)) >> group_shift;
        of_group = (int64_t)(((uint64_t)tile * (uint32_t)shared->run << (team_shift - group_shift)) + in_turn);
        left = tile < shared->tiles ? shared->run : 0;
        if (more())
            fetch();
    }

  public:
    enum { kRunShift = 2, kRun = 1 << kRunShift }; /* turns that a tile has where rows are many, otherwise 1 */
    int turn;                                      /* changes from tile to tile */

    __device__ __forceinline__ Queue(gpulossi_scratch *scratch, const Group &group, int64_t rows, int run)
        : scratch(scratch), group_shift(group.shift), turn(0) {
        __shared__ Shared of_block;
        team_shift = max(group_shift, (int)kLaneShift);
        shared = &of_block;
        if (threadIdx.x == 0) {
            int shift = team_shift - group_shift + (run > 1 ? kRunShift : 0); /* log2 of the rows of a tile */
            shared->tiles = (uint32_t)((rows + ((int64_t)1 << shift) - 1) >> shift);
            shared->teams = gridDim.x * (blockDim.x >> team_shift);
            shared->run = run;
        }
        __syncthreads();
        begin(blockIdx.x * (blockDim.x >> team_shift) + (threadIdx.x >> team_shift));
    }
    __device__ __forceinline__ bool more() const { return left > 0; }

    /* The row of this thread's group; it may lie past the last one. */
    __device__ __forceinline__ int64_t row() const { return of_group; }

    /* announce() tells the team what comes next; after a barrier of the team, advance() goes there. */
    __device__ __forceinline__ void announce() {
        if (first())
            next() = shared->teams + fetched;
    }
    __device__ __forceinline__ void advance() {
        of_group += (int64_t)1 << (team_shift - group_shift);
        if (--left > 0)
            return;
        uint32_t tile = next();
        turn ^= 1;
        begin(tile);
    }
};

/* A number that blocks have added to, and zero in its place. */
DEVICE int64_t take_number(uint64_t *number) {
    int64_t x = (int64_t)__ldcg((unsigned long long *)number);
    *number = 0;
    return x;
}

/* Sums over the lanes of a warp in pieces, which leave room for 32 of their like in a word; for compute capability 8.0 and
 * newer. */
enum { kPieceBits = 27, kPieces = 3 };
DEVICE void sum_pieces(uint64_t x, uint32_t (&pieces)[kPieces]) {
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
        uint32_t piece = (uint32_t)(x >> (i * kPieceBits)) & ((1u << kPieceBits) - 1);
        asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(pieces[i]) : "r"(piece) : "memory");
    }
}
DEVICE uint64_t together(const uint32_t (&pieces)[kPieces]) {
    return pieces[0] + ((uint64_t)pieces[1] << kPieceBits) + ((uint64_t)pieces[2] << (2 * kPieceBits));
}

/* An exact sum. A thread holds a 128-bit integer in units of 2^-82, which takes every float from 2^-58 and every double
 * from 2^-29 to 2^20; what does not fit goes to the digits in memory at once. Digit i counts units of 2^(32 i - 1074),
 * so the digits take every double; each is a 64-bit integer that many additions of 32 bits do not overflow. */
struct Exact {
    uint64_t low;
    int64_t high;

    enum { unit_digit = 31 /* 2^-82 */, kOwnDigits = 4 };

    DEVICE Exact zero() {
        Exact e = {0, 0};
        return e;
    }

    __device__ __forceinline__ void add_integer(uint64_t more_low, int64_t more_high) {
        low += more_low;
        high += more_high + (low < more_low ? 1 : 0);
    }

    /* Whether x fits. */
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

    /* Over the lanes of a warp. */
    __device__ __forceinline__ void reduce_warp() {
        if (is_sm_80()) {
            uint32_t of_low[kPieces], of_high[kPieces];
            sum_pieces(low, of_low);
            sum_pieces((uint64_t)high, of_high);
            low = of_low[0];
            high = (int64_t)together(of_high);
            add_integer((uint64_t)of_low[1] << kPieceBits, 0);
            add_integer((uint64_t)of_low[2] << (2 * kPieceBits), of_low[2] >> (64 - 2 * kPieceBits));
            return;
        }
        /* Once a launch, so it stays a loop. */
#pragma unroll 1
        for (int distance = kLanes / 2; distance > 0; distance /= 2) {
            uint64_t other_low = __shfl_xor_sync(0xffffffffu, (unsigned long long)low, distance);
            int64_t other_high = __shfl_xor_sync(0xffffffffu, (long long)high, distance);
            add_integer(other_low, other_high);
        }
    }

    /* How many units of a digit it has, from that of its own unit on. */
    __device__ __forceinline__ int64_t digit(int i) const {
        return i == 0   ? (int64_t)(low & 0xffffffffu)
               : i == 1 ? (int64_t)(low >> 32)
               : i == 2 ? high & 0xffffffff
               : i == 3 ? high >> 32
                        : 0;
    }

    /* What all blocks have summed as a double, rounded once, in lane 0. Digit i from that of the unit on is with lane i after
     * `first`; where some of the sum went to memory its digits are there too, and zero afterwards. A warp calls. */
    DEVICE double take(int64_t *from, bool some_in_memory, int64_t word, int first) {
        __shared__ int64_t digits[GPULOSSI_DIGITS];
        uint32_t lane = threadIdx.x % kLanes;
        int lowest = GPULOSSI_DIGIT_NAN, highest = -1;
#pragma unroll
        for (int at = 0; at < GPULOSSI_DIGITS; at += kLanes) {
            int own = at + (int)lane - unit_digit;
            int64_t digit = __shfl_sync(0xffffffffu, (long long)word, first + own);
            if (own < 0 || own >= kOwnDigits)
                digit = 0;
            if (some_in_memory && at + lane < GPULOSSI_DIGITS)
                digit += take_number((uint64_t *)&from[at + lane]);
            if (at + lane < GPULOSSI_DIGITS)
                digits[at + lane] = digit;
            uint32_t used = __ballot_sync(0xffffffffu, digit != 0 && at + lane < GPULOSSI_DIGIT_NAN);
            if (used != 0) {
                lowest = min(lowest, at + __ffs((int)used) - 1);
                highest = at + 31 - __clz((int)used);
            }
        }
        __syncwarp();
        if (digits[GPULOSSI_DIGIT_NAN] != 0 ||
            (digits[GPULOSSI_DIGIT_INFINITY] != 0 && digits[GPULOSSI_DIGIT_MINUS_INFINITY] != 0))
            return CUDART_NAN;
        if (digits[GPULOSSI_DIGIT_INFINITY] != 0)
            return CUDART_INF;
        if (digits[GPULOSSI_DIGIT_MINUS_INFINITY] != 0)
            return -CUDART_INF;
        return lane == 0 ? value(digits, lowest, highest) : 0.0;
    }

  private:
    DEVICE double value(const int64_t *digits, int lowest, int highest) {
        __shared__ uint32_t carried[GPULOSSI_DIGITS + 2];
        int end, sign = 1;
        int64_t carry;
        /* As digits of 32 bits; once more with the other sign when the number is negative. */
#pragma unroll 1
        for (;;) {
            carry = 0;
#pragma unroll 1
            for (end = lowest; end <= highest || (carry != 0 && carry != -1); end++) {
                carry += end <= highest ? sign * digits[end] : 0;
                carried[end] = (uint32_t)carry;
                carry >>= 32;
            }
            if (carry >= 0)
                break;
            sign = -1;
        }
        /* The highest digit that has not cancelled, and two more. What is below only matters by not being zero. */
        uint32_t top[3] = {0, 0, 0};
        bool below = false;
        int at = end - 1;
#pragma unroll 1
        for (; at >= lowest && carried[at] == 0; at--) {
        }
        if (at < lowest)
            return 0.0;
#pragma unroll
        for (int i = 0; i < 3; i++)
            top[i] = at - i >= lowest ? carried[at - i] : 0;
#pragma unroll 1
        for (int i = lowest; i < at - 2; i++)
            below = below || carried[i] != 0;
        int shift = __clz((int)top[0]), power = 32 * (at - 1) - 1074 - shift;
        uint64_t leading = ((uint64_t)top[0] << 32 | top[1]) << shift | (uint64_t)top[2] << shift >> 32;
        below = below || (top[2] << shift) != 0;
        /* Only the last of the 64 bits says that something is below, and that is all that rounding to 53 bits needs. */
        double rounded = (double)(leading | (below ? 1 : 0));
        return sign * rounded * power_of_two(power / 2) * power_of_two(power - power / 2);
    }

    DEVICE double power_of_two(int n) {
        return __longlong_as_double((long long)(n + 1023) << 52);
    }
};

/* What a thread has written is there for whoever sees what it writes after this, if they call it too before they read. */
DEVICE void order() {
    if (is_sm_80())
        asm volatile("fence.acq_rel.gpu;" ::: "memory"); /* sooner done than that of all orders */
    else
        __threadfence();
}

/* Of the sums and counts that a launch may have, all. */
struct AllWanted {
    DEVICE bool sum(int) { return true; }
    DEVICE bool count(int) { return true; }
};

/* What a launch sums and counts over all rows: the first of the scratch's sums and counts, of which `Wanted` says whether
 * there is anything to add up. */
template <int n_sums, int n_counts, class Wanted = AllWanted, class Count = int64_t> struct Total {
    enum { kSums = n_sums, kCounts = n_counts };
    Exact sums[n_sums];
    Count counts[n_counts];
    Count far; /* whether something went to memory at once, as a number, which leaves no bytes of a total undefined */

    DEVICE Total zero() {
        Total t;
#pragma unroll
        for (int i = 0; i < n_sums; i++)
            t.sums[i] = Exact::zero();
#pragma unroll
        for (int i = 0; i < n_counts; i++)
            t.counts[i] = 0;
        t.far = 0;
        return t;
    }

    __device__ __forceinline__ void add(int sum, double x, gpulossi_scratch *scratch) {
        if (sums[sum].add(x))
            return;
        far = 1;
        Exact::add_digits(x, scratch->digits[sum]);
    }
    __device__ __forceinline__ void count_bad(gpulossi_scratch *scratch, uint64_t bad) {
        atomicAdd((unsigned long long *)&scratch->bad_targets, (unsigned long long)bad);
        far = 1;
    }
    __device__ __forceinline__ void add(const Total &other) {
#pragma unroll
        for (int i = 0; i < n_sums; i++)
            if (Wanted::sum(i))
                sums[i].add_integer(other.sums[i].low, other.sums[i].high);
#pragma unroll
        for (int i = 0; i < n_counts; i++)
            if (Wanted::count(i))
                counts[i] += other.counts[i];
        far |= other.far;
    }

    /* What blocks tell each other at the end, a word a lane: the digits of each sum, the counts, and who has been to memory.
     * Each block adds its words to those of the others, and in their upper bits that it was there, so that one trip to
     * memory tells who is the last, and tells that one everything. There are less than 2^14 blocks; what they add to a word
     * is not negative, and less than 2^48. */
    enum {
        kFirstCount = n_sums * Exact::kOwnDigits,
        kFar = kFirstCount + n_counts,
        kWords,
        kBlocksShift = 48,
        kAbove = 33 /* log2 of what makes a highest digit positive */
    };
    static_assert(kWords <= GPULOSSI_WORDS, "the scratch has room");

    /* Adds up all blocks. True in the block that is the last, which is to take the results: its lanes have the words of all
     * then. The first warp of a block, which has it all, calls. */
    __device__ __forceinline__ bool last(gpulossi_scratch *scratch, bool prepared, int64_t &word) {
        uint32_t lane = threadIdx.x % kLanes;
        __syncwarp();
        reduce_warp();
        if (far)
            order();
        word = lane == kFar ? (int64_t)far : 0;
#pragma unroll
        for (int i = 0; i < (int)kFirstCount; i++)
            word = lane == i ? sums[i / Exact::kOwnDigits].digit(i % Exact::kOwnDigits) : word;
#pragma unroll
        for (int i = 0; i < n_counts; i++)
            word = lane == kFirstCount + i ? (int64_t)counts[i] : word;
        bool counts_too = prepared && lane >= kFirstCount && lane < kFar;
        int64_t earlier = 0; /* what the kernel before has counted */
        if (counts_too)
            earlier = (int64_t)scratch->counts[lane - kFirstCount];
        if (gridDim.x > 1) {
            bool highest = lane < kFirstCount && lane % Exact::kOwnDigits == Exact::kOwnDigits - 1;
            int64_t above = highest ? (int64_t)1 << kAbove : 0;
            uint64_t all = 0;
            if (lane < kWords) {
                uint64_t mine = (uint64_t)(word + above) + ((uint64_t)1 << kBlocksShift);
                all = atomicAdd((unsigned long long *)&scratch->words[lane], (unsigned long long)mine) + mine;
            }
            if (__shfl_sync(0xffffffffu, (uint32_t)(all >> kBlocksShift), 0) != gridDim.x)
                return false;
            if (lane < kWords) {
                /* The others' words are under way at least. */
                while (all >> kBlocksShift != gridDim.x)
                    all = *(volatile uint64_t *)&scratch->words[lane];
                scratch->words[lane] = 0;
            }
            word = (int64_t)(all & (((uint64_t)1 << kBlocksShift) - 1)) - above * gridDim.x;
            far = __shfl_sync(0xffffffffu, (uint32_t)word, kFar) != 0;
            if (far)
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
            if (is_sm_80()) {
                uint32_t pieces[kPieces];
                sum_pieces((uint64_t)counts[i], pieces);
                counts[i] = (Count)together(pieces);
            } else {
#pragma unroll 1
                for (int distance = kLanes / 2; distance > 0; distance /= 2)
                    counts[i] += (Count)__shfl_xor_sync(0xffffffffu, (long long)counts[i], distance);
            }
        }
        far = __any_sync(0xffffffffu, far != 0);
    }
};

/* What the sum over rows is divided by, where no row decides it. */
template <class R> DEVICE double divisor_of(const gpulossi_rows &p) {
    return p.divisor_in ? (double)*(const R *)p.divisor_in : p.divisor;
}

/* The factor of all gradients: the host's and the device's, over the divisor, of which `part` is what rows decide. */
template <class R> DEVICE double gradient_scale(const gpulossi_rows &p, double part) {
    double scale = p.grad_scale;
    if (p.grad_loss)
        scale *= *(const R *)p.grad_loss;
    if (p.divisor_in)
        scale /= (double)*(const R *)p.divisor_in;
    return scale / part;
}

/* What all blocks have summed becomes the loss; the first warp of the last block calls. */
template <class Loss>
DEVICE void conclude(const Loss &loss, gpulossi_scratch *scratch, bool some_in_memory, int64_t word) {
    typedef typename Loss::Totals Totals;
    __shared__ double sums[Totals::kSums];
    int64_t counts[Totals::kCounts];
#pragma unroll 1
    for (int i = 0; i < Totals::kSums; i++) {
        double sum = 0;
        __syncwarp();
        if (loss.wants(i))
            sum = Exact::take(scratch->digits[i], some_in_memory, word, i * Exact::kOwnDigits);
        if (threadIdx.x == 0)
            sums[i] = sum;
    }
#pragma unroll
    for (int i = 0; i < Totals::kCounts; i++)
        counts[i] = __shfl_sync(0xffffffffu, (long long)word, Totals::kFirstCount + i);
    if (threadIdx.x == 0)
        loss.conclude(sums, counts);
}

/* The last step of every kernel, where the first warp of a block has it all, and calls ... */
template <class Loss>
DEVICE void end_of_warp(const Loss &loss, gpulossi_scratch *scratch, typename Loss::Totals total) {
    int64_t word;
    let_next_begin();
    if (loss.concludes() && total.last(scratch, loss.prepared(), word))
        conclude(loss, scratch, total.far, word);
}
/* ... and where each thread has left its own in shared memory. */
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
