/* Predicates of a call of a divergence, from its feature words. */
#ifndef GPULOSSI_DIVERGENCE_CALL_CUH
#define GPULOSSI_DIVERGENCE_CALL_CUH

#include "divergence_rows.cuh"

template <class E> struct DivergenceCall : DivergenceRows<E, gpulossi_kl_div> {
    typedef DivergenceRows<E, gpulossi_kl_div> Base;
    typedef typename Base::N N;
    typedef typename Base::Bits Bits;
    enum { kInput, kTarget };

    __device__ __forceinline__ explicit DivergenceCall(const gpulossi_kl_div &p) : Base(p) {}

    DEVICE bool is_logits(int side) {
        return has(side == kInput ? GPULOSSI_KL_INPUT_LOGITS : GPULOSSI_KL_TARGET_LOGITS);
    }
    DEVICE bool is_logarithm(int side) {
        return has(side == kInput ? GPULOSSI_KL_INPUT_LOGARITHMS : GPULOSSI_KL_TARGET_LOGARITHMS);
    }
    DEVICE bool is_probability(int side) { return !is_logits(side) && !is_logarithm(side); }
    /* Whether the derivative with respect to a probability is a gradient. */
    DEVICE bool wants_of_probability(int side) {
        return is_probability(side) && has(side == kInput ? GPULOSSI_KL_GRADIENT : GPULOSSI_KL_TARGET_GRADIENT);
    }
    DEVICE bool has_logits() { return is_logits(kInput) || is_logits(kTarget); }
    DEVICE bool has_two_logits() { return is_logits(kInput) && is_logits(kTarget); }
    DEVICE bool is_kl() { return !has(GPULOSSI_KL_JENSEN_SHANNON | GPULOSSI_KL_TOTAL_VARIATION); }
    /* The side that weighs the terms of a KL. */
    DEVICE int weighing() { return has(GPULOSSI_KL_REVERSE) ? kInput : kTarget; }
    /* The number of the side that weighs, and of the other one. An array that is indexed by a feature would be in local
     * memory. */
    DEVICE N own(const N (&x)[2]) { return weighing() == kInput ? x[kInput] : x[kTarget]; }
    DEVICE N other(const N (&x)[2]) { return weighing() == kInput ? x[kTarget] : x[kInput]; }
    /* Whether the pairs need the logarithms of their ratios. A difference of probabilities has enough digits for
     * Jensen-Shannon of 16 bits. */
    DEVICE bool has_ratios() {
        return is_kl() || (has(GPULOSSI_KL_JENSEN_SHANNON) && sizeof(Bits) != 2 && !is_probability(kInput) &&
                           !is_probability(kTarget));
    }
    DEVICE bool is_float_shannon() { return sizeof(N) == 4 && has(GPULOSSI_KL_JENSEN_SHANNON); }
    /* Whether gradients of a side may need the logarithm of a share of the mixture that is below 2^-124. That of a float
     * Mixture is too large then. */
    DEVICE bool may_be_small(int side) { return is_float_shannon() && wants_of_probability(side); }
    enum { kSmall = -86 }; /* the logarithm of 2^-124, rounded up */
    /* Whether the results need these logarithms. */
    DEVICE bool writes_ratios() { return !in_one_sweep() || has(GPULOSSI_KL_OWN_GRADIENT | GPULOSSI_KL_ELEMENTS); }
    /* Whether the two sides of a row are subtracted from each other. */
    DEVICE bool has_distance() { return is_direct() || (has_two_logits() && has_ratios()); }
    /* Whether the KL of two arrays of logits is summed along with the softmax, or that of one. */
    DEVICE bool in_one_sweep() { return has(GPULOSSI_KL_ONE_SWEEP); }
    DEVICE bool is_direct() { return has(GPULOSSI_KL_DIRECT); }
    /* Whether close rows have sums of their own. */
    DEVICE bool has_close_rows() { return in_one_sweep() && may_have_values(); }
    /* Whether short_pairs() computes the terms. */
    DEVICE bool has_short_pairs() {
        const bool is_any = has(GPULOSSI_KL_TOTAL_VARIATION) || (has(GPULOSSI_KL_HALF_BETA) && sizeof(Bits) == 4);
        return is_any && sizeof(N) == 4 && has_two_logits();
    }
    /* Whether a call has short formulas, for the rows of which exponentials are fast. */
    DEVICE bool has_short_formulas() {
        return (in_one_sweep() || has_short_pairs() || (is_direct() && is_logits(kInput))) &&
               !has(GPULOSSI_KL_ELEMENTS);
    }
    DEVICE bool logits_weigh() { return is_logits(weighing()); }
    /* The side of a direct KL that is no logits. */
    DEVICE int side_of_other() { return is_logits(kInput) ? kTarget : kInput; }
    /* The number of the side of logits of a direct KL, and of the other one. */
    DEVICE N of_logits(N of_input, N of_target) { return is_logits(kInput) ? of_input : of_target; }
    DEVICE N of_other(N of_input, N of_target) { return is_logits(kInput) ? of_target : of_input; }
    /* Whether the elements of the side that is no logits have 16 bits. */
    DEVICE bool is_other_short() {
        return sizeof(Bits) == 2 &&
               (side_of_other() == kInput || !has_format(GPULOSSI_FORMAT_F32 << GPULOSSI_FORMAT_TARGET_SHIFT));
    }
    /* The unit of v in a direct KL. Short probabilities take logarithms to base 2. */
    DEVICE N log_unit() { return is_other_short() && is_probability(side_of_other()) ? N(0.693147181) : N(1); }
    /* The probability of an element of the side that is no logits. */
    DEVICE N weight_of_other(N other) {
        return is_probability(side_of_other()) ? other
               : is_other_short()              ? (N)short_exponential((float)other)
                                               : exponential(other);
    }
    DEVICE bool has_divergence() { return has(GPULOSSI_KL_LOSS | GPULOSSI_KL_ROW_OUTPUTS | GPULOSSI_KL_OWN_GRADIENT); }
    /* Whether the gradient of a side needs a sum of the sweep for the sums. */
    DEVICE bool has_sum(int side) { return has(side == kInput ? GPULOSSI_KL_INPUT_SUM : GPULOSSI_KL_TARGET_SUM); }
    DEVICE bool writes() { return has(GPULOSSI_KL_GRADIENT | GPULOSSI_KL_TARGET_GRADIENT | GPULOSSI_KL_ELEMENTS); }
    DEVICE bool reduces() { return has_logits(); }
    /* Whether rows may take a sweep for the sums, after that for the softmax, and whether all do. */
    DEVICE bool may_have_values() {
        return !is_direct() && (has_divergence() || has(GPULOSSI_KL_INPUT_SUM | GPULOSSI_KL_TARGET_SUM));
    }
    DEVICE bool has_values_of_all() { return has(GPULOSSI_KL_VALUES); }
    /* Whether f is summed along with the gradients, which do not need the sum. */
    DEVICE bool sums_while_writing() { return has(GPULOSSI_KL_WRITTEN_VALUES); }
};

#endif
