#!/bin/bash
# readme.sh [README]: whether the README is short, its code compiles, its links, make targets and macros exist, and its
# figures are the figures of tests/gpu-report.txt.
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/check.sh
readme=${1:-README.md}
readme_report=tests/gpu-report.txt
out=${BUILD:-build}/readme
rm -rf "$out" && mkdir -p "$out" || exit 2

MOST_WORDS=1500
words=$(grep -oE '[^[:space:]|]*[[:alnum:]][^[:space:]|]*' "$readme" | wc -l)
accept "at most $MOST_WORDS words: it has $words" [ "$words" -le $MOST_WORDS ]

# Each block of code is a translation unit.
awk -v out="$out" '/^```c$/ { file = out "/block_" ++blocks ".c"; next } /^```$/ { file = "" } file { print >file }' "$readme"
accept "a block of code" [ -e "$out/block_1.c" ]
for block in "$out"/block_*.c; do
    [ -e "$block" ] && accept "$block compiles" gcc -std=c99 -Wall -Wextra -Werror -I. -c -o "$out/block.o" "$block"
done

while read -r link; do
    accept "the link $link" [ -e "$link" ]
done < <(grep -oE '\]\([^)#]+\)' "$readme" | sed 's/^](//;s/)$//' | grep -v '^http')
while read -r target; do
    accept "make $target" grep -qE "^$target:" Makefile
done < <(grep -oE '`make [a-z-]+' "$readme" | sed 's/.* //' | sort -u)
while read -r name; do
    accept "$name is in the header" grep -q "$name" gpuloss.h
done < <(grep -oE '\b(gpuloss|GPULOSS)_[A-Za-z0-9_]+' "$readme" | sort -u)

# rows_of HEADING: the rows of the table with this heading.
rows_of() {
    awk -v heading="$1" 'index($0, heading) == 1 { inside = 1; next } !/^\|/ { inside = 0 } inside && !/^\|---/' "$readme"
}
# in_report LINE FIGURES NAME=VALUE...: the first line of the report that satisfies LINE, which is of the newest run, has the
# figures.
in_report() {
    local line=$1 figures=$2 assignments=()
    shift 2
    for assignment; do
        assignments+=(-v "$assignment")
    done
    awk "${assignments[@]}" "function rounds(x, to) { return sprintf(\"%.0f\", x) == to }
        $line { found = $figures; exit } END { exit !found }" "$readme_report"
}
loss_of() {
    case $1 in
    'cross_entropy') echo cross_entropy ;;
    'the same with options') echo cross_entropy_options ;;
    'cross_entropy of columns') echo columns ;;
    'kl_div of probabilities') echo kl_div_pp ;;
    'kl_div of logits') echo kl_div_logits ;;
    'Jensen-Shannon of logits') echo jsd_logits ;;
    *) echo "unknown: $1" ;;
    esac
}
tables=0
while IFS='|' read -r _ call type shape pass us floor eager compiled _; do
    read -r call <<<"$call"
    read -r rows _ classes <<<"$shape"
    read -r pass <<<"$pass"
    cell="$(loss_of "$call") ${type// /} $rows $classes $pass"
    accept "the figures of $call ($cell)" in_report \
        '$1 " " $4 " " $5 " " $6 " " (/loss \+ gradient/ ? "loss + gradient" : $7) == cell' \
        'rounds($(at = /loss \+ gradient/ ? 10 : 8), us) && rounds($(at + 6), floor) && rounds($(at + 7), eager) &&
        rounds($(at + 9), compiled)' cell="$cell" us="${us// /}" floor="${floor// /}" eager="${eager// /}" \
        compiled="${compiled// /}"
    tables=$((tables + 1))
done < <(rows_of '| call | type |')
accept "ten rows of speed" [ "$tables" = 10 ]
tables=0
while IFS='|' read -r _ divergence ours torch _; do
    accept "the accuracy of ${divergence// /}" in_report 'index($0, "KL of logits:  " divergence ",")' \
        '$0 ~ "gpuloss " ours ", of PyTorch " torch "$"' divergence="${divergence// /}" ours="${ours// /}" \
        torch="$(sed 's/[ ]//g;s/+/[+]/' <<<"$torch")"
    tables=$((tables + 1))
done < <(rows_of '| divergence | gpuloss |')
accept "four rows of accuracy" [ "$tables" = 4 ]
tables=0
while IFS='|' read -r _ kernel cold warm _; do
    read -r kernel <<<"$kernel"
    for cache in "cold ${cold// /}" "warm ${warm// /}"; do
        accept "the first loss of $kernel ($cache)" in_report '$1 " " $2 " " $3 == row' 'rounds($7, ms)' \
            row="${cache% *} $kernel" ms="${cache#* }"
    done
    tables=$((tables + 1))
done < <(rows_of '| | cold | warm')
accept "four first losses" [ "$tables" = 4 ]

megabytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }
bytes=$(gcc -O2 -c -o "$out/implementation.o" -I. tests/compile/implementation.c && size "$out/implementation.o" |
    awk 'NR == 2 { print $1 + $2 + $3 }')
accept "the header's size" grep -q "gpuloss.h. is $(megabytes "$(wc -c <gpuloss.h)") of text" "$readme"
accept "the implementation's size" grep -q "implementation $(megabytes "$bytes") of object code" "$readme"

report readme
