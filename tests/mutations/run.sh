#!/bin/bash
# Plants one fault at a time in a copy of a kernel's PTX. The numerics tests on the interpreter must find it, for the
# right reason. This script fails if a fault is not found, if sound kernels are refused, or if a fault can no longer be
# planted.
#     tests/mutations/run.sh [TABLE]
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
build=${BUILD:-build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
out=$build/mutations
rm -rf "$out" && mkdir -p "$out/sound" || exit 2
make -s -f tests/interpreter/interpreter.mk BUILD="$build" interpreter &&
    make -s -f tests/numerics/numerics.mk BUILD="$build" "$build/test_numerics" || exit 2

# line_of FILE WHERE: the number of the line that a chain of "> PATTERN", "< PATTERN" and "= PATTERN" leads to, or nothing.
line_of() {
    where=$2 awk '
        function label_of(branch) {
            sub(/^.* /, "", branch)
            sub(/;$/, "", branch)
            return branch in labels ? labels[branch] : NR
        }
        { text[NR] = $0 }
        /^[A-Za-z0-9_$]+:$/ { labels[substr($0, 1, length($0) - 1)] = NR }
        END {
            where = ENVIRON["where"]
            at = 0
            while (match(where, /^ *[<>=] +/)) {
                step = where ~ /^ *</ ? -1 : 1
                if (where ~ /^ *=/)
                    at = label_of(text[at])
                where = substr(where, RLENGTH + 1)
                pattern = match(where, / [<>=] /) ? substr(where, 1, RSTART - 1) : where
                where = substr(where, length(pattern) + 1)
                for (at += step; at >= 1 && at <= NR && text[at] !~ pattern; at += step)
                    ;
                if (at < 1 || at > NR)
                    exit
            }
            print at
        }' "$1"
}

# fault_of SOUND FAULTY: the lines that differ, in the interpreter's format of faults.
fault_of() {
    paste -d '\n' "$1" "$2" | awk 'NR % 2 { sound = $0; next } sound != $0 { print NR / 2; print sound; print }'
}

# run_with FOLDER "TESTS [DEVICE]": the tests, with the faults of the folder in the kernels.
run_with() {
    local tests=${2%% *} device=sm_90
    [ "$tests" = "$2" ] || device=${2#* }
    PTXSIM_FAULT=$1 PTXSIM_DEVICE=$device PTXSIM_SEED=1 \
        GPULOSS_DRIVER=$build/interpreter/libcuda.so.1 GPULOSS_REQUIRE_GPU=1 \
        timeout 600 "$build/test_numerics" --small --stop --only "$tests" >"$1/log" 2>&1
    echo $? >"$1/status"
}
export -f run_with
export build

grep -v '^#' "${1:-tests/mutations/mutations.txt}" >"$out/mutations"
# The texts like the library gives them to this device, on which launches depend on each other, but without the marks of
# lines. Variants for some calls have some of the marks.
for module in ptx/*.ptx; do
    sed -E -e 's/^\.version [67]\.0$/.version 8.0/' -e 's/^\.target sm_[78]0$/.target sm_90/' \
        -e 's,^//griddepcontrol,  griddepcontrol,' -e 's,^/\*=?[0-9]+\*/,,' "$module" \
        >"$out/sound/$(sed -n 's/^\.visible \.entry \([a-z0-9_]*\).*/\1/p' "$module").ptx"
done
jobs=() n=0
while IFS='|' read -r name module where change tests reason; do
    n=$((n + 1)) && mkdir -p "$out/$n"
    sound=$out/sound/gpuloss_$module.ptx fault=$out/$n/gpuloss_$module.fault
    line=$(line_of "$sound" "$where")
    if [ -n "$line" ] && sed -E "$line${change/%d/s/.*//}" "$sound" >"$out/faulty" && ! cmp -s "$sound" "$out/faulty"; then
        fault_of "$sound" "$out/faulty" >"$fault"
        jobs+=("$out/$n" "$tests")
    fi
done <"$out/mutations"
# Another check shows that the tests accept the sound texts, on the same device with the same seed. This one shows that
# replacing lines with the same lines changes nothing.
for sound in "$out"/sound/*.ptx; do
    awk '/;$/ { print NR; print; print }' "$sound" | head -n 30 >"${sound%.ptx}.fault"
done
jobs+=("$out/sound" "$(head -1 "$out/mutations" | cut -d'|' -f5)")
printf '%s\0' "${jobs[@]}" | xargs -0 -n 2 -P "$(nproc)" bash -c 'run_with "$0" "$1"'

[ "$(cat "$out/sound/status")" = 0 ] || fail "sound kernels" "$out/sound/log"
n=0
while IFS='|' read -r name module where change tests reason; do
    n=$((n + 1)) log=$out/$n/log
    [ -e "$out/$n/gpuloss_$module.fault" ] || { not_planted "$name"; continue; }
    grep -v -e '^\[' -e '^ptxsim: .* is planted$' "$log" >"$out/$n/said"
    if ! grep -q 'is planted' "$log"; then
        fail "not run: $name" "$log"
    elif [ "$(cat "$out/$n/status")" = 0 ]; then
        fail "not found: $name"
    elif ! grep -q -E -e "$reason" "$out/$n/said"; then
        fail "found for another reason: $name" "$out/$n/said"
    else
        pass
        echo "  found: $name ($module): $(grep -o -E -e ".{0,40}($reason).{0,60}" "$out/$n/said" | head -1)"
    fi
done <"$out/mutations"
rm -rf "$out/sound"
report mutations
