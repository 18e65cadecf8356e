# gpuloss: make help says what there is. Users of the library need none of this: they copy gpuloss.h.
CC ?= cc
BUILD := build
PREFIX ?= /usr/local
STRICT := $(shell . tests/compile/strict.sh && echo $$strict_c)
STRICT_ANY := $(shell . tests/compile/strict.sh && echo $$strict)
CFLAGS ?= -O2
CXXFLAGS ?= $(CFLAGS)

.PHONY: help run test test-all test-release test-bench examples examples-cuda shared gpu-test gpu-test-2 gpu-report bench bench-compare bench-pytorch schedules plot ptx block install uninstall clean format
.DEFAULT_GOAL := help

help:
	@echo 'make run         train a digit classifier with gpuloss (examples/02_digits.c)'
	@echo 'make test        the tests that need no GPU, and those on the GPU if there is one'
	@echo 'make test-all    what takes longer: all numerics, sanitizers, hostile programs, other systems and languages'
	@echo 'make test-release  what takes an hour: coverage, planted faults for each check, whether ptx/ is current'
	@echo 'make examples    build the examples into $(BUILD)/; gpuloss_info says what this machine has, and tests it'
	@echo 'make examples-cuda  build the examples that use the CUDA toolkit, which is found by nvcc'
	@echo 'make shared      build $(BUILD)/libgpuloss.so, the public functions for other languages (examples/languages)'
	@echo 'make gpu-test    on a GPU: numerics at full size, compute-sanitizer, instruction tests, examples'
	@echo 'make gpu-test-2  on two GPUs or more, with NCCL: a vocabulary that is split over them (examples/09_nccl.c)'
	@echo 'make bench       on a GPU: against the ceilings of its memory and PyTorch (BENCH_ARGUMENTS=--all: the grid)'
	@echo 'make bench-compare OLD=FILE  on a GPU: another gpuloss.h and this one, run by run (BENCH_ARGUMENTS as above)'
	@echo 'make bench-pytorch  on a GPU: the loss of a linear layer by examples/pytorch, and its models for KernelBench'
	@echo 'make schedules   on a GPU: every schedule of the kernels against the one that the library chooses'
	@echo 'make plot        draw the raw results that make bench leaves in $(BUILD)/bench.csv (needs python3-matplotlib)'
	@echo 'make interpreter-bench  instructions a second of the PTX interpreter that the tests run on'
	@echo 'make gpu-report  on a GPU: gpu-test and bench, written to tests/gpu-report.txt'
	@echo 'make ptx         compile the kernels anew: ptx/, and the block in gpuloss.h (needs the CUDA toolkit)'
	@echo 'make block       pack ptx/ as it is into gpuloss.h (needs liblzma)'
	@echo 'make format      clang-format everything that is written by hand'
	@echo 'make install     copy gpuloss.h to $$(PREFIX)/include (now $(PREFIX)), with a file for pkg-config; also DESTDIR'
	@echo 'make uninstall   remove what make install has copied'
	@echo 'make clean       remove $(BUILD)/'

# Set-up of a fresh Debian machine: a package is installed when the thing it brings is missing.
have = @$(1) >/dev/null 2>&1 || { echo 'installing $(2)'; apt-get update -qq && apt-get install -y -qq $(2) >/dev/null; }

.PHONY: need-cmocka need-lzma
need-cmocka:
	$(call have,command -v g++,g++)
	$(call have,echo '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <cmocka.h>' | $(CC) -E -x c -,libcmocka-dev)
need-lzma:
	$(call have,echo '#include <lzma.h>' | $(CC) -E -x c -,liblzma-dev)

