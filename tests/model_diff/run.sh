#!/bin/bash
# run.sh [FOLDER [MODELS]]: tests the example model_diff, of the folder or of examples/. It prints the figures of two
# small models of the project's text. They agree with a reference in double precision, within derived bounds. It refuses
# invalid input. MODELS: where an earlier run has left the models' files, which are written anew without it.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/compile/strict.sh
folder=${1:-examples} models=${2:-}
build=${BUILD:-build}
out=$build/model_diff_test
rm -rf "$out" && mkdir -p "$out" && out=$(realpath "$out") || exit 2
make -s -f tests/interpreter/interpreter.mk BUILD="$build" interpreter || exit 2
interpreter=$(realpath "$build/interpreter")

compile() { gcc -std=c99 $strict_c -o "$1" "${@:2}" -lm -ldl; }
if [ -n "$models" ]; then
    ln -s "$models"/*.{base,other,targets,kls,expected} "$out"
else
    sed 1000q gpuloss.h >"$out/header.txt"
    accept "models.c compiles" compile "$out/models" -O1 tests/model_diff/*.c \
        tests/numerics/{dtypes,bounds,bounds_pair,bounds_divergence,reference_cross_entropy,reference_kl_div}.c
    accept "rows of .kld files are within the bounds that model_diff.c states" "$out/models" "$out" README.md "$out/header.txt"
fi
accept "model_diff.c compiles" compile "$out/model_diff" "$folder/model_diff.c"
cd "$out" || exit 2

model_diff() { LD_LIBRARY_PATH=$interpreter ./model_diff "$@"; }
# arrays KIND DTYPE TARGET_DTYPE OPTION...
arrays() { model_diff --classes 256 --dtype "$2" --target-dtype "$3" --targets "$1.targets" "${@:4}" "$1.base" "$1.other"; }
klds() { model_diff "${@:2}" "$1.base" "$1.other"; }

# agrees CSV NAME VALUE ERROR BOUND ERROR_BOUND
agrees() {
    awk -F, -v name="$2" -v value="$3" -v error="$4" -v bound="$5" -v error_bound="$6" '
        function off(x, y) { return x < y ? y - x : x - y }
        BEGIN { number = "^-?[0-9][0-9.]*(e[-+][0-9]+)?$" } # a NaN may compare as a number
        $1 == name { found++; got = $2; got_error = $3 }
        END {
            printf "got %s +- %s, expected %s within %s +- %s within %s\n", got, got_error, value, bound, error, error_bound
            exit !(found == 1 && got ~ number && off(got, value) <= bound &&
                (error == "" ? got_error == "" : got_error ~ number && off(got_error, error) <= error_bound))
        }' "$1"
}
# The printed figures are the csv's, in its order.
printed() {
    awk -F, 'NR == FNR { if (FNR > 1) want[FNR + 1] = sprintf(" %12.7g", $2) ($3 == "" ? "" : sprintf(" +- %.3g", $3)); next }
        FNR in want {
            lines++
            if (substr($0, length($0) - length(want[FNR]) + 1) != want[FNR]) { print $0 ", expected" want[FNR]; bad = 1 }
        }
        END { exit bad || lines < length(want) }' "$1.csv" "$1.txt"
}
succeeded() { cat "$2" && [ "$1" = 0 ]; }
# figures KIND EXPECTED COMMAND...: the figures of a command, which gets --csv, are the figures of EXPECTED.
figures() {
    local kind=$1 expected=$2 name value error bound error_bound
    shift 2
    rm -f "$kind.csv"
    "$@" --csv "$kind.csv" >"$kind.txt" 2>"$kind.errors"
    accept "$kind: exit status 0" succeeded $? "$kind.errors"
    while IFS=, read -r name value error bound error_bound; do
        accept "$kind: $name" agrees "$kind.csv" "$name" "$value" "$error" "$bound" "$error_bound"
    done <"$expected"
    accept "$kind: no other figures" [ "$(wc -l <"$kind.csv")" = $(($(wc -l <"$expected") + 1)) ]
    accept "$kind: what is printed" printed "$kind"
}

figures f32 f32.expected arrays f32 f32 i64 --svg f32.svg
figures f64 f64.expected arrays f64 f64 i32 --svg f64.svg
figures f16 f16.expected arrays f16 f16 i16
figures bf16 bf16.expected arrays bf16 bf16 u8
figures rounded rounded.expected arrays rounded f32 i32
figures masked masked.expected arrays masked f32 i16
figures nonfinite nonfinite.expected arrays nonfinite f32 i64 --skip-nonfinite
figures kld kld.expected klds kld
figures sums_kld sums_kld.expected klds sums_kld
# 0.3 MiB: batches of 75 rows, which begin within a chunk.
figures odd_kld odd_kld.expected klds odd_kld --memory 0.3
figures batches f32.expected arrays f32 f32 i64 --memory 0.3
grep -vE '^(perplexity|p_difference)' f32.expected >no_targets.expected
figures no_targets no_targets.expected model_diff --classes 256 --dtype f32 f32.base f32.other
accept "what is left out without targets" grep -q '^Left out without --targets: perplexities' no_targets.txt
for side in base other; do
    accept "f32: the $side is named" grep -qi "^$side  *f32.$side\$" f32.txt
done

# The same model twice.
model_diff --classes 256 --dtype f32 --csv same.csv --svg same.svg rounded.base rounded.base >log 2>&1
accept "a model and itself: the largest KL" agrees same.csv kl_largest 0 "" 0 ""
accept "a model and itself: equal argmax" agrees same.csv equal_top 1 0 0 0

# Each bar counts the rows between its ends, which are tenths of decades. The sum of all bars is the number of rows.
bars() {
    grep -oE '[^>]* nats, tokens: [0-9]+' "$1" | awk '
        function edge(x) { return x == 0 ? -1 : 10 ^ (int(10 * log(x) / log(10) + 1000.5) / 10 - 100) }
        NR == FNR { kl[NR] = $1; rows = NR; next }
        {
            count = 0
            for (i = 1; i <= rows; i++)
                count += kl[i] >= edge($1) && kl[i] < edge($3)
            if (count != $6) { print "got " $0 ", expected " count; bad = 1 }
            total += $6
        }
        END { print "bars of " total " rows, expected " rows; exit bad || total != rows }' "$2" -
}
accept "the histogram" bars f64.svg f64.kls
of_csv() { awk -F, -v name="$1" -v format="$2" '$1 == name { printf format, $2 }' f64.csv; }
accept "the histogram's title" grep -qF ">KL(BASE || OTHER) of 620 tokens, mean $(of_csv kl_mean %.4g)<" f64.svg
accept "the histogram's axes" [ "$(grep -cE '>(1e-1|1e0|1e1|tokens|KL of a token, in nats)</text>' f64.svg)" = 5 ]
accept "the histogram's median" grep -qF ">median $(of_csv kl_median %.3g)<" f64.svg
sed 's/.*/0/' rounded.kls >same.kls
accept "the histogram of zeros" bars same.svg same.kls
cp rounded.base '<a&b>'
accept "a name to be escaped" model_diff --classes 256 --dtype f32 --svg names.svg '<a&b>' rounded.other
accept "the name as it is in the histogram" grep -q '>BASE: &#60;a&#38;b&#62;</text>' names.svg

