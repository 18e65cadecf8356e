#include "check.h"

int main(void) {
    return thread_tests();
}
