# The library that unpacks each text once: $(ONCE)/gpuloss.h and $(ONCE)/images.o, for tests that load the same texts again.
ifndef ONCE
BUILD ?= build
ONCE := $(BUILD)/unpack_once
$(ONCE)/images.o: $(wildcard tests/unpack_once/*) $(wildcard tests/host/*.[ch]) $(wildcard tests/numerics/*.[ch]) gpuloss.h
	@bash tests/unpack_once/run.sh gpuloss.h $(ONCE)
endif
