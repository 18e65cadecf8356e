#!/bin/bash
# run.sh [LANGUAGE...]: the programs in other languages, on the interpreter, with a library of another version and
# without a driver. Also checks the declarations of Rust against gpuloss.h. LANGUAGE: rust or go, and both without one.
# RUSTC and GO may name other compilers. Scratch in $BUILD/languages.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
build=$(realpath -m "${BUILD:-build}")
out=$build/languages
rm -rf "$out" && mkdir -p "$out/other_version" "$out/no_driver" || exit 2
make -s BUILD="$build" "$build/interpreter/libcuda.so.1" && make -s BUILD="$out" shared "$out/balance.so" || exit 2
src=examples/languages

# The same library, but of another version.
sed -E 's/^(#define GPULOSS_VERSION_PATCH) [0-9]+/\1 99/' gpuloss.h >"$out/other_version/gpuloss.h"
gcc -O0 -fPIC -shared -DGPULOSS_IMPLEMENTATION -DGPULOSS_API='__attribute__((visibility("default"))) extern' -x c \
    "$out/other_version/gpuloss.h" -o "$out/other_version/$(readlink "$out/libgpuloss.so")" -ldl || exit 2
# A driver library that cannot be loaded, on a machine that has one too.
: >"$out/no_driver/libcuda.so.1"

interpreted() { env LD_LIBRARY_PATH="$out:$build/interpreter" "$@"; }
# Three comparisons, of which each passes.
computes() {
    exits 0 'KL divergence' interpreted "$1" && [ "$(grep -c ': pass$' "$out/said")" = 3 ] && ! grep FAIL "$out/said"
}
# program LANGUAGE: the checks of $out/LANGUAGE.
program() {
    accept "$1: it computes" computes "$out/$1"
    accept "$1: it frees what it has allocated" \
        exits 0 'balance: 0 arrays and 0 streams' interpreted env LD_PRELOAD="$out/balance.so" "$out/$1"
    accept "$1: without a driver" \
        exits 2 'NVIDIA driver library could not be loaded' env LD_LIBRARY_PATH="$out:$out/no_driver" "$out/$1"
    accept "$1: with a library of another version" \
        exits 3 'compiled with another gpuloss.h' env LD_LIBRARY_PATH="$out/other_version:$build/interpreter" "$out/$1"
}

declared() { awk -v to="$1" -f tests/languages/declarations.awk $src/gpuloss_sys.rs; }
# The fields of a struct in gpuloss.h.
fields_of() {
    awk -v name="$1" '
        $0 == "typedef struct " name " {" { within = 1; next }
        /^}/ { within = 0 }
        within && sub(/\(\*/, "\n") { sub(/.*\n/, ""); sub(/\).*/, ""); print; next }
        within { sub(/(\[.*\])?;$/, ""); sub(/.*[ *]/, ""); print }' "$out/preprocessed.h"
}
types() {
    { echo '#include <gpuloss.h>' && declared c; } >"$out/types.c" &&
        [ "$(grep -c '^_Static_assert' "$out/types.c")" -gt 100 ] && [ "$(grep -c '^extern' "$out/types.c")" -gt 10 ] &&
        gcc -std=c11 -Wall -Wextra -Werror -DGPULOSS_API=extern -I. -fsyntax-only "$out/types.c"
}
# Each constant, each size of a struct, and each field with its offset and size, from both compilers.
layout() {
    local struct field constant
    gcc -E -P gpuloss.h >"$out/preprocessed.h" || return 1
    {
        echo '#include "layout.h"' && echo 'int main(void) {'
        for constant in $(declared constants); do
            echo "CONSTANT($constant)"
        done
        for struct in $(declared structs); do
            echo "STRUCT($struct)"
            for field in $(fields_of "$struct"); do
                echo "FIELD($struct, $field)"
            done
        done
        echo 'return 0; }'
    } >"$out/layout.c"
    { echo "#[path = \"$PWD/$src/gpuloss_sys.rs\"] mod gpuloss_sys; use gpuloss_sys::*;" && declared rust; } >"$out/layout.rs"
    gcc -I. -Itests/languages -o "$out/layout_c" "$out/layout.c" && "$RUSTC" -o "$out/layout_rust" "$out/layout.rs" &&
        "$out/layout_c" | sort >"$out/layout_c.txt" && "$out/layout_rust" | sort >"$out/layout_rust.txt" &&
        [ "$(wc -l <"$out/layout_c.txt")" -gt 100 ] && diff "$out/layout_c.txt" "$out/layout_rust.txt"
}

test_rust() {
    accept "rust: the types are those of gpuloss.h" types
    if ! command -v "$RUSTC" >/dev/null; then
        skip "the program in Rust, and the layout of its structs: there is no $RUSTC"
        return
    fi
    accept "rust: the layout and the constants are those of gpuloss.h" layout
    accept "rust: it compiles" \
        "$RUSTC" -O -D warnings -L "$out" -l gpuloss $src/losses.rs -o "$out/rust"
    accept "rust: it compiles as Rust of 2021" \
        "$RUSTC" --edition 2021 -D warnings --emit=metadata $src/losses.rs -o "$out/rust.rmeta"
    program rust
    if command -v rustfmt >/dev/null; then
        accept "rust: formatting" rustfmt --check $src/losses.rs
    else
        skip "formatting of Rust: there is no rustfmt"
    fi
}

formatted_go() { [ -z "$(gofmt -l $src)" ]; }
test_go() {
    if ! command -v "$GO" >/dev/null; then
        skip "the program in Go: there is no $GO"
        return
    fi
    # Nothing is fetched, and the packages that Go compiles stay in $BUILD.
    export GOCACHE=${GOCACHE:-$build/go-cache} GOPROXY=off GOTOOLCHAIN=local CGO_LDFLAGS="-L$out"
    accept "go: vet" "$GO" vet $src/losses.go
    accept "go: it compiles" "$GO" build -o "$out/go" $src/losses.go
    program go
    if command -v gofmt >/dev/null; then
        accept "go: formatting" formatted_go
    else
        skip "formatting of Go: there is no gofmt"
    fi
}

RUSTC=${RUSTC:-rustc} GO=${GO:-go}
[ $# -gt 0 ] || set -- rust go
for language in "$@"; do
    case $language in
    rust | go) "test_$language" ;;
    *) echo "run.sh [rust] [go] (got $language)" && exit 2 ;;
    esac
done
report languages
