/* The system headers that the implementation includes, and nothing of gpuloss: names.sh compares with it. */
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
