#!/bin/bash
# Runs the benchmark's programs and scripts at a tiny size on the interpreter. Checks their output, but not the speed.
# Each check must also reject wrong output.
set -u
. tests/check.sh
out=$BUILD/bench_smoke
ceilings=tests/bench/ceilings.ptx
rm -rf "$out" && mkdir -p "$out" || exit 2
GPULOSS_DRIVER=$(realpath "$BUILD/interpreter/libcuda.so.1") || exit 2
export GPULOSS_DRIVER
# checked FILE AWK...: the messages of an awk program about a file. It names the line of a field that is not a number
# above 0.
checked() {
    local file=$1
    shift
    awk "$@" '
        function fail(why) { print "line " NR ": " why; bad = 1; exit 1 }
        function number(text) {
            if (text !~ /^-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?$/) fail("not a number: " text)
            return text + 0
        }
        function above_zero(text) { if (number(text) <= 0) fail("not above 0: " text) }
        '"$program" "$file"
}

# Checks the raw results: the columns, a line for each line of the table, the numbers and the floors. The floor of bytes
# is their time at the ceiling. The special functions take 16 a clock of each of the interpreter's four multiprocessors.
# The floor of the instructions, at 128 a clock, is checked for some cells.
heading=$(sed -n '/^#define BENCH_CSV/,/^int/p' tests/bench/bench.h | grep -o '"[^"]*"' | tr -d '"\n')
check_csv() {
    local program='
        function agree(a, b) { return a - b <= 1e-4 * b && b - a <= 1e-4 * b }
        BEGIN {
            FS = ","
            sum["cross_entropy"] = sum["cross_entropy_options"] = sum["columns"] = sum["kl_div_ll"] = 1
            sum["kl_div_pp"] = sum["kl_div_logits"] = 2
            sum["jsd_logits"] = 5
            sum["logits_p"] = sum["logits_l"] = sum["logits_f32"] = sum["logits_both"] = sum["reverse_logits"] = 2
            sum["reverse_p"] = gradient["reverse_p"] = 2
            sum["reverse_ll"] = sum["ll_weights"] = sum["ll_labels"] = sum["ll_rows"] = 1
            sum["pp_f32"] = 2
            sum["jsd_pp"] = 3
            sum["tv_logits"] = 4
            for (i = split("16 64 256 reverse jsd tv", sparse, " "); i > 0; i--)
                sum["sparse_" sparse[i]] = gradient["sparse_" sparse[i]] = logarithms["sparse_" sparse[i]] = 1
            gradient["cross_entropy"] = gradient["cross_entropy_options"] = gradient["columns"] = 1
            gradient["kl_div_logits"] = 2
            gradient["jsd_logits"] = 3
            gradient["logits_p"] = gradient["reverse_logits"] = 1
            gradient["logits_l"] = gradient["logits_f32"] = gradient["logits_both"] = gradient["tv_logits"] = 2
            logarithms["cross_entropy"] = logarithms["cross_entropy_options"] = logarithms["columns"] = 1
            logarithms["logits_p"] = logarithms["logits_l"] = logarithms["reverse_p"] = 1
            logarithms["kl_div_logits"] = logarithms["jsd_logits"] = logarithms["reverse_logits"] = 2
            logarithms["tv_logits"] = logarithms["logits_f32"] = logarithms["logits_both"] = 2
            more["softcap"] = more["all"] = 2
            ignored["masked_50"] = 0.5
            ignored["masked_85"] = 0.85
            instructions["cross_entropy,f32,loss,plain"] = 4 + 0.5
            instructions["cross_entropy,f32,loss + gradient,softcap"] = 9 + 0.5 + 10 + 0.5 + 0.5
            instructions["cross_entropy,f32,loss + gradient,masked_0"] = 4 + 0.5 + 3 + 0.5 + 0.5
            instructions["cross_entropy,bf16,loss + gradient,plain"] = 4 + 1.25 + 3 + 1.25 + 0.75
            instructions["cross_entropy,bf16,loss,probabilities_f32"] = 6 + 1.25 + 0.5
            instructions["logits_f32,bf16,loss + gradient,plain"] = 10 + 1.25 + 0.5 + 6 + 1.25 + 0.5 + 0.75
            instructions["logits_both,bf16,loss + gradient,plain"] = 10 + 2.5 + 9 + 2.5 + 2 * 0.75
            instructions["tv_logits,bf16,loss,sigma_0.3"] = 14 + 2 * 2.5
        }
        NR == 1 { if ($0 != heading) fail("the heading is not " heading); next }
        NF != 15 { fail("not 15 fields") }
        $7 != "gpuloss" { fail("not gpuloss: " $7) }
        $6 != "loss" && $6 != "loss + gradient" && $6 != "backward" { fail("no such pass: " $6) }
        { above_zero($3); above_zero($4); above_zero($5); above_zero($8); above_zero($9); above_zero($10) }
        { above_zero($13); number($14); above_zero($15); cells++ }
        !agree($13, $9 / $10 / 1000) { fail("not the time of the bytes: " $13) }
        {
            special = ($6 != "backward") * (sum[$1] + more[$11] + logarithms[$1] / $4)
            special += ($6 != "loss") * (gradient[$1] + more[$11])
            read = $3 - int($3 * ignored[$11])
            if (!agree($14, ($2 != "f64") * read * $4 * special / (16 * 4 * 1980))) fail("not that of special functions: " $14)
            kind = $1 "," $2 "," $6 "," $11
            if (kind in instructions && !agree($15, $3 * $4 * instructions[kind] / (128 * 4 * 1980)))
                fail("not that of instructions: " $15)
        }
        END { if (!bad && (cells != wanted || cells == 0)) fail(cells + 0 " cells of " wanted) }'
    checked "$1" -v heading="$heading" -v wanted="$2"
}
run_bench() { "$BUILD/bench" $ceilings --bytes 4096 --most 5000 --rest 0 --runs 3 --all --csv "$1" >"$out/table"; }
losses='^(cross|kl|jsd|columns|reverse|tv|logits|pp|ll|sparse)'
count_cells() { grep -cE "$losses" "$1"; }
accept 'the table' run_bench "$out/bench.csv"
cells=$(count_cells "$out/table")
accept 'the raw results' check_csv "$out/bench.csv" "$cells"
changed "$out/bench.csv" '1s/,inner//' && reject 'raw results without a column' 'heading' check_csv "$out/bad" "$cells"
changed "$out/bench.csv" '5d' && reject 'raw results without a cell' "cells of $cells" check_csv "$out/bad" "$cells"
changed "$out/bench.csv" '4s/gpuloss,[^,]*/gpuloss,-nan/' &&
    reject 'a time that is no number' 'not a number' check_csv "$out/bad" "$cells"
