#include "check.h"

int main(void) {
    int failed = lifecycle_tests() + failure_tests() + environment_tests() + loading_tests() + scratch_tests() +
                 launch_tests() + parameter_tests() + unpack_tests() + thread_tests();
    return failed != 0;
}
