#!/bin/bash
# Plants one fault at a time in gpuloss.h and sees tests/driver find it on the interpreter.   tests/bad/driver.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
build=${BUILD:-build}
out=$build/bad_driver
rm -rf "$out" && mkdir -p "$out" || exit 2
make -s BUILD="$build" "$build/test_driver" "$build/interpreter/libcuda.so.1" || exit 2
interpreter=$(realpath "$build/interpreter/libcuda.so.1")
objects=$(printf '%s\n' "$build"/driver/*.o | grep -v '/gpuloss_impl\.o$')

interpreted() { env GPULOSS_REQUIRE_GPU=1 GPULOSS_DRIVER="$interpreter" "$@" --small; }

# planted NAME WORD TEST SED: with the header changed so, the tests of that name fail with a message.
planted() {
    changed gpuloss.h "$4" "$out/bad.h" || return
    # shellcheck disable=SC2086
    if gcc -std=gnu11 -w -O1 -DGPULOSS_IMPLEMENTATION -x c -c "$out/bad.h" -o "$out/bad.o" >"$out/log" 2>&1 &&
        gcc $objects "$out/bad.o" -o "$out/bad" -lcmocka -ldl -lpthread >"$out/log" 2>&1; then
        reject "$1" "$2" interpreted "$out/bad" --only "$3"
    else
        fail "does not compile: $1" "$out/log"
    fi
}

accept "the tests as they are" interpreted "$build/test_driver"
reject "a name of no test" "no test has a name as nothing" interpreted "$build/test_driver" --only nothing
reject "no driver where one is required" "GPULOSS_REQUIRE_GPU=1, but $out/none" \
    env GPULOSS_REQUIRE_GPU=1 GPULOSS_DRIVER="$out/none" "$build/test_driver"
accept "no driver" env -u GPULOSS_REQUIRE_GPU GPULOSS_DRIVER="$out/none" "$build/test_driver"

planted "outputs that change with time" "thread 0: [0-9]* rounds have other bits" threads_of_one_context \
    's/rows->grad_scale = \(.*\);/static int n; rows->grad_scale = (\1) * (++n > 60 ? 1.5 : 1.0);/'
planted "an output that is not written" "bytes of the outputs are the same in two runs" contexts_of_one_cucontext \
    's/^    p->rows.grad = (uint64_t)(uintptr_t)d->grad_logits;/    p->rows.grad = 0;/'
# A thread that waits between the two launches of a call lets the other one in.
planted "scratch of two contexts" "thread 0: [0-9]* rounds have other bits" contexts_of_one_cucontext \
    's/code = context->driver.memory_alloc(&arena->base, \(.*\));/static uint64_t at;\n&\narena->base = at;/
    s/context->driver.memory_alloc(&arena->base, \(.*\));/at != 0 ? 0 : context->driver.memory_alloc(\&at, \1);/
    /^static gpuloss_status gpulossi_launch(/,/^}/s/^    return /    { extern int usleep(unsigned); usleep(2000); }\n&/'
planted "kernels of two contexts" "CUDA_ERROR_INVALID_HANDLE" contexts_of_two_cucontexts \
    's/^static gpulossi_kernel \*gpulossi_find_variant/static uintptr_t all[GPULOSSI_MODULE_COUNT];\n&/
    s/&context->kernels\[module\]/\&all[module]/'
planted "a failure that is none" "GPULOSS_OK instead of GPULOSS_ERROR_DRIVER" primary_ends.release_then_call \
    's/gpuloss_status status = GPULOSS_ERROR_DRIVER;/gpuloss_status status = GPULOSS_OK;/'
planted "another status" "GPULOSS_ERROR_COMPILE instead of GPULOSS_ERROR_DRIVER" primary_ends.release_current_then_call \
    's/gpuloss_status status = GPULOSS_ERROR_DRIVER;/gpuloss_status status = GPULOSS_ERROR_COMPILE;/'
planted "the pushed context stays" "FAILED .* primary_ends.release_then_destroy" primary_ends.release_then_destroy \
    's/(void)context->driver.context_pop(&popped);/(void)popped;/'
planted "a crash of gpuloss_destroy" "primary_ends.release_then_destroy: ended by signal 6" primary_ends.release_then_destroy \
    's/gpulossi_enter(context, "gpuloss_destroy", &scope) == GPULOSS_OK/(& || (abort(), 0))/'
planted "the primary context is retained once" "gpuloss_create(&context, &desc): GPULOSS_ERROR_DRIVER" \
    primary_ends.release_then_destroy \
    's/code = driver->primary_retain(&context->cuda_context, context->device);/{ static struct CUctx_st *only;\n&\n}/
    s/driver->primary_retain(&context->cuda_context, \(.*\));/only != NULL ? 0 : driver->primary_retain(\&only, \1);\n        context->cuda_context = only;/'

report 'bad driver'