changed "$out/bench.csv" '6s/packed,/packed,1/' &&
    reject 'another time of the bytes' 'not the time of the bytes' check_csv "$out/bad" "$cells"
changed "$out/bench.csv" '6s/,\([^,]*,[^,]*\)$/,1\1/' &&
    reject 'another time of special functions' 'not that of special' check_csv "$out/bad" "$cells"
changed "$out/bench.csv" '6s/,[^,]*$/,0/' && reject 'no time of instructions' 'not above 0' check_csv "$out/bad" "$cells"
changed "$out/bench.csv" '/f32.*,loss,.*plain/s/,[^,]*$/,1/' &&
    reject 'another time of instructions' 'not that of instructions' check_csv "$out/bad" "$cells"

# The table has the longest floor beside the time.
check_table() {
    local program='
        $0 !~ losses { next }
        {
            floor = $(NF - 3) > $(NF - 2) ? $(NF - 3) : $(NF - 2)
            floor = floor > $(NF - 1) ? floor : $(NF - 1)
            off = number($NF) - 100 * floor / number($(NF - 6))
            if (off > 0.1 || off < -0.1) fail("not the floor: " $0)
            cells++
        }
        END { if (!bad && cells == 0) fail("no cell") }'
    checked "$1" -v losses="$losses"
}
accept 'the floors of the table' check_table "$out/table"
changed "$out/table" '$s/[0-9.]*$/99.9/' && reject 'another floor' 'not the floor' check_table "$out/bad"
changed "$out/table" '/^loss/q' && reject 'a table without cells' 'no cell' check_table "$out/bad"
reject 'raw results in no folder' "can't be written" run_bench "$out/none/bench.csv"
[ ! -e /dev/full ] || reject 'raw results on a full disk' "can't be written" run_bench /dev/full

