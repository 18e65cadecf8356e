#!/bin/bash
# Programs that are hard on gpuloss.h: the options of their compilers, their macros, changes of the file by editors and
# transfers, small stacks and plugins.
#     tests/hostile/run.sh [HEADER [GROUP [BUILD]]]     another header than gpuloss.h, one group of tests, and one build of the
#                                                       options ("gcc -x c -Ofast")
# Prints a line a group, and at the end how much passed, failed and was skipped. Scratch in $BUILD/hostile.
# QUICK=1 compiles with the options only that have found faults, and takes fewer random descs.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
header=${1:-gpuloss.h} groups=${2:-compilers macros bytes hosts options} build=${3:-}
out=${BUILD:-build}/hostile
rm -rf "$out" && mkdir -p "$out/tests" "$out/gen" && out=$(realpath "$out") || exit 2
# The sources include ../../gpuloss.h: beside a copy of them, that is the tested header.
cp -r tests/hostile tests/host "$out/tests/" && cp gen/facts.h "$out/gen/" && cp "$header" "$out/gpuloss.h" &&
    bash tests/unpack_once/run.sh "$header" "$out/once" 1 && cd "$out" || exit 2
src=tests/hostile
descs=100000
options="-O0 -O3 -fshort-enums -fno-strict-aliasing -funsigned-char -ftrapv -O2_-flto -O2_-ffast-math -Ofast
    -O2_-ffinite-math-only -O2_-fstrict-enums -O1_-fsanitize=undefined_-fno-sanitize-recover=all"
if [ -n "${QUICK:-}" ]; then
    descs=20000 options="-Ofast -O2_-fstrict-enums ${options##* }"
fi

drivers="gcc g++"
command -v clang++ >/dev/null && drivers="gcc g++ clang clang++" || skip "no clang"
language_of() {
    case $1 in
    *++) echo c++ ;;
    *) echo c ;;
    esac
}

# The header does not compile, with a message, where kernels would have other addresses or structs.
compilers() {
    local driver
    for driver in $drivers; do
        alone() { $driver -x "$(language_of "$driver")" -fsyntax-only "$@" -DGPULOSS_STATIC -include gpuloss.h - </dev/null; }
        accept "$driver" alone
        # Freestanding: there may be no headers of a C library of 32 bits.
        reject "$driver: 32 bits" 'compile for 64 bits' alone -m32 -ffreestanding
        reject "$driver: packed structs" 'gpulossi_scratch_bytes' alone -fpack-struct
    done
}

# The header sets aside macros of the program whose names it uses, and restores them at its end. Names of public fields
# can't be protected, so the list has none of them. A macro that renames a field renames it for the program, too.
macros() {
    local driver fields words=$src/words
    {
        sed 's/.*/#define & 1.5 "nonsense" ]/' $words
        echo '#include "gpuloss.h"'
        sed 's/.*/#ifndef &\n#error & is gone\n#endif/' $words
        echo 'static const char *const words_again[] = {'
        sed 's/.*/WORD(&)/' $words
        echo '};'
    } >words.c
    fields=$(gcc -fpreprocessed -dD -E -P gpuloss.h 2>/dev/null | sed -n '/^typedef struct gpuloss_/,/^}/p' |
        grep -oE '\b[a-z_]+(\[[0-9]+\])?;' | grep -oE '[a-z_]+' | sort -u)
    {
        sed 's/.*/#define & renamed_&/' <<<"$fields"
        echo '#include "gpuloss.h"'
    } >fields.c
    accept "at least 200 words" [ "$(wc -l <$words)" -ge 200 ]
    accept "no word is a public field" [ -z "$(grep -xF "$fields" $words)" ]
    for driver in $drivers; do
        with() { $driver -w -x "$(language_of "$driver")" -fsyntax-only -DGPULOSS_STATIC '-DWORD(word)=#word,' -I. "$1"; }
        accept "$driver: macros of many words" with words.c
        accept "$driver: macros that rename public fields" with fields.c
    done
}

