#!/bin/bash
# install.sh [MAKEFILE]: tests that make install installs the files that a program needs, and that make uninstall
# removes them. Also tests the library for other languages of make shared.
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/check.sh
makefile=${1:-Makefile}
out=${BUILD:-build}/install
rm -rf "$out" && mkdir -p "$out" && out=$(realpath "$out") || exit 2
prefix=/opt/gpuloss
installed() { (cd "$out/tree" && find . -type f | sort); }
run() { make -s -f "$makefile" "$1" DESTDIR="$out/tree" PREFIX=$prefix; }

accept "make install" run install
accept "the header is installed" cmp gpuloss.h "$out/tree$prefix/include/gpuloss.h"
accept "two files are installed" [ "$(installed | wc -l)" = 2 ]
pc=$out/tree$prefix/share/pkgconfig/gpuloss.pc
version=$(gcc -E -P -x c - <<<'#include "gpuloss.h"
GPULOSS_VERSION_MAJOR.GPULOSS_VERSION_MINOR.GPULOSS_VERSION_PATCH' -I. | tail -n 1 | tr -d ' ')
accept "the version is $version" grep -qx "Version: $version" "$pc"
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_SYSROOT_DIR=$out/tree PKG_CONFIG_PATH=${pc%/*}
    compiles() {
        # shellcheck disable=SC2046
        printf '#define GPULOSS_IMPLEMENTATION\n#include <gpuloss.h>\nint main(void) { return (int)gpuloss_group_of(GPULOSS_OK); }\n' |
            gcc -o "$out/program" -x c - $(pkg-config --cflags --libs gpuloss) && "$out/program"
    }
    accept "a program compiles with pkg-config's flags" compiles
else
    skip "a program that pkg-config compiles: it is not installed"
fi
accept "make uninstall" run uninstall
accept "nothing stays" [ -z "$(installed)" ]

accept "make shared" make -s -f "$makefile" shared BUILD="$out"
soname=libgpuloss.so.${version%.*}
accept "the soname is $soname" grep -qF "soname: [$soname]" <(readelf -d "$out/libgpuloss.so")
exported() { nm -D --defined-only "$out/libgpuloss.so" | awk '{ print $3 }'; }
accept "it exports nothing but public functions" [ -z "$(exported | grep -v '^gpuloss_')" ]
links() {
    printf '#include <gpuloss.h>\nint main(void) { return (int)gpuloss_group_of(GPULOSS_OK); }\n' |
        gcc -DGPULOSS_API=extern -o "$out/linked" -x c - -I. -L"$out" -lgpuloss && LD_LIBRARY_PATH=$out "$out/linked"
}
accept "a program links with it" links

report install
