#!/bin/bash
# Plants one fault at a time, which a check must reject. This script fails if a fault is accepted, or if a check rejects
# sound input.
#     tests/bad/run.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/compile/strict.sh
out=${BUILD:-build}/bad
rm -rf "$out" && mkdir -p "$out" || exit 2
# The parts of the numerics: programs of all numbers run each test once. Without a driver the tests are skipped.
numerics() { GPULOSS_DRIVER="$out/none" "${BUILD:-build}/test_numerics" "$@"; }
names_of() { numerics "$@" 2>&1 | sed -n 's/^\[ RUN      \] //p'; }
make -s BUILD="${BUILD:-build}" "${BUILD:-build}/test_numerics" || exit 2
names_of >"$out/numerics"
in_parts() { [ "$(wc -l <"$out/numerics")" -gt 200 ] && for part in "$@"; do names_of --part "$part"; done | sort | diff <(sort "$out/numerics") -; }
accept "three parts" in_parts 1/3 2/3 3/3
reject "a part twice" '^> ' in_parts 1/3 2/3 2/3 3/3
reject "a part left out" '^< ' in_parts 1/3 3/3
for part in 0/4 5/4 1/4x 1 -1/4; do
    reject "part $part" "got --part" numerics --part $part
done

# The embedded block, ptx/ and MANIFEST.
make -s -f tests/host/host.mk BUILD="${BUILD:-build}" "${BUILD:-build}/test_block" || exit 2
check_block="${BUILD:-build}/test_block $out/ptx"
one=kl_div_probabilities_f32
damaged() {
    rm -rf "$out/ptx" && cp -r ptx "$out/ptx" && (cd "$out/ptx" && eval "$1")
    ! diff -rq ptx "$out/ptx" >"$out/log" || not_planted "$1"
}
accept "ptx/ as it is" ${check_block% *} ptx
damaged "sed -i '0,/mov/s//mox/' $one.ptx" &&
    reject "a changed text" "is not what gpuloss.h holds" $check_block
damaged "sed -i '0,/mov/s//mox/' $one.ptx
    sum=\$(sha256sum <$one.ptx | cut -c1-64) && sed -i \"s/^[0-9a-f]* $one /\$sum $one /\" MANIFEST" &&
    reject "a changed text with its new sum" "is not what gpuloss.h holds" $check_block
damaged "rm $one.ptx" && reject "a missing text" "is missing" $check_block
damaged "cp $one.ptx more.ptx" && reject "an extra text" "there_is_nothing_more" $check_block
damaged "rm MANIFEST" && reject "no MANIFEST" "is missing" $check_block
damaged "sed -i '/ $one /d' MANIFEST" && reject "a missing row" "not one row of $one" $check_block
damaged "sed -i '/ $one /p' MANIFEST" && reject "a row twice" "not one row of $one" $check_block
damaged "sed -i '/ $one /{p;s/ $one / more /}' MANIFEST" && reject "an extra row" "there_is_nothing_more" $check_block
damaged "sed -i -E 's/^([0-9a-f]+ $one +[0-9]+ +)0 /\\18 /' MANIFEST" && reject "a spill" "spills 8 bytes" $check_block
damaged "sed -i '/ $one /s/^..../0000/' MANIFEST" && reject "a wrong sum" "the_sums_are_right" $check_block
damaged "sed -i '/ $one /s/[0-9]*\$/7/' MANIFEST" && reject "a wrong size" "every_module_has_its_row" $check_block
variant='cross_entropy_row_pipeline_f32 +gradient '
damaged "sed -i -E '/^$variant/s/ [01]\.[0-9]{3} / 1.040 /' MANIFEST" &&
    reject "a variant with a ratio of 1.04" "gradient of .* takes 1040 thousandths" $check_block
damaged "sed -i -E 's/^($variant +)[0-9]+/\\19999/' MANIFEST" &&
    reject "a variant with other instructions" "gradient of .* has another ratio" $check_block
damaged "sed -i -E 's/^($variant.*\.[0-9]{3} +[0-9]+ +[0-9]+ +)0 /\\18 /' MANIFEST" &&
    reject "a variant that spills" "gradient of .* spills 8 bytes, its template none" $check_block
