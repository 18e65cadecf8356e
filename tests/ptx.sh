#!/bin/bash
# Compiles the kernels anew, and compares them with the committed files: ptx/, MANIFEST, the block in gpuloss.h and the
# PTX of the benchmark. Needs the toolkit that MANIFEST names.
#     tests/ptx.sh [FOLDER]     FOLDER: one that has been generated already, to compare only
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/check.sh
build=${BUILD:-build}
out=$build/ptx
rm -rf "$out" && mkdir -p "$out" || exit 2

# Names the installed toolkit like MANIFEST.
toolkit() {
    local nvcc lzma
    nvcc=$(nvcc --version | sed -n 's/.*release .*, V//p')
    lzma=$(echo 'LZMA_VERSION_STRING' | ${CC:-cc} -E -P -include lzma.h -x c - 2>/dev/null | tail -1 | tr -d '" ')
    echo "# toolkit: nvcc $nvcc, from compute_75; liblzma ${lzma:-that is not installed}"
}

# Checked without the toolkit: the block is packed from ptx/, by the liblzma of MANIFEST.
packed() { make -s block BUILD="$build" PTX_OUTPUT="$out/packed" && diff "$out/packed/gpuloss.h" gpuloss.h; }
packed_is_current() {
    local here
    here=$(toolkit 2>/dev/null)
    [ "${here##*; }" != "${wanted##*; }" ] || accept "the block is packed from ptx/" packed
}

folder=${1:-$out/generated}
wanted=$(grep '^# toolkit: ' ptx/MANIFEST)
if [ $# = 0 ] && ! command -v nvcc >/dev/null; then
    skip "ptx is current: no nvcc on the PATH"
    packed_is_current
elif [ $# = 0 ] && [ "$(toolkit)" != "$wanted" ]; then
    skip "ptx is current: MANIFEST names another toolkit (${wanted#\# toolkit: }) than is here ($(toolkit | cut -c12-))"
    packed_is_current
else
    [ $# = 1 ] || accept "make ptx" make -s ptx BUILD="$build" PTX_OUTPUT="$folder"
    accept "ptx/ and its MANIFEST" diff -r "$folder/ptx" ptx
    accept "the block in gpuloss.h" diff "$folder/gpuloss.h" gpuloss.h
    accept "the PTX of the benchmark" diff "$folder/tests/bench/ceilings.ptx" tests/bench/ceilings.ptx
fi
report ptx