# Every option and every layout of the tables is in the raw results. Options of long rows are selected by their names.
# The published cells are too large.
run_only() { "$BUILD/bench" $ceilings --bytes 100000 --most 210000 --rest 0 --runs 1 --csv "$out/only.csv" --only "$1" >"$out/only"; }
check_names() {
    local column name bad=0
    for column in 11:BENCH_REQUESTS 12:BENCH_LAYOUTS; do
        while read -r name; do
            cut -d, -f"${column%%:*}" "$@" | grep -qxF "$name" || { echo "no cell: $name" && bad=1; }
        done < <(sed -n "/\[${column#*:}\] = {/,/^};/s/.*\.name = \"\([a-z0-9_.]*\)\".*/\1/p" tests/bench/requests.c | grep -v published)
    done
    return $bad
}
accept 'masked and padded rows' run_only masked,cross_entropy/plain/padded
cells=$(count_cells "$out/only")
accept 'their raw results' check_csv "$out/only.csv" "$cells"
changed "$out/only.csv" 's/masked_50/masked_85/' &&
    reject 'rows that are not ignored' 'not that of special' check_csv "$out/bad" "$cells"
accept 'every option and layout' check_names "$out/bench.csv" "$out/only.csv"
changed "$out/bench.csv" '/,row_weights,/d' && reject 'an option without cells' 'row_weights' check_names "$out/bad" "$out/only.csv"
reject 'a layout without cells' 'padded' check_names "$out/bench.csv"

# Every divergence, with the bytes that it moves: of both arrays and their gradients, and of the numbers of a row.
run_pairs() {
    "$BUILD/bench" $ceilings --bytes 8000 --most 8100 --rest 0 --runs 1 --csv "$out/pairs.csv" \
        --only kl_div,jsd,reverse,tv,logits_,pp_,ll_,sparse_ >"$out/pairs"
}
check_pairs() {
    local program='
        BEGIN {
            FS = ","
            size["f32"] = 4
            size["bf16"] = size["f16"] = 2
            a_row["ll_weights"] = a_row["ll_rows"] = 4
            a_row["ll_labels"] = 8
            a_row["sparse_16"] = 16 * 12
            a_row["sparse_64"] = a_row["sparse_reverse"] = a_row["sparse_jsd"] = a_row["sparse_tv"] = 64 * 12
            a_row["sparse_256"] = 256 * 12
        }
        NR == 1 { next }
        {
            target = $1 ~ /^sparse/ ? 0 : $1 ~ /_f32$/ ? 4 : size[$2]
            gradients = $6 != "loss" ? size[$2] + ($1 == "logits_both") * target : 0
            if ($9 != $3 * ($4 * (size[$2] + target + gradients) + a_row[$1])) fail("not its bytes: " $1 ", " $9)
            cells[$1 "," $6]++
        }
        END {
            if (bad) exit 1
            count = split(wanted, losses, " ")
            for (i = 1; i <= count; i++)
                if (!cells[losses[i] ",loss"] || !cells[losses[i] ",loss + gradient"]) fail("no cell: " losses[i])
        }'
    checked "$1" -v wanted="$(sed -n 's/^    {"\([a-z0-9_]*\)",.*/\1/p' tests/bench/pairs.c | tr '\n' ' ')"
}
accept 'divergences' run_pairs
accept 'their raw results' check_csv "$out/pairs.csv" "$(count_cells "$out/pairs")"
accept 'every divergence' check_pairs "$out/pairs.csv"
changed "$out/pairs.csv" '/^tv_pp,.*,loss,/d' && reject 'a divergence without cells' 'no cell: tv_pp' check_pairs "$out/bad"
changed "$out/pairs.csv" 's/^logits_both/kl_div_logits/' && reject 'bytes of one gradient' 'not its bytes' check_pairs "$out/bad"

# --only: a cell for each name, and no other.
check_only() {
    local program='
        NR == 1 { next }
        $1 == "columns" && $2 == "weights" { columns++; next }
        $2 == "plain" && $3 == "stride_1" { strides++; next }
        $2 == "plain" && $4 == "f64" { doubles++; next }
        { fail("not requested: " $0) }
        END { if (!bad && !(columns && strides && doubles)) fail("a name without cells") }'
    sed -n '/^loss /,$p' "$1" >"$out/cells" && checked "$out/cells"
}
run_names() { "$BUILD/bench" $ceilings --bytes 400 --most 500 --rest 0 --runs 1 --only "$@" >"$out/only"; }
accept 'cells by their names' run_names columns/weights,plain/stride,f64/plain
accept 'no other cells' check_only "$out/only"
changed "$out/only" '/stride_1/s/plain/z_loss/' && reject 'a cell that was not requested' 'not requested' check_only "$out/bad"
changed "$out/only" '/^columns/d' && reject 'no cell of a name' 'without cells' check_only "$out/bad"
changed "$out/only" '/ f64 /d' && reject 'no cell of a type' 'without cells' check_only "$out/bad"
reject 'a name of no cell' '--only hinge: no cell' run_names weights,hinge
reject 'an empty name' '--only: no name' run_names ''