wide='cross_entropy_row_pipeline_f32 +cluster_gradient '
damaged "sed -i -E 's/^($wide.*\.[0-9]{3} +[0-9]+ +[0-9]+ +)[0-9]+ +[0-9]+ /\\18 8 /' MANIFEST" &&
    reject "a variant of wide blocks that spills, as its template does" "cluster_gradient of .* has wide blocks and spills 8 bytes" \
        $check_block
damaged "sed -i -E '/^$variant/d' MANIFEST" &&
    reject "a missing variant" "not one row of the variant gradient" $check_block
damaged "sed -i -E '/^$variant/p' MANIFEST" && reject "a variant twice" "not one row of the variant gradient" $check_block
damaged "sed -i -E 's/^$variant/cross_entropy_row_pipeline_f32 more /' MANIFEST" &&
    reject "an unknown variant" "the variant more of cross_entropy_row_pipeline_f32, which is none" $check_block
damaged "sed -i '/^# variants: /,\$d' MANIFEST" && reject "no variants" "MANIFEST has no variants" $check_block

# The README. A copy of it is in the tree's root, where its links begin.
readme=$out/README.md
is_readme() { BUILD="$out/readme" bash tests/readme.sh "$readme"; }
bad_readme() {
    local name=$1 word=$2
    changed README.md "$3" "$readme" && reject "$name" "$word" is_readme
}
cp README.md "$readme" && accept "README.md as it is" is_readme
bad_readme "a README of too many words" "FAILED: at most 1500 words" "1s/\$/$(printf 'a %.0s' {1..200})/"
bad_readme "a README without code" "FAILED: a block of code" 's/^```c$/```/'
bad_readme "code in a README that does not compile" "block_1.c compiles" 's/gpuloss_last_error()/gpuloss_last_error(0)/'
bad_readme "a dead link in a README" "FAILED: the link gen/SCHEDULE.md" 's/](gen.SCHEDULES/](gen\/SCHEDULE/'
bad_readme "an unknown target of make in a README" "FAILED: make bunch" 's/`make bench/`make bunch/'
bad_readme "an unknown function in a README" "FAILED: gpuloss_crate " 's/gpuloss_create/gpuloss_crate/'
bad_readme "a time in a README that is not in the report" "FAILED: the figures of cross_entropy (" 's/^\(| cross_entropy | f32 | 32768 x 4096 | loss | \)/\19/'
bad_readme "a floor in a README that is not in the report" "FAILED: the figures of Jensen-Shannon" 's/^\(| Jensen-Shannon .* | \)\(\([0-9]* | \)\{2\}[0-9]* |\)$/\19\2/'
bad_readme "a peer's time that is not in the report" "FAILED: the figures of kl_div of logits" 's/^\(| kl_div of logits .* | \)\([0-9]* |\)$/\19\2/'
bad_readme "a README with fewer rows of speed" "FAILED: ten rows of speed" '/^| kl_div of probabilities /d'
bad_readme "an error that is not in the report" "FAILED: the accuracy of 1.013e-09" 's/^\(| 1.013e-09 | \)/\11/'
bad_readme "a README with fewer rows of accuracy" "FAILED: four rows of accuracy" '/^| 1.013e-09 /d'
bad_readme "a first loss that is not in the report" "FAILED: the first loss of gradient bf16 (cold" 's/^\(| gradient bf16 | \)/\19/'
bad_readme "a first loss of an older run" "FAILED: the first loss of cross_entropy f32 (cold" 's/^\(| cross_entropy f32 | \)[0-9]*/\1476/'
bad_readme "a README with fewer first losses" "FAILED: four first losses" '/^| gradient bf16 /d'
bad_readme "another size of the header" "FAILED: the header's size" 's/1.2 MB of text/0.7 MB of text/'
bad_readme "another size of the implementation" "FAILED: the implementation's size" 's/0.4 MB of object/0.2 MB of object/'