# refused NAME STATUS WORD COMMAND...: the command ends with the exit status, and says the word.
ends_otherwise() {
    local wanted=$1 status=0
    shift
    "$@" || status=$?
    [ $status = "$wanted" ] && return 1
    echo "exit status $status instead of $wanted"
}
refused() { reject "$1" "$3" ends_otherwise "$2" "${@:4}"; }
f32() { model_diff --classes 256 --dtype f32 "$@"; }

refused "no arguments" 1 '^model_diff .options. BASE OTHER$' model_diff
help() { model_diff --help >help.txt; }
accept "--help" help
accept "--help states the bounds" grep -q 'cut off 16 below the largest' help.txt
refused "one file" 1 'got 1 files, expected BASE and OTHER' f32 f32.base
refused "three files" 1 'f64.base: got a third file' f32 f32.base f32.other f64.base
refused "an unknown option" 1 '--quick: no such option' f32 --quick f32.base f32.other
refused "an option without its value" 1 '--csv: got no value' f32 f32.base f32.other --csv
refused "an unknown type" 1 '--dtype: got f8, expected f32, f64, f16 or bf16' model_diff --dtype f8
refused "an unknown type of targets" 1 '--target-dtype: got u16, expected i64, i32, i16 or u8' f32 --target-dtype u16
refused "no classes" 1 '--classes: got 0, expected a whole number from 1' model_diff --classes 0
refused "classes that are no number" 1 '--classes: got 12x, expected' model_diff --classes 12x
refused "too many classes" 1 '--classes: got 2147483648, expected a whole number from 1 to 2147483647' model_diff --classes 2147483648
refused "no memory" 1 '--memory: got 0, expected mebibytes above 0' f32 --memory 0
refused "memory that is no number" 1 '--memory: got nan, expected mebibytes' f32 --memory nan
refused "too little memory" 1 '--memory: got 0.001, expected at least .* for rows of 256 classes' f32 --memory 0.001 f32.base f32.other
least=$(sed -n 's/.*expected at least \([^ ]*\) .*/\1/p' log)
accept "as little memory as it says" model_diff --classes 256 --dtype f32 --memory "$least" f32.base f32.other
refused "a GPU that is not there" 1 'device: there is no such GPU' f32 --device 7 f32.base f32.other
refused "an array without its type" 1 'f32.base: not a .kld file, and without --dtype and --classes' model_diff f32.base f32.other
refused "targets without their type" 1 'got one of them, expected both' f32 --targets f32.targets f32.base f32.other
refused "a file that is not there" 1 'none: cannot be opened: No such file' f32 none f32.other
refused "a device" 1 '/dev/null: got no regular file' f32 /dev/null f32.other
refused "a folder" 1 '/: got no regular file' f32 f32.base /