EXAMPLES := $(addprefix $(BUILD)/,01_smallest 02_digits 03_distill 07_chunks gpuloss_info model_diff)
CXX_EXAMPLES := $(addprefix $(BUILD)/,04_raii)
CUDA_EXAMPLES := $(addprefix $(BUILD)/,05_cuda_driver 06_cuda_runtime 08_cublas 09_nccl)
# Without a C++ compiler, only the C examples are built.
examples: $(EXAMPLES) $(if $(shell command -v $(CXX) 2>/dev/null),$(CXX_EXAMPLES))
$(EXAMPLES): $(BUILD)/%: examples/%.c examples/digits.h gpuloss.h
	@mkdir -p $(@D)
	$(CC) -std=c99 $(STRICT) $(CFLAGS) $< -o $@ -lm -ldl
$(BUILD)/model_diff: $(wildcard examples/model_diff/*.h)
$(CXX_EXAMPLES): $(BUILD)/%: examples/%.cpp gpuloss.h
	@mkdir -p $(@D)
	$(CXX) -std=c++11 $(STRICT_ANY) $(CXXFLAGS) $< -o $@ -ldl

# The folder of the CUDA toolkit, empty without one. Its headers have warnings of their own.
CUDA = $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v nvcc 2>/dev/null))))
# NCCL is a library of its own.
NCCL = $(wildcard $(if $(CUDA),$(CUDA)/include/nccl.h) /usr/include/nccl.h)
examples-cuda: $(filter-out $(if $(NCCL),,%/09_nccl),$(CUDA_EXAMPLES))
$(CUDA_EXAMPLES): $(BUILD)/%: examples/%.c gpuloss.h
	$(if $(CUDA),,$(error examples-cuda: there is no CUDA toolkit (got no nvcc in PATH)))
	@mkdir -p $(@D)
	$(CC) -std=c99 $(STRICT) $(CFLAGS) -isystem '$(CUDA)/include' $< -o $@ -L'$(CUDA)/lib64' -L'$(CUDA)/lib64/stubs' \
		-Wl,-rpath,'$(CUDA)/lib64' $(CUDA_LIBRARY) -lm -ldl
$(BUILD)/05_cuda_driver: CUDA_LIBRARY = -lcuda
$(BUILD)/06_cuda_runtime: CUDA_LIBRARY = -lcudart
$(BUILD)/08_cublas: CUDA_LIBRARY = -lcublas -lcuda
$(BUILD)/09_nccl: CUDA_LIBRARY = -lnccl -lcuda

# The parts of the version in the header, joined with a separator.
version = $(shell awk '/^.define GPULOSS_VERSION_($(1)) / { printf "%s%s", dot, $$3; dot = "." }' gpuloss.h)
VERSION = $(call version,MAJOR|MINOR|PATCH)
# Below 1.0.0, minor versions may change functions and descs.
SONAME = libgpuloss.so.$(call version,MAJOR|MINOR)

shared: $(BUILD)/libgpuloss.so
$(BUILD)/libgpuloss.so: gpuloss.h
	@mkdir -p $(@D)
	$(CC) -std=c99 $(STRICT) $(CFLAGS) -fPIC -shared -DGPULOSS_IMPLEMENTATION \
		-DGPULOSS_API='__attribute__((visibility("default"))) extern' -x c $< -Wl,-soname,$(SONAME) -o $(@D)/$(SONAME) -ldl
	@ln -sf $(SONAME) $@
# For the tests: preloaded before the shared library.
$(BUILD)/balance.so: tests/balance.c gpuloss.h
	@mkdir -p $(@D)
	$(CC) -std=c99 $(STRICT) $(CFLAGS) -fPIC -shared -DGPULOSS_API=extern -I. $< -o $@ -ldl

run: $(BUILD)/02_digits $(BUILD)/interpreter/libcuda.so.1
	@sh examples/run.sh $(BUILD)

include tests/numerics/numerics.mk
include tests/interpreter/interpreter.mk
include tests/host/host.mk
include tests/driver/driver.mk
$(BUILD)/numerics/%.o $(BUILD)/driver/%.o: CFLAGS += -std=c99 $(STRICT)

# Programs are built side by side, also by a make without -j.
side_by_side = @$(MAKE) -s -j $$(nproc) BUILD='$(BUILD)' CC='$(CC)' $(1)

test: need-cmocka
	$(call side_by_side,examples $(BUILD)/test_numerics $(BUILD)/test_reference $(BUILD)/test_harness $(INTERPRETER_LIB))
	@BUILD=$(BUILD) CC='$(CC)' bash tests/run.sh usual

test-all: need-cmocka
	$(call side_by_side,examples shared $(BUILD)/test_numerics $(BUILD)/test_numerics_sanitized $(BUILD)/test_driver \
		$(INTERPRETER_LIB))
	@BUILD=$(BUILD) CC='$(CC)' bash tests/run.sh deep

test-release: need-cmocka
	$(call side_by_side,examples shared $(BUILD)/test_numerics $(BUILD)/test_numerics_sanitized $(BUILD)/test_driver \
		$(INTERPRETER_LIB))
	@BUILD=$(BUILD) CC='$(CC)' bash tests/run.sh release

gpu-test: need-cmocka $(BUILD)/test_numerics $(BUILD)/test_driver $(BUILD)/interpreter/run_instructions examples
	@BUILD=$(BUILD) bash tests/gpu.sh

# Runs a few rows, then the vocabulary of a language model.
gpu-test-2: $(BUILD)/09_nccl
	$(BUILD)/09_nccl
	$(BUILD)/09_nccl 512 128256

BENCH_PROGRAMS := $(BUILD)/bench $(BUILD)/libbench.so $(BUILD)/first_loss $(BUILD)/schedules $(BUILD)/compare
REPORT ?= tests/gpu-report.txt
gpu-report: need-cmocka $(BUILD)/test_numerics $(BUILD)/test_driver $(BUILD)/interpreter/run_instructions examples \
		$(BENCH_PROGRAMS)
	@BUILD=$(BUILD) bash tests/gpu.sh $(REPORT)

BENCH := $(patsubst %,tests/bench/%.c,bench calls ceilings cells csv data driver floors library options pairs requests \
	selection table)
BENCH_NEEDS := $(wildcard tests/bench/*.h) gpuloss.h
BENCH_OBJECTS := $(BENCH:tests/bench/%.c=$(BUILD)/bench_objects/%.o)
BENCH_CFLAGS := -std=c11 $(CFLAGS) -Wall -Wextra -fPIC
$(BUILD)/bench_objects/%.o: tests/bench/%.c $(BENCH_NEEDS)
	@mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) -c $< -o $@
$(BUILD)/bench: $(BUILD)/bench_objects/main.o $(BENCH_OBJECTS)
	$(CC) $^ -o $@ -ldl
$(BUILD)/schedules: $(BUILD)/bench_objects/schedules.o $(BENCH_OBJECTS)
	$(CC) $^ -o $@ -ldl
$(BUILD)/libbench.so: $(BENCH_OBJECTS)
	$(CC) -shared $^ -o $@ -ldl
$(BUILD)/compare: $(BUILD)/bench_objects/compare.o
	$(CC) $^ -o $@ -ldl
# Built from the header OLD. It is always built, because OLD may name another header than before.
.PHONY: $(BUILD)/libbench_old.so
$(BUILD)/libbench_old.so: $(BENCH_OBJECTS)
	$(if $(OLD),,$(error OLD=FILE is required: the gpuloss.h to compare with))
	$(CC) $(BENCH_CFLAGS) -DGPULOSS_HEADER='"$(abspath $(OLD))"' -shared tests/bench/library.c \
		$(filter-out %/library.o,$(BENCH_OBJECTS)) -o $@ -ldl
$(BUILD)/first_loss: tests/bench/first_loss.c tests/bench/clock.h gpuloss.h
	@mkdir -p $(@D)
	$(CC) -std=c11 $(CFLAGS) -Wall -Wextra $< -o $@ -ldl -lm

schedules: $(BUILD)/schedules
	@$(BUILD)/schedules tests/bench/ceilings.ptx $(SCHEDULES_ARGUMENTS)

bench: $(BENCH_PROGRAMS)
	@BUILD=$(BUILD) bash tests/bench/run.sh $(BENCH_ARGUMENTS)

bench-compare: $(BUILD)/compare $(BUILD)/libbench_old.so $(BUILD)/libbench.so
	@$(BUILD)/compare $(BUILD)/libbench_old.so $(BUILD)/libbench.so tests/bench/ceilings.ptx $(BENCH_ARGUMENTS)

# The layers of two language models, the second smaller.
bench-pytorch: export GPULOSS_LIBRARY = $(abspath $(BUILD))/libgpuloss.so
bench-pytorch: shared
	python3 tests/bench/linear.py 8192 4096 128256 256 1024
	python3 tests/bench/linear.py 8192 2048 32000 128
	python3 tests/bench/kernelbench.py

CSV ?= $(BUILD)/bench.csv
PLOT ?= tests/bench/ceilings.svg
plot:
	python3 tests/bench/plot.py $(CSV) $(PLOT)

# The benchmark's programs and scripts at a tiny size, on the interpreter.
test-bench: $(BENCH_PROGRAMS) $(INTERPRETER_LIB)
	@BUILD=$(BUILD) CC='$(CC)' bash tests/bench/smoke.sh

GEN := gen/gen.c gen/text.c gen/lower.c gen/mark.c gen/parse.c gen/shared.c gen/value.c gen/condition.c gen/facts.c \
	gen/renumber.c gen/shorten.c gen/pack.c gen/order.c gen/toolkit.c gen/specialise.c gen/variants.c gen/gen.h gen/parse.h \
	gen/condition.h gen/facts.h \
	gen/variants.h gpuloss.h $(BUILD)/gen/library.h
$(BUILD)/gen/gen: $(GEN)
	$(CC) -std=c11 -D_POSIX_C_SOURCE=200809L $(CFLAGS) -Wall -Wextra -I$(BUILD)/gen $(filter %.c,$(GEN)) -o $@ -llzma -ldl
# The library without the generated block, which may be that of another table of modules.
$(BUILD)/gen/library.h: gpuloss.h
	@mkdir -p $(@D)
	sed '/^\/\* gpuloss: begin of the generated block/,/^\/\* gpuloss: end of the generated block/d' $< >$@

# Generated files go into this folder, under their paths in the repository.
PTX_OUTPUT ?= .
block: need-lzma $(BUILD)/gen/gen
	@mkdir -p $(PTX_OUTPUT)
	$(BUILD)/gen/gen pack $(PTX_OUTPUT)
ptx: need-lzma $(BUILD)/gen/gen
	$(BUILD)/gen/gen $(BUILD)/gen $(PTX_OUTPUT)
	nvcc -ptx -arch=compute_75 -std=c++17 -Werror all-warnings tests/bench/ceilings.cu -o $(BUILD)/gen/ceilings.ptx
	@mkdir -p $(PTX_OUTPUT)/tests/bench
	sed -e 's/^\.version.*/.version 6.0/' -e 's/^\.target.*/.target sm_70/' -e '/^\/\//d;/^$$/d' $(BUILD)/gen/ceilings.ptx \
		>$(PTX_OUTPUT)/tests/bench/ceilings.ptx

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')

HEADER_IN = $(DESTDIR)$(PREFIX)/include/gpuloss.h
PC_IN = $(DESTDIR)$(PREFIX)/share/pkgconfig/gpuloss.pc
install:
	install -D -m 644 gpuloss.h '$(HEADER_IN)'
	@mkdir -p '$(dir $(PC_IN))'
	printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' '' 'Name: gpuloss' \
		'Description: cross-entropy and KL divergence on NVIDIA GPUs, in one C header' 'Version: $(VERSION)' \
		'Cflags: -I$${includedir}' 'Libs: -ldl' >'$(PC_IN)'
	chmod 644 '$(PC_IN)'
uninstall:
	rm -f '$(HEADER_IN)' '$(PC_IN)'

clean:
	rm -rf $(BUILD)
