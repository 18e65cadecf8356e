#!/bin/bash
# run.sh HEADER FOLDER: a library that unpacks each text once, for programs that load the same kernels again and again.
# FOLDER gets gpuloss.h, which does so where UNPACKED_ONCE is defined, and is compiled quickly, since the embedded block is
# in images.o instead. Copies of the sources beside it include that header.
set -eu
header=$1 folder=$2
mkdir -p "$folder/tests" "$folder/gen"
cp -r tests/host tests/hostile tests/numerics tests/unpack_once "$folder/tests/"
cp gen/facts.h "$folder/gen/"
images='const gpulossi_image \*gpulossi_image_of('
sed -e '/gpuloss: begin of the generated block/,/gpuloss: end of the generated block/d' \
    -e "s/^static $images/extern $images/" \
    -e '/^static void gpulossi_replace(/i #ifdef UNPACKED_ONCE' \
    -e '/^static void gpulossi_replace(/i int unpacked_once(const gpulossi_image *image, char *text);' \
    -e '/^static void gpulossi_replace(/i #define gpulossi_unpack_text unpacked_once' \
    -e '/^static void gpulossi_replace(/i #endif' "$header" >"$folder/gpuloss.h"
sed "s/^static $images/$images/" "$header" >"$folder/images.h"
gcc -O2 -w -DGPULOSS_STATIC -include "$folder/images.h" -c "$folder/tests/unpack_once/unpack_once.c" -o "$folder/images.o"
