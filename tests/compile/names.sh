#!/bin/bash
# names.sh HEADER SCRATCH: checks that every macro and every name at file scope of HEADER begins with gpuloss or
# GPULOSS. Struct tags behind CUDA's own handles are exempt. Found by comparing with a file that has the same system
# headers only.
set -u
header=$1 out=$2 here=$(dirname "$0")
mkdir -p "$out"
echo "#define GPULOSS_IMPLEMENTATION
#include \"$(realpath "$header")\"" >"$out/with.c"
cp "$here/headers.c" "$out/without.c"
for f in with without; do
    gcc -dM -E -I "$here" "$out/$f.c" | awk '{ sub(/\(.*/, "", $2); print $2 }' | sort -u >"$out/$f.macros" || exit 2
    # Unused types stay in the debug information; depth 1 is file scope, enumerators lie one deeper.
    gcc -g -gdwarf-4 -O0 -fno-eliminate-unused-debug-types -fno-eliminate-unused-debug-symbols -c -o "$out/$f.o" \
        "$out/$f.c" || exit 2
    readelf --debug-dump=info --wide "$out/$f.o" 2>"$out/readelf.log" | awk '
        /^ *<[0-9a-f]+><[0-9a-f]+>: Abbrev/ {
            split($1, part, /[<>]/); depth = part[2]
            wanted = /DW_TAG_enumerator/ || (depth == 1 && !/DW_TAG_base_type/)
        }
        wanted && /DW_AT_name/ { print $NF; wanted = 0 }' | sort -u >"$out/$f.names"
done
[ "$(grep -c '^gpuloss_create_versioned$' "$out/with.names")" = 1 ] && grep -q '^GPULOSS_OK$' "$out/with.names" &&
    grep -q '^GPULOSS_PTR$' "$out/with.macros" || { echo "names.sh does not find the names"; exit 2; }
# Functions of the C library that the implementation calls are named in its debug information too.
gcc -E -P "$out/without.c" | grep -oE '[A-Za-z_][A-Za-z_0-9]*' | sort -u >"$out/library"
foreign=$( (comm -23 "$out/with.macros" "$out/without.macros"; comm -23 "$out/with.names" "$out/without.names") |
    grep -vxFf "$out/library" | grep -vE '^(gpuloss|GPULOSS)|^CUctx_st$|^CUstream_st$|with\.c$')
[ -z "$foreign" ] || { echo "names of others: $foreign"; exit 1; }
