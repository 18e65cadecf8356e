# The numerics tests: test_numerics runs on the driver it finds, the other two need no GPU.
BUILD ?= build
CFLAGS ?= -O2
NUMERICS := tests/numerics
NUMERICS_OUT := $(BUILD)/numerics
NUMERICS_LIBS := -lcmocka -lm -ldl -lpthread

NUMERICS_COMMON := dtypes compare bounds bounds_options bounds_pair bounds_divergence bounds_kl_div_sparse data \
	reference_cross_entropy reference_kl_div reference_kl_div_sparse
NUMERICS_GPU := gpuloss_impl harness shapes run_common run_cross_entropy run_cross_entropy_sharded check_cross_entropy \
	option_cases run_kl_div check_kl_div divergence_cases test_cross_entropy test_cross_entropy_corners \
	test_cross_entropy_options test_cross_entropy_layouts test_cross_entropy_option_corners test_cross_entropy_schedules \
	test_cross_entropy_properties test_cross_entropy_differences test_cross_entropy_shards test_cross_entropy_vocabularies test_kl_div \
	test_kl_div_options test_kl_div_layouts test_kl_div_option_corners test_kl_div_properties test_kl_div_differences test_kl_div_logits \
	run_kl_div_sparse check_kl_div_sparse sparse_cases test_kl_div_sparse test_kl_div_sparse_corners \
	test_kl_div_sparse_properties test_kl_div_sparse_divergences test_kl_div_sparse_schedules test_clusters test_row_cluster test_row_memory test_row_pipeline test_row_thread \
	test_block_rows test_packed test_row_options test_packed_pairs test_planes test_misuse coverage_sums \
	test_coverage test_coverage_options test_coverage_divergences test_coverage_tiles test_coverage_rows test_coverage_pairs test_coverage_sparse test_coverage_basic test_coverage_logits \
	numbered_cases test_coverage_numbers test_streams test_large test_same_bits test_chunks main
NUMERICS_CHECK := gpuloss_impl harness run_common run_cross_entropy check_cross_entropy option_cases run_kl_div \
	check_kl_div divergence_cases test_check test_check_kl_div test_harness
NUMERICS_COMMON_OBJECTS := $(NUMERICS_COMMON:%=$(NUMERICS_OUT)/%.o)

# They load thousands of variants.
include tests/unpack_once/unpack_once.mk
$(NUMERICS_OUT)/gpuloss_impl.o: $(ONCE)/images.o $(wildcard $(NUMERICS)/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-unused-function -DUNPACKED_ONCE -c -o $@ $(ONCE)/$(NUMERICS)/gpuloss_impl.c

$(BUILD)/test_numerics: $(NUMERICS_GPU:%=$(NUMERICS_OUT)/%.o) $(NUMERICS_COMMON_OBJECTS) $(ONCE)/images.o
$(BUILD)/test_reference: $(NUMERICS_OUT)/test_reference.o $(NUMERICS_OUT)/test_reference_sparse.o $(NUMERICS_OUT)/vectors.o \
	$(NUMERICS_COMMON_OBJECTS)
$(BUILD)/test_harness: $(NUMERICS_CHECK:%=$(NUMERICS_OUT)/%.o) $(NUMERICS_COMMON_OBJECTS) $(ONCE)/images.o

$(BUILD)/test_numerics $(BUILD)/test_reference $(BUILD)/test_harness:
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(NUMERICS_LIBS)

# The same with sanitizers, which see a test or the library leave its arrays.
NUMERICS_SANITIZE := -g -fsanitize=address,undefined -fno-sanitize-recover=all
NUMERICS_SANITIZED := $(NUMERICS_OUT)/sanitized
$(BUILD)/test_numerics_sanitized: $(NUMERICS_GPU:%=$(NUMERICS_SANITIZED)/%.o) $(NUMERICS_COMMON:%=$(NUMERICS_SANITIZED)/%.o) \
		$(ONCE)/images.o
	$(CC) $(CFLAGS) $(NUMERICS_SANITIZE) $(LDFLAGS) -o $@ $^ $(NUMERICS_LIBS)
$(NUMERICS_SANITIZED)/gpuloss_impl.o: $(ONCE)/images.o $(wildcard $(NUMERICS)/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(NUMERICS_SANITIZE) -Wno-unused-function -DUNPACKED_ONCE -c -o $@ $(ONCE)/$(NUMERICS)/gpuloss_impl.c
$(NUMERICS_SANITIZED)/%.o: $(NUMERICS)/%.c $(wildcard $(NUMERICS)/*.h) gpuloss.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(NUMERICS_SANITIZE) -c -o $@ $<

$(NUMERICS_OUT)/%.o: $(NUMERICS)/%.c $(wildcard $(NUMERICS)/*.h) gpuloss.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<
$(NUMERICS_OUT)/test_misuse.o: $(wildcard $(NUMERICS)/*.def)