# The program that tests a machine: a fault in its reference is as one in the library.
bad_info() {
    local name=$1 word=$2
    changed examples/gpuloss_info.c "$3;s,\.\./gpuloss\.h,gpuloss.h," "$out/info.c" &&
        gcc -O1 -I. -o "$out/info" "$out/info.c" -lm -ldl &&
        reject "$name" "$word" env LD_LIBRARY_PATH="${BUILD:-build}/interpreter" "$out/info"
}
make -s -f tests/interpreter/interpreter.mk BUILD="${BUILD:-build}" interpreter || exit 2
bad_info "a wrong loss" "FAILED  forward KL bf16: loss " 's/: t \* log(t . q);/: 1.01 * t * log(t \/ q);/'
bad_info "a wrong gradient" "FAILED  total variation f64: loss " 's/t < q ? 0.5/t < q ? 0.51/'
bad_info "a wrong loss of shards" "FAILED  cross_entropy_combine f32: loss " 's/{0, 40, CLASSES}/{0, 40, CLASSES - 1}/'

# The count of suites that run beside others: one that fails, and one that kills the shell that watches it.
counted() { (
    BUILD=$out/count && . tests/count.sh && beside sound true && beside "$1" bash -c "$2" && report_all && summary
); }
accept "suites that succeed" counted "another" true
reject "a suite that fails" "1 passed, 1 failed" counted "one that fails" false
reject "a suite that is killed" "1 passed, 1 failed" counted "one that is killed" 'kill -KILL $PPID'

# A test that leaves its arrays.
rm -rf "$out/leaving" && mkdir -p "$out/leaving" && cp -r gen tests gpuloss.h "$out/leaving" &&
    outside=tests/numerics/test_coverage_sparse.c &&
    changed $outside 's/(c->rows > 2 ? 2 : c->rows - 1)/2/' "$out/leaving/$outside" &&
    make -s -C "$out/leaving" -f tests/numerics/numerics.mk BUILD=build build/test_numerics_sanitized &&
    reject "a test that writes outside of its arrays" "heap-buffer-overflow" env PTXSIM_DEVICE=sm_90 GPULOSS_REQUIRE_GPU=1 \
        GPULOSS_DRIVER="${BUILD:-build}/interpreter/libcuda.so.1" "$out/leaving/build/test_numerics_sanitized" --small \
        --only shared_bits_of_every_type

# The interpreter with four times the documented errors of approximate functions.
rm -rf "$out/approx" && mkdir -p "$out/approx/tests" && cp -r tests/interpreter tests/numerics "$out/approx/tests" &&
    cp gpuloss.h "$out/approx" &&
    changed tests/interpreter/execute_float.c 's/0x1\.8p-23/0x1.8p-21/' "$out/approx/tests/interpreter/execute_float.c" &&
    reject "errors beyond those that are documented" "FAILED.* single.ptx" \
        make -s -C "$out/approx" -f tests/interpreter/interpreter.mk BUILD=build test-interpreter

# The installation.
bad_install() {
    local name=$1 word=$2
    changed Makefile "$3" "$out/Makefile" && BUILD="$out/install" reject "$name" "$word" bash tests/install.sh "$out/Makefile"
}
bad_install "a header that is not installed" "FAILED: the header is installed" '/install -D -m 644 gpuloss.h/d'
bad_install "a file too many" "FAILED: two files are installed" 's/install -D -m 644 gpuloss.h.*/&\n\tinstall -D README.md "$(HEADER_IN).md"/'
bad_install "another version" "FAILED: the version is" "s/'Version: /'Version: 1/"
if command -v pkg-config >/dev/null; then
    bad_install "flags without the header's folder" "FAILED: a program compiles" "s/'Cflags: -I.*' 'Libs/'Cflags:' 'Libs/"
else
    skip "flags of pkg-config: it is not installed"
fi
bad_install "a shared library of no version" "FAILED: the soname is" 's/-Wl,-soname,.(SONAME) //'
bad_install "a shared library that hides its functions" "FAILED: a program links with it" '/-DGPULOSS_API=/s/default/hidden/'
bad_install "a shared library that exports too much" "FAILED: it exports nothing but" \
    's/-fPIC -shared/& -Wl,--defsym,planted=0/'
bad_install "a file that stays" "FAILED: nothing stays" "s/rm -f '.(HEADER_IN)' /rm -f /"

