#!/bin/bash
# Compiles every way of using gpuloss.h without one warning, and looks at what the objects define.
#     tests/compile/run.sh [HEADER]     HEADER: another one instead of gpuloss.h, for the negative cases
# Prints a line a group, and at the end how much passed, failed and was skipped. Scratch in $BUILD/compile.
# QUICK=1 compiles the first few of each group only, and of each embedded kernel one line.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/compile/strict.sh
header=${1:-gpuloss.h}
out=${BUILD:-build}/compile
rm -rf "$out" && mkdir -p "$out/tests/compile" && out=$(realpath "$out") || exit 2
# The sources include ../../gpuloss.h: beside a copy of them, that is the tested header.
cp tests/compile/*.[ch] tests/compile/*.cpp tests/compile/names.sh "$out/tests/compile/" || exit 2
cp "$header" "$out/gpuloss.h" || exit 2
cd "$out" || exit 2
src=tests/compile
# The same with one line of each embedded kernel. Compilers spend most of their time on the embedded kernels, which are
# all alike. If nothing is compiled, only the hand-written part differs from case to case.
mkdir short && cp -r tests short/ && awk '!/^0x/ || !before { print } { before = /^0x/ }' gpuloss.h >short/gpuloss.h || exit 2
[ -z "${QUICK:-}" ] || cp short/gpuloss.h gpuloss.h || exit 2
short=short/tests/compile

# Compilations are queued one a line, and run in parallel, one for each processor.
queue() { echo $* >>queued; }
run_queue() {
    local count failures
    [ -z "${QUICK:-}" ] || sed -i '5,$d' queued
    count=$(wc -l <queued)
    : >wrong
    tr '\n' '\0' <queued |
        xargs -0 -P "$(nproc)" -I{} \
            bash -c 'if ! log=$({} 2>&1); then echo "  FAILED: {}"; head -12 <<<"$log"; fi' >wrong
    failures=$(grep -c '^  FAILED' wrong)
    sed -E '/FAILED/s/ -W[^ ]+//g' wrong | head -60
    passed=$((passed + count - failures)) failed=$((failed + failures))
    rm queued
    echo "$1: $((count - failures)) of $count"
}

compilers=gcc
command -v clang >/dev/null && compilers="gcc clang" || skip "no clang"
standards="c99 c11 c17 c++98 gnu++98 c++11 c++17 c++20"
I=-DGPULOSS_IMPLEMENTATION
modes=("" "$I" "-DGPULOSS_STATIC" "-DTWICE" "$I -DTWICE" "-DGPULOSS_STATIC -DTWICE" "-DDECLARATIONS_FIRST"
    "-DDECLARATIONS_FIRST -DTWICE")
switches="NO_CROSS_ENTROPY NO_KL_DIV NO_F32 NO_F64 NO_F16 NO_BF16"
all_off=$(printf -- '-DGPULOSS_%s ' $switches)

for cc in $compilers; do
    for standard in $standards; do
        for mode in "${modes[@]}"; do
            queue "$cc $(flags_of "$standard") -fsyntax-only $mode $short/mode.c"
        done
    done
done
run_queue "warnings, by compiler, standard and mode"

# Some warnings come from the optimiser.
for cc in $compilers; do
    for level in -O0 -O2 -O3; do
        for standard in c99 c++11; do
            queue "$cc $(flags_of $standard) $level $I -c -o /dev/null $src/mode.c"
            queue "$cc $(flags_of $standard) $level -DGPULOSS_STATIC -c -o /dev/null $src/mode.c"
        done
    done
done
queue "gcc $(flags_of c99) -Wc++-compat -fsyntax-only $short/mode.c"
queue "gcc $(flags_of c99) -Wc++-compat -fsyntax-only $I $short/mode.c"
run_queue "warnings of the optimiser and -Wc++-compat"

for cc in $compilers; do
    for standard in c99 c++11 c++20; do
        for switch in $switches; do
            queue "$cc $(flags_of $standard) -fsyntax-only $I -DGPULOSS_$switch $short/mode.c"
        done
        queue "$cc $(flags_of $standard) -O2 -c -o /dev/null $I $all_off $src/mode.c"
        queue "$cc $(flags_of $standard) -O2 -c -o /dev/null -DGPULOSS_STATIC $all_off $src/mode.c"
    done
done
run_queue "warnings, by what is left out"

orders="-DSTUBS_BEFORE -DSTUBS_AFTER"
if cuda_headers; then
    cuda=1 orders="$orders -DCUDA_BEFORE -DCUDA_AFTER"
else
    cuda=0 && skip "include orders with cuda.h: no CUDA toolkit found"
fi
for cc in $compilers; do
    for standard in c99 c17 c++11 c++20; do
        for order in $orders; do
            for mode in "" "$I" "-DGPULOSS_STATIC" "-DDECLARATIONS_FIRST"; do
                queue "$cc $(flags_of "$standard") -fsyntax-only $order $mode $short/mode.c"
            done
        done
    done
done
run_queue "include orders, handles without a cast"

before=$((passed + failed))
for decls in c c++; do
    for impl in c c++; do
        link() {
            rm -f program && gcc -x $decls -c -o decls.o $src/program.c &&
                { [ -e "unoptimised.$impl.o" ] || gcc -x $impl -c -o "unoptimised.$impl.o" $src/implementation.c; } &&
                g++ -o program decls.o "unoptimised.$impl.o" -ldl -lpthread
        }
        accept "declarations in $decls, implementation in $impl: links" link
        accept "declarations in $decls, implementation in $impl: runs" ./program
    done
done
accept "C alone needs no C++ library" gcc -o program -x c $src/program.c -x c $src/implementation.c -ldl
echo "linked: $((passed + failed - before)) checks"

before=$((passed + failed))
for standard in c99 c++98 c++11; do
    compile_defaults() { gcc $(flags_of $standard) -o defaults $src/defaults.c; }
    accept "the defaults compile, $standard" compile_defaults
    accept "the defaults are what they are meant to be, $standard" ./defaults
done
echo "defaults: $((passed + failed - before)) checks"

before=$((passed + failed))
functions=$(sed '/^#endif .* GPULOSS_H /q' gpuloss.h | grep -oE '^GPULOSS_API.* \*?gpuloss_[a-z_]+\(' |
    grep -oE 'gpuloss_[a-z_]+\(' | tr -d '(' | sort)
globals() { nm --defined-only -g "$@" | awk '{ print $3 }' | sort; }
defines_nothing() { [ -f "$1" ] && [ -z "$(globals "$1")" ]; }
are_functions() { [ -n "$functions" ] && diff <(echo "$functions") -; }
milliseconds() {
    local start
    start=$(date +%s%N)
    "$@" && echo $((($(date +%s%N) - start) / 1000000))
}
declare -A with
for language in c c++; do
    rm -f "optimised.$language.o" static.o shared.so
    with[$language]=$(milliseconds gcc -x $language -O2 -c -o "optimised.$language.o" $src/implementation.c)
    gcc -x $language -O2 -DGPULOSS_STATIC -c -o static.o $src/implementation.c
    accept "$language: the public functions and nothing else is defined" are_functions < <(globals "optimised.$language.o")
    accept "$language: GPULOSS_STATIC defines nothing" defines_nothing static.o
    gcc -x $language -O2 -shared -fPIC -fvisibility=hidden -DGPULOSS_API='__attribute__((visibility("default")))' \
        -o shared.so $src/implementation.c
    accept "$language: a shared object exports the public functions" are_functions < <(globals -D shared.so)
done
plugins() {
    local plugin
    for plugin in first second; do
        gcc -shared -fPIC -DPLUGIN=$plugin "$@" -o $plugin.so $src/plugin.c || return 1
    done
    gcc -o plugins $src/plugins.c -ldl && ./plugins ./first.so ./second.so
}
accept "plugins with a gpuloss each" plugins
reject "plugins that export theirs" "share one gpuloss" plugins -DGPULOSS_API=extern
accept "macros and names at file scope begin with gpuloss" bash $src/names.sh gpuloss.h names
echo "names: $((passed + failed - before)) checks"

before=$((passed + failed))
data() { nm "$1" | awk '$2 ~ /^[rRdD]$/ { print $3 }'; }
full=unoptimised.c.o # as it was linked
# compile_with SWITCH: compiles SWITCH.o, once.
compile_with() { [ -e "$1.o" ] || gcc -O0 -DGPULOSS_$1 -c -o "$1.o" $src/implementation.c; }
# absent SWITCH PATTERN: data of that name is there without the switch and gone with it, the functions stay.
absent() {
    compile_with $1 && data $full | grep -qE "$2" && ! data $1.o | grep -E "$2" && are_functions < <(globals $1.o) &&
        [ "$(stat -c %s $1.o)" -lt "$(stat -c %s $full)" ]
}
accept "GPULOSS_NO_CROSS_ENTROPY" absent NO_CROSS_ENTROPY '^gpulossi_cross_entropy_'
accept "GPULOSS_NO_KL_DIV" absent NO_KL_DIV '^gpulossi_kl_div_'
for dtype in f32 f64; do
    accept "GPULOSS_NO_${dtype^^}" absent NO_${dtype^^} "^gpulossi_.*_$dtype\$"
done
# Data that both losses use stays with either one, and so do the texts that others are unpacked after.
present() { compile_with $1 && data $1.o | grep -qE "$2"; }
accept "what serves every loss stays, GPULOSS_NO_CROSS_ENTROPY" present NO_CROSS_ENTROPY '^gpulossi_common_'
accept "what serves every loss stays, GPULOSS_NO_KL_DIV" present NO_KL_DIV '^gpulossi_common_'
for dtype in F16 BF16; do
    accept "what other types need stays, GPULOSS_NO_$dtype" present NO_$dtype '^gpulossi_.*_any16$'
done
echo "left out means gone: $((passed + failed - before)) checks"

before=$((passed + failed))
if [ $cuda = 1 ]; then
    accept "the driver's prototypes" \
        g++ -std=c++11 -DGPULOSS_STATIC -include gpuloss.h -o prototypes $src/prototypes.cpp -ldl
    accept "the driver's symbols" ./prototypes
else
    skip "the driver's prototypes: no CUDA toolkit found"
fi
echo "against cuda.h: $((passed + failed - before)) checks"

if command -v x86_64-w64-mingw32-gcc >/dev/null; then
    for standard in c99 c17 c++11 c++17; do
        for mode in "" "$I" "-DGPULOSS_STATIC" "-DDECLARATIONS_FIRST" "$I -DWINDOWS_BEFORE" "$I -DWINDOWS_AFTER"; do
            queue "x86_64-w64-mingw32-gcc $(flags_of $standard) -fsyntax-only $mode $short/mode.c"
        done
    done
    queue "x86_64-w64-mingw32-gcc -O2 -o program.exe $I -include gpuloss.h $src/program.c"
    run_queue "Windows, by mingw-w64"
else
    skip "Windows: no mingw-w64 (x86_64-w64-mingw32-gcc)"
fi

# The header's costs: the sizes are close to their limits, and the times are printed only, since other work delays them.
bytes=$(size optimised.c.o | awk 'NR == 2 { print $1 + $2 + $3 }')
without=$(milliseconds gcc -O2 -c -o decls.o $src/program.c)
text_bytes=$(wc -c <gpuloss.h)
accept "gpuloss.h is at most 1209 KiB" [ "$text_bytes" -le 1238016 ]
accept "the implementation takes at most 431 KiB" [ "$bytes" -le 441344 ]
echo "cost: $text_bytes bytes of text, $bytes bytes, implementation ${with[c]} ms, declarations $without ms"

report compile
