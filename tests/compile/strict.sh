# The warning set that every use of gpuloss.h must pass without a warning, and where cuda.h is. Sourced by run.sh, by
# tests/bad/run.sh and by the Makefile.
# shellcheck shell=sh disable=SC2034,SC3043
strict="-Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual -Wcast-align -Wwrite-strings
    -Wpointer-arith -Wstrict-aliasing=1 -Wformat=2 -Wvla -Winit-self -Wredundant-decls -Wswitch-enum -Wdouble-promotion
    -Wmissing-declarations -Werror"
strict_c="$strict -Wstrict-prototypes -Wmissing-prototypes"
strict_cxx="$strict -Wextra-semi -fno-exceptions -fno-rtti"

# flags_of STANDARD: how to compile a .c file under it.
flags_of() {
    case $1 in
    *++98) echo "-x c++ -std=$1 -Wno-long-long $strict_cxx" ;;
    *++*) echo "-x c++ -std=$1 $strict_cxx" ;;
    *) echo "-x c -std=$1 $strict_c" ;;
    esac
}

# cuda_headers: whether cuda.h is found, by itself or in the toolkit of the nvcc in PATH, which is then made known.
cuda_headers() {
    local nvcc include
    if gcc -x c -fsyntax-only -include cuda.h - </dev/null 2>/dev/null; then
        return 0
    fi
    nvcc=$(command -v nvcc) &&
        include=$(dirname "$(realpath "$nvcc")")/../include && [ -f "$include/cuda.h" ] || return 1
    export CPATH="$include"
}