# The same for faults in the generated files. The committed files stand for the files that the kernels are compiled to.
generated() {
    rm -rf "$out/generated" && mkdir -p "$out/generated/tests/bench" && cp -r ptx gpuloss.h "$out/generated" &&
        cp tests/bench/ceilings.ptx "$out/generated/tests/bench" && (cd "$out/generated" && eval "$1")
}
is_current() { BUILD="$out/current" tests/ptx.sh "$(realpath "$out/generated")"; }
generated true && accept "what is generated again" is_current
generated "sed -i '0,/mov/s//mox/' ptx/$one.ptx" && reject "a text that was changed" "FAILED: ptx/" is_current
generated "rm ptx/$one.ptx" && reject "a text that is not generated" "FAILED: ptx/" is_current
generated "sed -i '/ $one /s/^..../0000/' ptx/MANIFEST" && reject "another MANIFEST" "FAILED: ptx/" is_current
generated "sed -i '0,/^0x./s//0x_/' gpuloss.h" && reject "another block" "FAILED: the block" is_current
generated "sed -i '0,/mov/s//mox/' tests/bench/ceilings.ptx" &&
    reject "another PTX of the benchmark" "FAILED: the PTX of the benchmark" is_current
rm -rf "$out/generated" "$out/current"

# Sources that must not compile.
gcc_strict() { gcc $(flags_of "$1") -fsyntax-only "$2"; }
accept "declarations" gcc_strict c99 tests/compile/mode.c
for standard in c99 c++11; do
    reject "a planted warning, $standard" "conversion" gcc_strict $standard tests/bad/narrowing.c
    reject "a stream that is none, $standard" "stream" gcc_strict $standard tests/bad/wrong_stream.c
    reject "the size of an opaque type, $standard" "incomplete type" gcc_strict $standard tests/bad/missing_part.c
done

# altered SED: gpuloss.h changed so. planted TEXT: with a line more in its implementation.
altered() { changed gpuloss.h "$1" "$out/gpuloss.h"; }
planted() { altered "/^typedef int gpulossi_result;/a $1"; }
gcc_planted() {
    gcc $(flags_of c99) -fsyntax-only -DGPULOSS_IMPLEMENTATION -include "$out/gpuloss.h" tests/compile/mode.c
}
names() { tests/compile/names.sh "$out/gpuloss.h" "$out/names"; }
planted "/* nothing */" && accept "a comment" gcc_planted && accept "a comment" names
planted "static short gpulossi_planted(int x) { return x; }" &&
    reject "a warning in the header" "conversion" gcc_planted
planted "#define LEAKED 1" && reject "a macro of another name" "LEAKED" names
planted "typedef int leaked;" && reject "a type of another name" "leaked" names
planted "enum { leaked };" && reject "an enumerator of another name" "leaked" names
planted "struct leaked { int x; };" && reject "a struct of another name" "leaked" names
planted "static int leaked(void) { return 1; }" && reject "a function of another name" "leaked" names

# The defaults of a desc are a list by position.
defaults() {
    gcc $(flags_of c99) -include "$out/gpuloss.h" -o "$out/defaults" tests/compile/defaults.c && "$out/defaults"
}
planted "/* nothing */" && accept "a comment" defaults
altered 's/GPULOSS_USE_IGNORE_INDEX, -100, NULL, NULL, 0.0, /GPULOSS_USE_IGNORE_INDEX, 0, NULL, NULL, -100, /' &&
    reject "a default in the next place" "GPULOSS_CROSS_ENTROPY_DEFAULTS are not" defaults
altered 's/GPULOSS_FORWARD_KL, GPULOSS_BATCHMEAN, 0, 0.0, /GPULOSS_FORWARD_KL, GPULOSS_REDUCTION_UNSET, 4, 0.0, /' &&
    reject "a default of KL in the next place" "GPULOSS_KL_DIV_DEFAULTS are not" defaults
altered 's/GPULOSS_RESIDUAL_UNSET, GPULOSS_FORWARD_KL, /GPULOSS_DROP, GPULOSS_FORWARD_KL, /' &&
    reject "another default of a sparse teacher" "GPULOSS_KL_DIV_SPARSE_DEFAULTS are not" defaults