# --as: gpuloss sees the given compute capability, and plans for it.
said_as() {
    local said
    said=$("$1" $ceilings --bytes 600 --classes 7 --runs 1 --as "$2" | head -1)
    [ "$said" = "gpuloss takes the GPU for one of $3" ] || { echo "$said" && return 1; }
}
check_as() {
    local program=${1:-$BUILD/schedules} of='bytes of shared memory a block and'
    said_as "$program" 70 "compute capability 7.0, with 98304 $of without clusters" &&
        said_as "$program" 75 "compute capability 7.5, with 65536 $of without clusters" &&
        said_as "$program" 80 "compute capability 8.0, with 166912 $of without clusters" &&
        said_as "$program" 120 "compute capability 12.0, with 101376 $of with clusters"
}
check_planned() {
    "$1" $ceilings --bytes 300 --most 300 --classes 64 --runs 1 --as 80 cross_entropy >"$out/as" &&
        grep -q ' memory ' "$out/as" && ! grep 'packed\|clustered' "$out/as"
}
accept 'other GPUs' check_as
accept 'schedules of another GPU' check_planned "$BUILD/schedules"
reject 'a GPU that there is not' '--as 71: no such' "$BUILD/bench" $ceilings --as 71
reject 'a GPU of no number' '--as volta: not a whole number' "$BUILD/bench" $ceilings --as volta
reject 'too many runs' 'from 1 to 30' "$BUILD/bench" $ceilings --runs 31
reject 'no file of the ceilings' 'is required' "$BUILD/bench" --all
reject 'an option that there is not' '--every: no such option' "$BUILD/bench" $ceilings --every
reject 'peers without PyTorch' '--peers: no such option' "$BUILD/bench" $ceilings --peers
reject 'two losses' 'kl_div_pp: no such option' "$BUILD/bench" $ceilings kl_div_ll kl_div_pp
reject 'an option of another program' '--all: no such option' "$BUILD/schedules" $ceilings --all
reject 'bytes that are no number' '1G: not a whole number' "$BUILD/bench" $ceilings --bytes 1G
reject 'a rest of less than nothing' '--rest -1: not a time' "$BUILD/bench" $ceilings --rest -1
reject 'a file that is not named' '--csv: nothing follows it' "$BUILD/bench" $ceilings --csv

# with_fault FILE PROGRAM: $out/planted/PROGRAM (bench, schedules or libbench.so), with $out/bad compiled instead of
# FILE.
with_fault() {
    local part objects=() flags=-fPIC parts='bench calls ceilings cells csv data driver floors library options pairs requests selection table'
    mkdir -p "$out/planted/tests/bench" && ln -sf "$PWD/gpuloss.h" "$out/planted/" &&
        cp "$out/bad" "$out/planted/tests/bench/$1" || return 1
    case $2 in
    bench) parts="$parts main" ;;
    schedules) parts="$parts schedules" ;;
    *) flags="$flags -shared" ;;
    esac
    for part in $parts; do
        [ "$part.c" = "$1" ] || objects+=("$BUILD/bench_objects/$part.o")
    done
    # shellcheck disable=SC2086
    ${CC:-cc} -std=c11 $flags -Itests/bench "$out/planted/tests/bench/$1" "${objects[@]}" -o "$out/planted/$2" -ldl
}
planted_as() { with_fault driver.c schedules && check_as "$out/planted/schedules"; }
changed tests/bench/driver.c 's/value = taken_for->shared_bytes/value += 0/' &&
    reject 'the shared memory of this GPU' '7.0, with 232448' planted_as
changed tests/bench/driver.c 's/value = taken_for->clusters/value += 0/' &&
    reject 'the clusters of this GPU' '7.0, .* with clusters' planted_as
changed tests/bench/driver.c 's/\(value = taken_for->compute_capability\) % 10/\1 \/ 10/' &&
    reject 'another minor number' 'capability 7.7' planted_as