head -c -3 f32.other >shortened
refused "an array that is cut off" 1 'shortened: is cut off: got 634877 bytes, expected a multiple of a row.s 1024' f32 f32.base shortened
head -c -1024 f32.other >shorter
refused "an array of fewer rows" 1 'shorter: got 619 rows, expected 620, those of f32.base' f32 f32.base shorter
: >empty
refused "an array of no bytes" 1 'empty: is cut off: got 0 bytes' f32 empty empty
with_targets() { f32 --targets "$1" --target-dtype i32 rounded.base rounded.other; }
head -c -4 rounded.targets >shortened
refused "targets that are cut off" 1 'shortened: is cut off: got 2476 bytes, expected 2480' with_targets shortened
{ cat rounded.targets && printf 'more'; } >long
refused "too many targets" 1 'long: is too long: got 2484 bytes, expected 2480' with_targets long
# patched FILE OFFSET BYTES: a copy of a file, with bytes, as printf has them, at an offset.
patched() { cp "$1" patched && printf "$3" | dd of=patched bs=1 seek="$2" conv=notrunc status=none; }
patched rounded.targets 1236 '\0\1\0\0'
refused "a target out of range" 1 'patched: row 309: got target 256, expected 0 to 255' with_targets patched
patched rounded.targets 1236 '\377\377\377\377'
refused "a negative target" 1 'patched: row 309: got target -1, expected 0 to 255' with_targets patched

refused "rows that are not finite" 1 'got 13 rows of 620 that have no finite KL' arrays nonfinite f32 i64
cp log nonfinite.log
while read -r line; do
    accept "it says: $line" grep -q "model_diff: $line\$" nonfinite.log
done <<'LINES'
nonfinite.base: row 7: class 3 is NaN
nonfinite.other: row 57: class 200 is inf
nonfinite.other: row 107: class 9 is -inf, but not in nonfinite.base
nonfinite.base: row 157: class [0-9]*, the true token, is -inf
nonfinite.base: row 257: class 3 is NaN
nonfinite.base: row 457: class [0-9]*, the true token, is -inf
... and 3 more
LINES
refused "a row of no probability" 1 'row 207: no finite KL or cross-entropy: each class is -inf' f32 nonfinite.base nonfinite.other
head -c 1024 nonfinite.base >one && patched one 0 '\0\0\300\177'
refused "no row that is finite" 1 'no row has a finite KL' f32 --skip-nonfinite patched one

