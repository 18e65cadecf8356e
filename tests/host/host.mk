# The host tests: the library on a stand-in driver, no GPU. run_host builds and runs them, run_host_sanitized those that
# take longest, under AddressSanitizer and UBSan. Most of their time would go into unpacking the same texts again: they
# unpack each once. test_block unpacks and specialises every text with the sanitizers.
BUILD ?= build
HOST := tests/host
HOST_FLAGS = -std=gnu11 -O1 -Wall -Wextra -pedantic -Wno-unused-function $(CFLAGS)
HOST_LIBS := -lcmocka -ldl -lpthread
HOST_HEADERS := $(HOST)/fake_driver.h $(HOST)/fake_private.h $(HOST)/check.h $(HOST)/choice.h $(HOST)/calls.h gen/variants.h gen/facts.h gpuloss.h
HOST_COMMON := $(HOST)/fake_driver.c $(HOST)/fake_kernels.c $(HOST)/check.c $(HOST)/gpuloss_impl.c
HOST_SOURCES := $(HOST_COMMON) $(HOST)/main.c $(HOST)/calls.c $(HOST)/test_lifecycle.c $(HOST)/test_failures.c \
	$(HOST)/test_environment.c $(HOST)/test_loading.c $(HOST)/test_preload.c $(HOST)/test_scratch.c $(HOST)/test_launch.c \
	$(HOST)/test_choice.c $(HOST)/test_few_options.c $(HOST)/test_tiles.c $(HOST)/test_divisors.c $(HOST)/test_combine.c \
	$(HOST)/test_refusals.c $(HOST)/test_parameters.c $(HOST)/test_kl_choice.c $(HOST)/test_kl_parameters.c \
	$(HOST)/test_kl_divisors.c $(HOST)/test_chunks.c $(HOST)/test_kl_refusals.c $(HOST)/test_sparse.c \
	$(HOST)/test_unpack.c $(HOST)/test_specialise.c $(HOST)/test_clusters.c $(HOST)/test_pipeline.c $(HOST)/test_pairs.c \
	$(HOST)/test_variants.c $(HOST)/test_facts.c $(HOST)/test_row_cluster.c $(HOST)/test_overlaps.c $(HOST)/test_threads.c
HOST_LEFT_OUT := $(HOST_COMMON) $(HOST)/test_left_out.c
HOST_TYPES := $(HOST_COMMON) $(HOST)/test_left_out_types.c
HOST_THREADS := $(HOST_COMMON) $(HOST)/test_threads.c $(HOST)/test_threads_main.c

HOST_MARK := $(HOST)/test_mark.c $(HOST)/test_mark_random.c $(HOST)/test_lower.c gen/lower.c gen/mark.c gen/parse.c \
	gen/shared.c gen/value.c gen/condition.c gen/facts.c gen/renumber.c gen/text.c
HOST_SANITIZE := -g -fsanitize=address,undefined -fno-sanitize-recover=all

HOST_PROGRAMS := $(BUILD)/test_host $(BUILD)/test_threads $(BUILD)/test_left_out \
	$(BUILD)/test_no_f16 $(BUILD)/test_no_bf16 $(BUILD)/test_no_16_bits \
	$(BUILD)/test_mark $(BUILD)/test_block

include tests/unpack_once/unpack_once.mk
HOST_ONCE := -DUNPACKED_ONCE $(ONCE)/$(HOST)/gpuloss_impl.c $(ONCE)/images.o

$(BUILD)/test_host: $(HOST_SOURCES) $(HOST_HEADERS) $(ONCE)/images.o
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) $(LDFLAGS) -o $@ $(filter-out %/gpuloss_impl.c,$(HOST_SOURCES)) $(HOST_ONCE) $(HOST_LIBS)

$(BUILD)/test_host_sanitized: $(HOST_SOURCES) $(HOST_HEADERS) $(ONCE)/images.o
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) $(HOST_SANITIZE) $(LDFLAGS) -o $@ $(filter-out %/gpuloss_impl.c,$(HOST_SOURCES)) $(HOST_ONCE) \
		$(HOST_LIBS)

$(BUILD)/test_threads: $(HOST_THREADS) $(HOST_HEADERS) $(ONCE)/images.o
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) -g -fsanitize=thread $(LDFLAGS) -o $@ $(filter-out %/gpuloss_impl.c,$(HOST_THREADS)) $(HOST_ONCE) \
		$(HOST_LIBS)

$(BUILD)/test_left_out: $(HOST_LEFT_OUT) $(HOST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) -DGPULOSS_NO_CROSS_ENTROPY -DGPULOSS_NO_F64 -DGPULOSS_NO_F16 $(LDFLAGS) -o $@ $(HOST_LEFT_OUT) $(HOST_LIBS)

$(BUILD)/test_no_f16: HOST_SWITCHES := -DGPULOSS_NO_F16
$(BUILD)/test_no_bf16: HOST_SWITCHES := -DGPULOSS_NO_BF16
$(BUILD)/test_no_16_bits: HOST_SWITCHES := -DGPULOSS_NO_F16 -DGPULOSS_NO_BF16
$(BUILD)/test_no_f16 $(BUILD)/test_no_bf16 $(BUILD)/test_no_16_bits: $(HOST_TYPES) $(HOST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) $(HOST_SWITCHES) $(LDFLAGS) -o $@ $(HOST_TYPES) $(HOST_LIBS)

$(BUILD)/test_mark: $(HOST_MARK) $(HOST)/test_mark.h gen/gen.h gen/parse.h gen/shared.h gen/condition.h gen/facts.h gpuloss.h
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) $(HOST_SANITIZE) $(LDFLAGS) -o $@ $(HOST_MARK) $(HOST_LIBS)

$(BUILD)/test_block $(BUILD)/test_block_sanitized: $(HOST)/test_block.c gen/variants.h gpuloss.h
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) $(HOST_BLOCK_FLAGS) $(LDFLAGS) -o $@ $< $(HOST_LIBS)
$(BUILD)/test_block_sanitized: HOST_BLOCK_FLAGS := $(HOST_SANITIZE)

.PHONY: run_host run_host_sanitized host_programs
host_programs: $(HOST_PROGRAMS)
run_host:
	@$(MAKE) -s -f $(HOST)/host.mk -j $$(nproc) BUILD=$(BUILD) CC='$(CC)' host_programs
	@$(HOST)/run.sh $(BUILD) $(HOST_PROGRAMS:$(BUILD)/%=%)
run_host_sanitized: $(BUILD)/test_host_sanitized $(BUILD)/test_block_sanitized
	@$(HOST)/run.sh $(BUILD) test_host_sanitized test_block_sanitized