changed tests/bench/driver.c 's/return (void \*)(uintptr_t)attribute_taken_for/return found/' &&
    reject 'a GPU that stays what it is' 'capability 9.0' planted_as
reject 'the schedules of this GPU' 'clustered' check_planned "$out/planted/schedules"
planted_floors() {
    with_fault floors.c bench && "$out/planted/bench" $ceilings --bytes 100000 --most 110000 --rest 0 --runs 1 --csv "$out/only.csv" \
        --only masked,cross_entropy/gradient >"$out/only" && check_csv "$out/only.csv" "$(count_cells "$out/only")"
}
changed tests/bench/floors.c 's/f->special = read/f->special = 1/' &&
    reject 'ignored rows in the special functions' 'not that of special' planted_floors
changed tests/bench/floors.c 's/bench_bytes(cell) \/ bench_ceiling_of/bench_bytes(cell) + bench_ceiling_of/' &&
    reject 'a floor of the bytes that is none' 'not the time of the bytes' planted_floors
changed tests/bench/floors.c 's/+ stores)/)/' &&
    reject 'stores that take no instruction' 'not that of instructions' planted_floors

# Two headers: of each cell the times and their ratio, and at the end the cells that are slower. The old header is one that
# refuses softcaps; of the libraries, one calls many times where it should once.
check_compare() {
    local program='
        NR == 1 { if (!/ new\/old$/) fail("no heading"); next }
        / are slower by more than 3 %$/ { said = $1 " " $3; ended = 1; next }
        ended && $1 == "slower:" { listed++; slow[$NF]--; next }
        { old = $(NF - 2); new = $(NF - 1); above_zero(old); above_zero(new); above_zero($NF); cells++ }
        new / old - $NF > 0.002 * $NF + 0.001 || $NF - new / old > 0.002 * $NF + 0.001 { fail("not the ratio: " $0) }
        $NF > 1.03 { slower++; slow[$NF]++ }
        END {
            if (bad) exit 1
            if (cells == 0 || said != cells " " slower + 0 || listed + 0 != slower + 0) fail("not all slower cells: " said)
            for (of in slow) if (slow[of] != 0) fail("not a slower cell: " of)
            if (wanted != "" && slower + 0 != (wanted == "all" ? cells : 0)) fail(slower + 0 " slower cells")
        }'
    checked "$@"
}
tiny="--bytes 400 --most 500 --rest 0 --runs 3"
run_make_compare() {
    make -s bench-compare BUILD="$BUILD" CC="${CC:-cc}" OLD="$out/old.h" BENCH_ARGUMENTS="$tiny --only $1" >"$out/compare" || {
        cat "$out/compare"
        return 1
    }
}
run_compare() { "$BUILD/compare" "$1" "$2" $ceilings $tiny --only weights/packed --as 80 >"$out/compare"; }
cat >"$out/old.h" <<END
#include "$PWD/gpuloss.h"
static gpuloss_status older(gpuloss_context *context, const gpuloss_cross_entropy_desc *desc, struct CUstream_st *stream) {
    return desc->softcap > 0 ? GPULOSS_ERROR_NOT_BUILT : gpuloss_cross_entropy(context, desc, stream);
}
#define gpuloss_cross_entropy older
END
accept 'two headers' run_make_compare weights/packed
accept 'their times' check_compare "$out/compare"
reject 'a header without an option' 'softcap .* failed: old: ' run_make_compare softcap
changed tests/bench/bench.c \
    's/return bench_library_call(prepared, stream);/int i, bad = 0; for (i = 0; i < 50; i++) bad |= bench_library_call(prepared, stream); return bad;/' &&
    with_fault bench.c libbench.so && slow=$out/planted/libbench.so && {
    accept 'a slower library' run_compare "$BUILD/libbench.so" "$slow"
    sed -n '2,$p' "$out/compare" >"$out/slower"
    accept 'that it is slower' check_compare "$out/slower" -v wanted=all
    changed "$out/slower" '2s/[0-9.]*$/1.010/' && reject 'another ratio' 'not the ratio' check_compare "$out/bad"
    changed "$out/slower" '$d' && reject 'a slower cell that is not listed' 'not all slower' check_compare "$out/bad"
    changed "$out/slower" '$s/[0-9.]*$/1.020/' && reject 'a cell that is not slower' 'not a slower' check_compare "$out/bad"
    changed "$out/slower" '2s/[0-9.]* *[0-9.]*$/nan nan/' && reject 'a ratio that is none' 'not a number' check_compare "$out/bad"
    accept 'a faster library' run_compare "$slow" "$BUILD/libbench.so"
    sed -n '2,$p' "$out/compare" >"$out/faster"
    accept 'that it is faster' check_compare "$out/faster" -v wanted=none
    reject 'a faster library as a slower one' ' slower cells' check_compare "$out/faster" -v wanted=all
}
reject 'one header' 'OLD=FILE is required' make -s bench-compare BUILD="$BUILD"
reject 'one library' 'libraries of two headers' "$BUILD/compare" "$BUILD/libbench.so"
reject 'a library that there is not' 'none.so' "$BUILD/compare" "$BUILD/libbench.so" "$out/none.so" $ceilings
reject 'a library of something else' 'has no bench_parse' "$BUILD/compare" "$GPULOSS_DRIVER" "$BUILD/libbench.so" $ceilings
reject 'an option that compare has not' '--csv: no such option' "$BUILD/compare" "$BUILD"/libbench.so "$BUILD"/libbench.so $ceilings --csv