kld() { model_diff kld.base "$1"; }
head -c 15 kld.other >shortened
refused "a header that is cut off" 1 'shortened: is cut off: got 15 bytes, expected 20 for its header' kld shortened
head -c -2 kld.other >shortened
refused "a .kld file that is cut off" 1 'shortened: is cut off: got 327538 bytes, expected 327540 for what its header says' kld shortened
{ cat kld.other && printf 'more'; } >long
refused "a .kld file that is too long" 1 'long: is too long: got 327544 bytes, expected 327540' kld long
patched kld.other 8 '\2\0\0\0'
refused "a context without rows" 1 'patched: n_ctx: got 2, expected at least 3' kld patched
patched kld.other 8 '\101\0\0\0'
refused "another context" 1 'patched: n_ctx: got 65, expected 64, that of kld.base' kld patched
refused "another vocabulary" 1 'odd_kld.other: n_vocab: got 255, expected 256, that of kld.base' kld odd_kld.other
patched kld.other 12 '\0\0\0\200'
refused "no vocabulary" 1 'patched: n_vocab: got -2147483648, expected at least 1' kld patched
patched kld.other 16 '\23\0\0\0'
refused "another number of chunks" 1 'patched: n_chunk: got 19, expected 20, that of kld.base' kld patched
patched kld.base 8 '\377\377\377\177\377\377\377\177\377\377\377\177'
refused "a file that can't be" 1 'patched: got n_ctx 2147483647, .* expected a file of at most 9e18 bytes' model_diff patched patched
patched kld.other 420 '\1\0\0\0'
refused "another token" 1 'patched: token 100: got 1, expected [0-9]*, that of kld.base' kld patched
patched kld.base 420 '\0\1\0\0'
refused "a token out of range" 1 'patched: token 100: got 256, expected 0 to 255' model_diff patched patched
# Row 2 begins at 20 + 4 * 64 * 20 + 2 * 520 bytes: -1 as its scale, then NaN, then 1 as its least logarithm.
patched kld.other 6180 '\0\0\200\277'
refused "a scale that can't be" 1 'patched: row 2: got scale -1 and least' kld patched
patched kld.other 6184 '\0\0\200\77'
refused "a probability above 1" 1 'patched: row 2: got scale .* and least 1,' kld patched
patched kld.other 6180 '\0\0\300\177'
refused "a scale that is NaN" 1 'patched: row 2: class 0 is NaN' kld patched
refused "a .kld file and an array" 1 'f32.other: is no .kld file, expected the format of kld.base' kld f32.other
refused "an array and a .kld file" 1 'kld.other: is a .kld file, expected the format of f32.base' f32 f32.base kld.other
refused "the type of a .kld file" 1 'kld.base: is a .kld file, which --dtype, .* are not for' model_diff --dtype f16 kld.base kld.other

refused "a csv that can't be created" 3 'none/csv: cannot be written: No such file' f32 --csv none/csv f32.base f32.other
refused "a histogram that can't be created" 3 'none/svg: cannot be written: No such file' f32 --svg none/svg f32.base f32.other
if [ -e /dev/full ]; then
    refused "a csv on a full disk" 3 '/dev/full: could not be written: No space' model_diff kld.base kld.other --csv /dev/full
    refused "a histogram on a full disk" 3 '/dev/full: could not be written: No space' model_diff kld.base kld.other --svg /dev/full
    to_full_disk() { model_diff kld.base kld.other >/dev/full; }
    refused "figures on a full disk" 3 'the figures could not be printed: No space' to_full_disk
else
    skip "full disks: no /dev/full"
fi

# A file that is no library stands before the driver, if there is one.
mkdir no_driver && echo none >no_driver/libcuda.so.1
without_driver() { LD_LIBRARY_PATH=no_driver ./model_diff kld.base kld.other; }
refused "no driver" 2 'NVIDIA driver library could not be loaded' without_driver

accept "no progress in a file" [ ! -s f32.errors ]
if command -v script >/dev/null; then
    on_terminal() {
        LD_LIBRARY_PATH=$interpreter script -qec "./model_diff --memory 0.3 kld.base kld.other >/dev/null" terminal </dev/null
    }
    accept "a terminal" on_terminal
    accept "progress on a terminal" grep -q '620 of 620 tokens, 100 %' terminal
else
    skip "progress on a terminal: the command script is not installed"
fi

report model_diff
