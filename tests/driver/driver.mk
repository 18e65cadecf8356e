# Tests of programs that use the driver around the library: test_driver runs on the driver that it finds.
BUILD ?= build
CFLAGS ?= -O2
DRIVER := tests/driver
DRIVER_OUT := $(BUILD)/driver

$(BUILD)/test_driver: $(patsubst $(DRIVER)/%.c,$(DRIVER_OUT)/%.o,$(sort $(wildcard $(DRIVER)/*.c)))
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka -ldl -lpthread

$(DRIVER_OUT)/%.o: $(DRIVER)/%.c $(wildcard $(DRIVER)/*.h) gpuloss.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_XOPEN_SOURCE=700 -c -o $@ $<