# The costs of the tiny cells' calls. Each cell launches one kernel, but for the gradient of the most rows on a GPU as
# small as the interpreter's.
check_calls() {
    local program='
        NR <= 4 { next }
        { gradient = /loss \+ gradient/; first = gradient ? 8 : 6; cells++ }
        NF != first + 5 { fail("not all columns") }
        { launches = gradient && $4 == 1000 ? 2 : 1 }
        $first != launches { fail("launches: " $first ", not " launches) }
        { above_zero($(first + 1)); above_zero($(first + 2)); number($(first + 3)); above_zero($(first + 4)) }
        $NF == "none" { none++; next }
        { above_zero($NF) }
        END {
            if (!bad && cells != 6) fail(cells + 0 " cells of 6")
            if (!bad && none != 0 && none != 6) fail("graphs in some cells only")
        }'
    checked "$1"
}
run_calls() { "$BUILD/bench" $ceilings --bytes 4096 --calls 10 >"$out/calls"; }
accept 'the calls' run_calls
accept 'what a call costs' check_calls "$out/calls"
changed "$out/calls" '6d' && reject 'calls without a cell' 'launches\|5 cells of 6' check_calls "$out/bad"
changed "$out/calls" '5s/loss    \( *\)1/loss    \15/' &&
    reject 'a wrong count of launches' 'launches: 5' check_calls "$out/bad"
changed "$out/calls" '7s/\.[0-9]*  */.nan /' && reject 'a cost that is no number' 'not a number' check_calls "$out/bad"
grep -q 'which this driver does not have' "$out/calls" && skip 'calls in a CUDA graph: the interpreter has no graphs'

