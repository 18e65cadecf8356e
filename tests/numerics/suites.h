/* The groups of tests of the numerics program; each returns how many of its tests failed. */
#ifndef TESTS_NUMERICS_SUITES_H
#define TESTS_NUMERICS_SUITES_H

int run_cross_entropy_tests(void);
int run_cross_entropy_corner_tests(void);
int run_cross_entropy_option_tests(void);
int run_cross_entropy_layout_tests(void);
int run_cross_entropy_option_corner_tests(void);
int run_cross_entropy_schedule_tests(void);
int run_cross_entropy_property_tests(void);
int run_cross_entropy_difference_tests(void);
int run_cross_entropy_shard_tests(void);
int run_cross_entropy_vocabulary_tests(void);
int run_kl_div_tests(void);
int run_kl_div_option_tests(void);
int run_kl_div_layout_tests(void);
int run_kl_div_option_corner_tests(void);
int run_kl_div_property_tests(void);
int run_kl_div_difference_tests(void);
int run_kl_div_logits_tests(void);
int run_kl_div_sparse_tests(void);
int run_kl_div_sparse_corner_tests(void);
int run_kl_div_sparse_property_tests(void);
int run_kl_div_sparse_schedule_tests(void);
int run_kl_div_sparse_divergence_tests(void);
int run_cluster_tests(void);
int run_row_cluster_tests(void);
int run_row_pipeline_tests(void);
int run_row_thread_tests(void);
int run_row_memory_tests(void);
int run_block_row_tests(void);
int run_packed_tests(void);
int run_row_option_tests(void);
int run_packed_pairs_tests(void);
int run_plane_tests(void);
int run_misuse_tests(void);
int run_coverage_tests(void);
int run_coverage_option_tests(void);
int run_coverage_divergence_tests(void);
int run_stream_tests(void);
int run_large_tests(void);
int run_same_bits_tests(void);
int run_chunk_tests(void);
int run_coverage_tile_tests(void);
int run_coverage_row_tests(void);

#endif