# The whole of tests/compile, shortened, on faulty headers. Their runs go side by side and are judged afterwards.
run_compile() {
    BUILD="$1" QUICK=1 tests/compile/run.sh "$1.h" >"$1.log" 2>&1
    echo $? >"$1.status"
}
export -f run_compile
compile_later() { mv "$out/gpuloss.h" "$out/compile_$1.h"; }
planted "/* nothing */" && compile_later comment
planted "static short gpulossi_planted(int x) { return x; }" && compile_later warning
planted "int gpulossi_planted(void); int gpulossi_planted(void) { return 1; }" && compile_later global
altered 's/^#if .*!defined(GPULOSS_NO_KL_DIV) && !defined(GPULOSS_NO_F64)/#if 1/' && compile_later present
altered '/gpulossi_common_prepare_targets\[\]/,$b; s/^#if 1$/#if !defined(GPULOSS_NO_CROSS_ENTROPY)/' &&
    compile_later shared
printf '%s\n' "$out"/compile_*.h | sed 's/\.h$//' | xargs -P "$(nproc)" -I{} bash -c 'run_compile "{}"'
compile() { cat "$out/compile_$1.log" && return "$(cat "$out/compile_$1.status")"; }
accept "a comment" compile comment
reject "a warning" "FAILED: gcc -x c -std=c99" compile warning
reject "a global function that is not public" "FAILED: c: the public functions and nothing else" compile global
reject "kernels that can't be left out" "FAILED: GPULOSS_NO_F64" compile present
reject "a shared kernel that is left out with one loss" "stays, GPULOSS_NO_CROSS_ENTROPY" compile shared
rm -rf "$out"/compile_*

# The driver's prototypes, when there is a cuda.h to compare with.
prototypes() {
    g++ -std=c++11 -DGPULOSS_STATIC -include "$out/gpuloss.h" -o "$out/prototypes" tests/compile/prototypes.cpp -ldl &&
        "$out/prototypes"
}
if cuda_headers; then
    planted "/* nothing */" && accept "a comment" prototypes
    altered 's/"cuMemFree_v2", (uint64_t)/"cuMemFree_v2", (uint32_t)/' &&
        reject "an argument of another size" "cuMemFree_v2 is declared otherwise" prototypes
    altered 's/"cuModuleUnload", (void \*)/"cuModuleUnload", (void *, int)/' &&
        reject "an argument more" "cuModuleUnload is declared otherwise" prototypes
    altered 's/"cuCtxPushCurrent_v2", (struct CUctx_st \*)/"cuCtxPushCurrent_v2", (struct CUstream_st *)/' &&
        reject "another handle" "cuCtxPushCurrent_v2 is declared otherwise" prototypes
    altered 's/"cuMemAlloc_v2"/"cuMemAlloc"/' &&
        reject "a symbol of 32-bit addresses" "cuMemAlloc is looked up" prototypes
    altered 's/GPULOSSI_CU_INVALID_PTX = 218/GPULOSSI_CU_INVALID_PTX = 219/' &&
        reject "a wrong error code" "CUDA_ERROR_INVALID_PTX" prototypes
    altered '/^typedef struct gpulossi_launch_config/,/^}/s/grid\[3\], block\[3\]/block[3], grid[3]/' &&
        reject "a struct in another order" "CUlaunchConfig.gridDimX" prototypes
    altered '/^typedef struct gpulossi_launch_attribute/,/^}/s/int unused;//' &&
        reject "a struct without its padding" "CUlaunchAttribute.value" prototypes
    altered 's/GPULOSSI_CU_LAUNCH_DEPENDENT = 6/GPULOSSI_CU_LAUNCH_DEPENDENT = 5/' &&
        reject "another attribute of a launch" "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC" prototypes
else
    skipped=$((skipped + 9)) && echo "  skipped: prototypes, no CUDA toolkit found"
fi

# The tests of hostile programs, on faulty headers.
hostile() { BUILD="$out" QUICK=1 tests/hostile/run.sh "$out/gpuloss.h" "$@"; }
planted "/* nothing */" && accept "a comment" hostile options && accept "a comment" hostile compilers
altered '/compile for 64 bits/d' && reject "pointers of 32 bits" "FAILED: .*: 32 bits" hostile compilers
altered '/^GPULOSSI_ASSERT_BYTES(gpulossi_scratch/d' &&
    reject "a struct of another size" "FAILED: .*: packed structs" hostile compilers
