/* The groups of tests of the references and of the checks themselves, which need no GPU; each returns how many of its
 * tests failed. */
#ifndef TESTS_NUMERICS_CHECKS_H
#define TESTS_NUMERICS_CHECKS_H

int run_check_tests(void);
int run_kl_div_check_tests(void);
int run_sparse_reference_tests(const char *vectors);

#endif
