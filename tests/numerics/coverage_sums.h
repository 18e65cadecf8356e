/* Tests of the coverage suite: the sum of the losses of the rows. */
#ifndef TESTS_NUMERICS_COVERAGE_SUMS_H
#define TESTS_NUMERICS_COVERAGE_SUMS_H

void exact_sums_of_cross_entropy(void **state);
void carries_of_sums(void **state);
void exact_sums_of_long_rows(void **state);
void exact_sums_of_kl_div(void **state);
void sums_of_distant_rows(void **state);

#endif