altered '/^#undef packed$/d' && reject "a macro that is not set aside" "FAILED: .*: macros of many" hostile macros
altered '/^#pragma pop_macro("version")$/d' && reject "a macro that is lost" "version is gone" hostile macros
altered '/^#undef packed$/a #undef classes' &&
    reject "the name of a field that is set aside" "FAILED: .*: macros that rename" hostile macros
altered 's/if (gpulossi_order_of(number) < .*/if (!(*number >= low \&\& *number <= high))/' &&
    reject "comparisons of doubles" "FAILED: gcc -x c -Ofast says" hostile options "gcc -x c -Ofast"
altered 's/p->inner % (GPULOSSI_VECTOR_BYTES \/ bytes) == 0/p->inner * bytes % GPULOSSI_VECTOR_BYTES == 0/' &&
    reject "an overflow of sizes" "FAILED: gcc -x c -O1 -fsanitize=undefined -fno-sanitize-recover=all says" hostile options \
        "gcc -x c -O1 -fsanitize=undefined -fno-sanitize-recover=all"
altered '/^GPULOSS_API void gpuloss_destroy(/,/^}/s/(void)context->driver.module_unload(kernel->module);/(void)0;/' &&
    reject "a leak in every build" "FAILED: calls under -O1: [0-9]* leaks" hostile options "gcc -x c -O1"
planted '#ifdef __cplusplus\nstatic_assert(sizeof(R"(1\\n2)") == 4, "the end of a line has two bytes");\n#endif' &&
    reject "a text that line ends change" "FAILED: g++: line ends of Windows" hostile bytes
altered '1s/^/\xef\xbb\xbf/' && reject "a byte order mark" "FAILED: gcc: a byte order mark" hostile bytes
{ cat gpuloss.h && yes '' | head -c 500000; } >"$out/gpuloss.h"
reject "bytes that nothing needs" "FAILED: accepted: gcc: cut off" hostile bytes
altered 's/gpulossi_decoders .d = (gpulossi_decoders .)(void .)(text + gpulossi_decoders_at(image));/gpulossi_decoders decoders, *d = \&decoders;/' &&
    reject "decoders on the stack" "the calls take [12].... bytes of a stack" hostile hosts
altered 's/    log = text + gpulossi_decoders_at(image);.*/    char large[32000]; log = large + sizeof large - GPULOSSI_LOG_BYTES;/' &&
    reject "a large array on the stack" "FAILED: small stacks, -O2" hostile hosts