# The schedules: of each cell one is chosen, and one that is faster by more than 3 % is named, and counted.
check_schedules() {
    local program='
        function end_cell() {
            if (cell == "") return
            if (chosen == 0) fail("none is chosen: " cell)
            if (named != "" && chosen < 1.02 * best) fail("is not faster: " named)
            if (named == "" && chosen > 1.04 * best) fail("a faster one is not named: " cell)
            better += named != ""
            cells++
        }
        NR == 1 { if (!/^loss .* GB\/s$/) fail("no heading"); next }
        ended { fail("a line after the end") }
        /^better: / { named = $0; next }
        / cells; in / { end_cell(); ended = 1; said_cells = $1; said_better = $4; next }
        {
            first = /loss \+ gradient/ ? 8 : 6
            star = $NF == "*"
            if (NF != first + 3 + star) fail("not all columns")
            if ($first !~ /^(registers|memory|row_thread|packed|(block|two|four)_rows|ahead(_two|_four)?|pipeline|clustered|wide)$/)
                fail("no such schedule: " $first)
            if ($(first + 1) !~ /^([1-9]|1[0-6]|32|64|128|256|512)$/) fail("no such size: " $(first + 1))
            above_zero($(first + 2))
            number($(first + 3))
            this = $1 " " $2 " " $3 " " $4 " " first
            if (this != cell) { end_cell(); cell = this; chosen = 0; named = ""; best = $(first + 2) }
            if (star && chosen) fail("two are chosen: " cell)
            if (star) chosen = $(first + 2)
            if (best > $(first + 2)) best = $(first + 2)
            list[cell] = list[cell] " " $first $(first + 1)
        }
        END {
            if (bad) exit 1
            if (cells != said_cells || cells != wanted) fail(cells + 0 " cells, not " said_cells " or " wanted)
            if (better + 0 != said_better) fail(better + 0 " faster ones, not " said_better)
            if (of && list[of] != candidates) fail(of ":" list[of])
        }'
    checked "$@"
}
run_schedules() { "$1" $ceilings --runs 1 "${@:2}" >"$out/schedules" || { tail -1 "$out/schedules" && return 1; }; }
small="--bytes 600 --most 800 --classes 64"
accept 'the schedules' run_schedules "$BUILD/schedules" $small
accept 'every schedule' check_schedules "$out/schedules" -v wanted=8 -v of='cross_entropy f32 2 64 6' -v candidates="$(
    printf ' %s' registers{2,4,8,16,32,64,128,256} memory{32,64,128,256} row_thread{16,32} packed1 pipeline32 clustered1 wide1
)"
check_small() { check_schedules "$1" -v wanted=8; }
changed "$out/schedules" '0,/ \*$/s///' && reject 'no choice' 'none is chosen' check_small "$out/bad"
changed "$out/schedules" '2,3s/[ *]*$/ */' && reject 'two choices' 'two are chosen' check_small "$out/bad"
changed "$out/schedules" '$s/^8/7/' && reject 'a wrong count of cells' '8 cells, not 7' check_small "$out/bad"
changed "$out/schedules" '$s/in [0-9]*/in 99/' && reject 'a wrong count of choices' 'faster ones' check_small "$out/bad"
changed "$out/schedules" '4s/\.[0-9]* .*/.nan 1/' && reject 'a time that is no number' 'not a number' check_small "$out/bad"
changed "$out/schedules" '/^better/d;/ \*$/s/\.[0-9]* /00000&/' &&
    reject 'a slow choice' 'a faster one is not named' check_small "$out/bad"
changed "$out/schedules" '/^better/d;/wide  *1 /{/ \*$/!s/$/\nbetter: none/};s/[0-9.]*\( *[0-9]* \*\)$/0.01\1/' &&
    reject 'a choice that is the best' 'is not faster' check_small "$out/bad"
accept 'the schedules of a long row' run_schedules "$BUILD/schedules" --bytes 2000000 --most 70000 --classes 32000
accept 'its choice of a cluster' grep -q 'clustered .* \*$' "$out/schedules"
accept 'every schedule of it' check_schedules "$out/schedules" -v wanted=1
row="--bytes 8000 --classes 1000 cross_entropy"
accept 'the schedules of rows of a block' run_schedules "$BUILD/schedules" $row
accept 'every schedule of them' check_schedules "$out/schedules" -v wanted=4 -v of='cross_entropy f32 1 1000 8' \
    -v candidates="$(
        printf ' %s' registers{32,64,128,256} memory{32,64,128,256} row_thread32 \
            {block_rows,two_rows,four_rows,ahead,ahead_two,ahead_four}256 pipeline32 clustered1 wide1
    )"
# planted CELLS: the program with a fault, on some cells.
planted() { with_fault schedules.c schedules && run_schedules "$out/planted/schedules" "$@"; }
changed tests/bench/schedules.c 's/plan.units = .*/& plan.rows->divisor += running->group == 64;/' &&
    reject 'another loss' 'the loss disagrees: [0-9]' planted $small
changed tests/bench/schedules.c 's/return running->clustered ?.*/if (running->group == 64) return 0;\n&/' &&
    reject 'a schedule that leaves no loss' 'the loss disagrees: -*nan' planted $small
changed tests/bench/schedules.c 's/add("packed", .*/;/' &&
    reject 'a choice that is not measured' 'not among the candidates' planted $small
changed tests/bench/schedules.c 's/ list_block_rows(&d);/ ;/' &&
    reject 'a choice of rows that is not measured' 'not among the candidates' planted $row
changed tests/bench/schedules.c 's/\.ahead = ahead ? .*/.ahead = 0;/' &&
    reject 'a choice of what is fetched that is not measured' 'not among the candidates' planted $row
reject 'no runs' 'from 1 to' run_schedules "$BUILD/schedules" --runs 0

