#!/bin/bash
# run.sh HEADER FOLDER [TIMES]: a library that unpacks each text once, for programs that load the same kernels again and
# again. It specialises a text for the same words TIMES times only, usually 8: the threads of test_threads.c are as many, and
# all of them do so beside each other.
# FOLDER gets gpuloss.h, which does so where UNPACKED_ONCE is defined, and is compiled quickly, since the embedded block is
# in images.o instead. Copies of the sources beside it include that header.
set -eu
header=$1 folder=$2 times=${3:-8}
mkdir -p "$folder/tests" "$folder/gen"
cp -r tests/host tests/hostile tests/numerics tests/unpack_once "$folder/tests/"
cp gen/facts.h "$folder/gen/"
images='const gpulossi_image \*gpulossi_image_of('
sed -e '/gpuloss: begin of the generated block/,/gpuloss: end of the generated block/d' \
    -e "s/^static $images/extern $images/" \
    -e '/^static size_t gpulossi_unpacked_bytes(/i #ifdef UNPACKED_ONCE' \
    -e '/^static size_t gpulossi_unpacked_bytes(/i int unpacked_once(gpulossi_lzma *z, const gpulossi_image *image);' \
    -e '/^static size_t gpulossi_unpacked_bytes(/i #define gpulossi_unpack unpacked_once' \
    -e '/^static size_t gpulossi_unpacked_bytes(/i #endif' \
    -e '/^static void gpulossi_replace(/e cat tests/unpack_once/text_once.h' "$header" >"$folder/gpuloss.h"
sed "s/^static $images/$images/" "$header" >"$folder/images.h"
# Its loops stay loops: a sanitizer would check calls of memcpy() instead.
gcc -O3 -w -fno-tree-loop-distribute-patterns -DTIMES_UNPACKED="$times" -DGPULOSS_STATIC -include "$folder/images.h" \
    -c "$folder/tests/unpack_once/unpack_once.c" -o "$folder/images.o"