at_the_end='#include <pthread.h>\nstatic pthread_key_t gpulossi_planted;\nstatic void gpulossi_end(void *p) { (void)p; }\n'
at_the_end+='__attribute__((constructor)) static void gpulossi_begin(void) { pthread_key_create(\&gpulossi_planted, gpulossi_end); }'
altered "s/^typedef int gpulossi_result;/&\n$at_the_end/
    /^GPULOSS_API void gpuloss_destroy(gpuloss_context .context) {/a pthread_setspecific(gpulossi_planted, context);" &&
    reject "work at the end of a thread" "FAILED: a plugin that is unloaded" hostile hosts
if command -v clang++ >/dev/null; then
    altered 's/^#define GPULOSSI_NUMBER_OF(field) .*/#define GPULOSSI_NUMBER_OF(field) (int)(field)/' &&
        reject "enums as enums" "FAILED: clang++ -x c++ -O2 -fstrict-enums says" hostile options \
            "clang++ -x c++ -O2 -fstrict-enums"
else
    skip "enums as enums: no clang"
fi
rm -rf "$out/hostile"

# tests/host/run.sh reports how each host program ends, also when it dies before it has printed anything.
programs=(test_host test_threads test_left_out test_mark test_block)
host_programs() {
    mkdir -p "$out/host"
    for program in "${programs[@]}"; do
        printf '#!/bin/bash\necho "[  PASSED  ] 3 test(s)."\n' >"$out/host/$program"
        chmod +x "$out/host/$program"
    done
    echo "$2" >>"$out/host/$1"
}
host_programs test_block "" && accept "programs that pass" tests/host/run.sh "$out/host" "${programs[@]}"
host_programs test_threads 'echo "[  FAILED  ] 2 test(s), listed below:"; exit 2' &&
    reject "a program with failures" "host: 15 passed, 2 failed" tests/host/run.sh "$out/host" "${programs[@]}"
host_programs test_threads 'kill -SEGV $$' &&
    reject "a program that dies" "host: 15 passed, 1 failed" tests/host/run.sh "$out/host" "${programs[@]}"

# Faults in the library, each for one group of the host tests to find. Only the library is compiled for each, without
# the embedded kernels, which take most of the time. The kernels are compiled once, like the tests, which know the
# header as it is. For faults of unpacking, its tests are compiled instead of the library. The tests of marks have a
# library of their own.
library=tests/host/gpuloss_impl.c
host_objects=$(realpath "$out")/objects once=$(realpath "$out")/once
hand_written=$once/gpuloss.h
export library host_objects once hand_written
mkdir -p "$host_objects/sound"
bash tests/unpack_once/run.sh gpuloss.h "$once" || exit 2
gcc -std=gnu11 -w -c $library -o "$host_objects/sound/library.o" || exit 2
make -s -f tests/host/host.mk --eval 'list: ; @printf "%s\n" $(HOST_SOURCES)' list | grep -vx $library |
    xargs -P "$(nproc)" -I{} bash -c 'gcc -std=gnu11 -w -c {} -o "$host_objects/$(basename {} .c).o"' || exit 2

# mutant FOLDER GROUP SED: builds the host tests on gpuloss.h changed so, and runs that group, or all. Only a sanitizer
# finds accesses out of bounds. Without a sanitizer the other faults build faster. The time limit is for programs that
# do not end.
mutant() {
    local flags=-DUNPACKED_ONCE sources=$library objects=("$host_objects"/*.o "$once/images.o")
    case $2 in
    unpack)
        flags='-fsanitize=address,undefined -fno-sanitize-recover=all'
        sources=tests/host/test_unpack.c objects=("${objects[@]/*test_unpack.o/}" "$host_objects/sound/library.o") ;;
    specialise)
        flags='-fsanitize=address,undefined -fno-sanitize-recover=all'
        sources="$library tests/host/test_specialise.c" objects=("${objects[@]/*test_specialise.o/}") ;;
    failures | '') flags='-O1 -DUNPACKED_ONCE' ;;
    esac
    mkdir -p "$1/tests" && cp -r tests/host "$1/tests/" && ln -s "$PWD/ptx" "$1/ptx" &&
        sed "$3" "$hand_written" >"$1/gpuloss.h" && cd "$1" || return 1
    { gcc -std=gnu11 -w $flags -o test_host $sources ${objects[*]} -lcmocka -ldl -lpthread &&
        CMOCKA_TEST_ABORT=1 timeout 600 ./test_host ${2:+"$2"}; } >log 2>&1 # until the first failure
    echo $? >status
}
export -f mutant
grep -v '^#' tests/bad/mutations >"$out/mutations"
{ echo "none||"; cat "$out/mutations"; } | awk -F '|' -v out="$out" '{
    sed = $0
    sub(/^[^|]*\|[^|]*\|/, "", sed)
    printf "%s/mutant%d%c%s%c%s%c", out, NR - 1, 0, $2, 0, sed, 0
}' | xargs -0 -n 3 -P "$(nproc)" bash -c 'mutant "$0" "$1" "$2"'
if [ "$(cat "$out/mutant0/status")" = 0 ]; then
    pass
else
    grep -E 'error|ERROR|FAILED|LINE' "$out/mutant0/log" >"$out/log"
    fail "gpuloss.h as it is" "$out/log"
fi
n=0
while IFS='|' read -r name group _; do
    n=$((n + 1))
    if cmp -s "$hand_written" "$out/mutant$n/gpuloss.h"; then
        not_planted "$name"
    elif ! grep -q 'Running' "$out/mutant$n/log"; then
        fail "does not run: $name" "$out/mutant$n/log"
    elif [ "$(cat "$out/mutant$n/status")" = 0 ]; then
        fail "accepted by ${group:-every group}: $name"
    else
        pass
    fi
done <"$out/mutations"
rm -rf "$out"/mutant* "$host_objects" "$once"

report bad