# The time to the first loss.
check_first() {
    local program='
        NR <= 4 { next }
        NF != 10 { fail("not all columns") }
        $1 != ((NR % 2) ? "cold" : "warm") { fail("cold and warm do not alternate") }
        { for (i = 4; i <= 10; i++) if (number($i) < 0) fail("negative: " $i); above_zero($7); above_zero($10); lines++ }
        END { if (!bad && lines != 8) fail(lines + 0 " lines of 8") }'
    checked "$1"
}
run_first() { bash tests/bench/first_loss.sh "$@" >"$out/first"; }
accept 'the first loss' run_first 4 10
accept 'the time to the first loss' check_first "$out/first"
changed "$out/first" '$d' && reject 'a first loss too few' '7 lines of 8' check_first "$out/bad"
changed "$out/first" '6s/[0-9.]*$/inf/' && reject 'a time that is no number' 'not a number' check_first "$out/bad"
reject 'a loss that there is not' 'no such call' "$BUILD/first_loss" hinge f32
reject 'a driver that there is not' 'could not be loaded' \
    env GPULOSS_DRIVER="$out/none.so" "$BUILD/first_loss" kl_div f32

# All of it, by the script. PyTorch would measure a real GPU beside the interpreter: it is shown none.
run_all() {
    CUDA_VISIBLE_DEVICES='' CALLS=10 bash tests/bench/run.sh --bytes 512 --most 600 --rest 0 --runs 1 --only softcap --peers >"$out/all" 2>&1 || {
        cat "$out/all" && return 1
    }
    [ "$(grep -cE '^(no peers: |ceiling copy |loss .* floor%$|what a call costs|time to the first loss)' "$out/all")" = 5 ]
}
accept 'the whole benchmark' run_all
cp -r "$BUILD/bench" "$out/" && reject 'a benchmark without its parts' 'first_loss: No such file' env BUILD="$out" \
    CUDA_VISIBLE_DEVICES= CALLS=10 bash tests/bench/run.sh --bytes 512 --most 600 --rest 0 --runs 1 kl_div_pp

# The Python of it.
parses() { python3 -c 'import ast, sys; [ast.parse(open(path).read(), path) for path in sys.argv[1:]]' "$@"; }
draw() { python3 tests/bench/plot.py "$1" "$out/$2.svg"; }
panels() {
    local count
    count=$(grep -cE '>(cross_entropy|kl_div_(pp|ll|logits)), loss( \+ gradient)?<' "$1")
    echo "$count panels of 8" && [ "$count" = 8 ]
}
# The fields of a cell, in bench.h and as peers.py reads them.
check_fields() {
    diff <(${CC:-cc} -E -P tests/bench/bench.h | sed -n '/^typedef struct bench_cell {/,/^}/p' | grep -oE '[*, ][a-z]+[,;]' |
        tr -d '*,; ') \
        <(sed -n '/^class Cell/,/^    \]/s/^ *("\([a-z]*\)".*/\1/p' "$1" | sed 's/^passes$/pass/')
}
accept 'the fields of a cell' check_fields tests/bench/peers.py
changed tests/bench/peers.py '/("layout"/d' && reject 'cells without a field' 'layout' check_fields "$out/bad"
if command -v python3 >/dev/null; then
    accept 'the scripts are Python' parses tests/bench/*.py
    reject 'what is not Python' 'SyntaxError' parses tests/bench/bench.h
    changed "$out/bench.csv" '1s/,bytes/,size/' && reject 'a plot without a column' 'no column bytes' draw "$out/bad" bad
    changed "$out/bench.csv" '2,$d' && reject 'a plot without cells' 'has no cell' draw "$out/bad" bad
    changed "$out/bench.csv" '2,${/,plain,packed,/d}' && reject 'a plot of options' 'has no cell' draw "$out/bad" bad
    changed "$out/bench.csv" '3s/^\(\([^,]*,\)\{9\}\)[^,]*/\10/' && reject 'a plot of a ceiling of 0' 'above 0' draw "$out/bad" bad
    reject 'a plot of nothing' 'No such file' draw "$out/none.csv" bad
    if python3 -c 'import matplotlib' 2>/dev/null; then
        accept 'a plot' draw "$out/bench.csv" one
        accept 'its panels' panels "$out/one.svg"
        changed "$out/one.svg" 's/kl_div_ll, loss</kl, loss</' && reject 'a panel too few' '7 panels of 8' panels "$out/bad"
        accept 'the plot once more' draw "$out/bench.csv" two
        accept 'the same plot' cmp "$out/one.svg" "$out/two.svg"
    else
        skip 'the plot: python3-matplotlib is not installed'
    fi
else
    skip 'the plot and the peers: python3 is not installed'
fi

report bench