# The bytes of the file. Line ends of Windows and a byte order mark change nothing. A truncated header does not compile,
# whether it ends in the hand-written part or in the embedded block.
bytes() {
    local driver total at size
    sed 's/$/\r/' gpuloss.h >crlf.h
    { printf '\xef\xbb\xbf' && cat gpuloss.h; } >bom.h
    for driver in $drivers; do
        runs() {
            $driver -w -x "$(language_of "$driver")" -DGPULOSS_STATIC -include "$1" -o bytes - -ldl -lpthread <<<'
                int main(void) {
                    gpuloss_kl_div_desc desc = GPULOSS_KL_DIV_DEFAULTS;
                    return gpuloss_kl_div(NULL, &desc, NULL) != GPULOSS_ERROR_INVALID_ARGUMENT;
                }' && ./bytes
        }
        accept "$driver: as it is" runs gpuloss.h
        accept "$driver: line ends of Windows" runs crlf.h
        accept "$driver: a byte order mark" runs bom.h
    done
    total=$(wc -c <gpuloss.h)
    for at in 1 3 6 12 18 24 30 40 50 60 70 80 90 97 99; do
        size=$((total * at / 100))
        head -c $size gpuloss.h >cut.h
        for driver in ${drivers%% *}; do
            reject "$driver: cut off after $size bytes" 'error:' runs cut.h
        done
    done
}

# Hosts with threads of small stacks, and with plugins that they unload. They load kernels as programs do, and have all symbols
# bound before: the dynamic linker takes 2 KiB of the stack.
hosts() {
    local level
    for level in -O0 -O2; do
        compile_hosts() {
            gcc -std=gnu11 -w $level -g -Wl,-z,now $src/hosts.c tests/host/fake_{driver,kernels}.c -o hosts -ldl -lpthread && gcc -std=c99 -w $level -shared -fPIC $src/plugin.c -o plugin.so -ldl
        }
        accept "hosts compile, $level" compile_hosts
        accept "small stacks, $level" ./hosts stack
        accept "a plugin that is unloaded, $level" ./hosts plugin ./plugin.so
    done
}

# Builds and runs one source, on a stand-in that is built once. Its output is in NAME.said.
say() {
    local name=$1
    shift
    "$@" -w -DUNPACKED_ONCE "once/$src/descs.c" "once/$src/fields.c" -x none once/images.o fake_driver.o fake_kernels.o -o "$name" -ldl -lpthread \
        >"$name.log" 2>&1 && "./$name" $descs >"$name.said" 2>"$name.log" ||
        grep -m 1 -E 'error|misused|leaks' "$name.log" >"$name.said"
}
export -f say
export src descs

# Under all options the same calls have the same messages and launches.
options() {
    local driver option i builds=()
    for i in fake_driver fake_kernels; do
        gcc -std=gnu11 -O1 -w -c tests/host/$i.c -o $i.o || exit 2
    done
    for driver in $drivers; do
        for option in $options; do
            [ "$(language_of "$driver") $option" = "c -O2_-fstrict-enums" ] && continue # there is none in C
            builds+=("$driver -x $(language_of "$driver") ${option//_/ }")
        done
    done
    [ -z "$build" ] || builds=("$build")
    say basic gcc -O1
    accept "calls under -O1: $(cat basic.said)" grep -q ' accepted, ' basic.said
    for i in "${!builds[@]}"; do
        printf '%s\0' "build$i ${builds[i]}"
    done | xargs -0 -P "$(nproc)" -I{} bash -c 'say {}'
    for i in "${!builds[@]}"; do
        if cmp -s basic.said "build$i.said"; then
            pass
        else
            fail "${builds[i]} says $(cat "build$i.said") instead of $(cat basic.said)"
        fi
    done
    cat basic.said
}

for group in $groups; do
    before=$((passed + failed))
    $group
    echo "$group: $((passed + failed - before)) checks"
done
report hostile
