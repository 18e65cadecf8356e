# The PTX interpreter and its tests; included by the root Makefile. Paths are relative to the repository's root.
BUILD ?= build
INTERPRETER_DIR := tests/interpreter
INTERPRETER_LIB := $(BUILD)/interpreter/libcuda.so.1
# coverage.c is a program of its own.
INTERPRETER_SOURCES := $(filter-out %/coverage.c,$(sort $(wildcard $(INTERPRETER_DIR)/*.c)))
INTERPRETER_OBJECTS := $(INTERPRETER_SOURCES:$(INTERPRETER_DIR)/%.c=$(BUILD)/interpreter/%.o)
INTERPRETER_HEADERS := $(wildcard $(INTERPRETER_DIR)/*.h) $(INTERPRETER_DIR)/instructions.def
# No contraction: a product and a sum are one rounding only where the PTX says fma.
INTERPRETER_CFLAGS := -std=c11 -D_GNU_SOURCE -O3 -g -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra -Wshadow \
	-Wconversion $(INTERPRETER_EXTRA)

$(BUILD)/interpreter/%.o: $(INTERPRETER_DIR)/%.c $(INTERPRETER_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(INTERPRETER_CFLAGS) -c $< -o $@

$(INTERPRETER_LIB): $(INTERPRETER_OBJECTS) $(INTERPRETER_DIR)/exports.map
	$(CC) $(CFLAGS) $(INTERPRETER_EXTRA) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs \
		-Wl,--version-script=$(INTERPRETER_DIR)/exports.map $(INTERPRETER_OBJECTS) -o $@ -lm -lpthread

INTERPRETER_TESTS := $(INTERPRETER_DIR)/tests
INTERPRETER_RECORD := $(INTERPRETER_TESTS)/results_sm_90.txt
INTERPRETER_PROGRAMS := $(BUILD)/interpreter/run_instructions $(BUILD)/interpreter/run_bad $(BUILD)/interpreter/run_driver
# The libcuda that gpu-instructions loads.
GPU_DRIVER ?= libcuda.so.1

$(BUILD)/interpreter/run_%: $(INTERPRETER_TESTS)/run_%.c $(INTERPRETER_TESTS)/gpu.c $(INTERPRETER_TESTS)/gpu.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Wshadow $(INTERPRETER_EXTRA) $(filter %.c,$^) -o $@ \
		-lcmocka -ldl -lm

$(BUILD)/interpreter/coverage: $(INTERPRETER_DIR)/coverage.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -std=c11 -Wall -Wextra -pedantic -Wshadow -Wconversion $(INTERPRETER_EXTRA) $< -o $@

.PHONY: interpreter test-interpreter interpreter-coverage interpreter-mutations interpreter-bench gpu-instructions
interpreter: $(INTERPRETER_LIB)

# Compares with the results of an H200: as usual, with shuffled blocks and warps, and with the errors of approximations.
# Then runs the kernels that must be refused, and a folder without kernels.
test-interpreter: $(INTERPRETER_LIB) $(INTERPRETER_PROGRAMS)
	$(BUILD)/interpreter/run_instructions $(INTERPRETER_LIB) $(INTERPRETER_TESTS) $(INTERPRETER_RECORD)
	PTXSIM_SEED=1 $(BUILD)/interpreter/run_instructions $(INTERPRETER_LIB) $(INTERPRETER_TESTS) $(INTERPRETER_RECORD)
	PTXSIM_APPROX=1 $(BUILD)/interpreter/run_instructions $(INTERPRETER_LIB) $(INTERPRETER_TESTS) $(INTERPRETER_RECORD)
	$(BUILD)/interpreter/run_bad $(INTERPRETER_LIB) $(INTERPRETER_DIR)/bad 2>$(BUILD)/interpreter/faults.txt || \
		{ cat $(BUILD)/interpreter/faults.txt; exit 1; }
	@grep -a '^\[  PASSED' $(BUILD)/interpreter/faults.txt
	@mkdir -p $(BUILD)/interpreter/empty
	@! $(BUILD)/interpreter/run_bad $(INTERPRETER_LIB) $(BUILD)/interpreter/empty 2>/dev/null || \
		{ echo 'ERROR: a folder without kernels was accepted'; exit 1; }
	$(BUILD)/interpreter/run_driver $(INTERPRETER_LIB)

# The share of each kernel's instructions that the numerics tests execute.
interpreter-coverage: $(INTERPRETER_LIB) $(BUILD)/interpreter/coverage
	@BUILD=$(BUILD) CC='$(CC)' bash $(INTERPRETER_DIR)/coverage.sh

# Faults planted in the kernels, which the numerics tests must find; first, that the script itself rejects.
NOT_FOUND := $(BUILD)/interpreter/not_found.txt
interpreter-mutations: $(INTERPRETER_LIB)
	@BUILD=$(BUILD) CC='$(CC)' bash tests/mutations/run.sh tests/mutations/not_found.txt >$(NOT_FOUND); \
		grep -q '^mutations: 0 passed, 3 failed' $(NOT_FOUND) && \
		[ "$$(grep -cE '^  FAILED: (not planted|not found|found for another reason): .*, \1$$' $(NOT_FOUND))" = 3 ] || \
		{ cat $(NOT_FOUND); exit 1; }
	@BUILD=$(BUILD) CC='$(CC)' bash tests/mutations/run.sh

# Instructions a second.
interpreter-bench: $(INTERPRETER_LIB)
	@$(MAKE) -s -f tests/numerics/numerics.mk BUILD=$(BUILD) $(BUILD)/test_numerics
	@PTXSIM_SPEED=1 GPULOSS_DRIVER=$(abspath $(INTERPRETER_LIB)) $(BUILD)/test_numerics --small --only 'shapes_*' 2>&1 | \
		grep '^ptxsim: '

# The same files on a real GPU: every result must be the recorded one.
gpu-instructions: $(BUILD)/interpreter/run_instructions
	$(BUILD)/interpreter/run_instructions $(GPU_DRIVER) $(INTERPRETER_TESTS) $(INTERPRETER_RECORD)
