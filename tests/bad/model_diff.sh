#!/bin/bash
# Plants one fault at a time in the example model_diff, and sees its test reject it.   tests/bad/model_diff.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
out=${BUILD:-build}/bad_model_diff
rm -rf "$out" && mkdir -p "$out" && out=$(realpath "$out") || exit 2
make -s -f tests/interpreter/interpreter.mk BUILD="${BUILD:-build}" interpreter || exit 2
interpreter=$(realpath "${BUILD:-build}/interpreter")
export out interpreter

# Each line: the failure that the test has to report | the file | the fault.
cat >"$out/faults" <<'FAULTS'
f32: kl_mean|model_diff.c|s/kl.target = b->logits.BASE./kl.target = b->logits[OTHER]/;s/kl.input = b->logits.OTHER./kl.input = b->logits[BASE]/
sums_kld: kl_mean|model_diff.c|s/kl = exp(lse.BASE.) \* (kl + (expm1(difference) - difference));/;/
sums_kld: perplexity_base|model_diff.c|/loss.side. -= lse.side.;/s/-= lse.side./-= 0/
equal_top|model_diff.c|s/host_argmax.BASE..row. == host_argmax.OTHER..row./host_argmax[BASE][row] <= host_argmax[OTHER][row]/
f32: perplexity_ratio|model_diff.c|s/loss.OTHER. - loss.BASE.)/loss[OTHER] - 1.0001 * loss[BASE])/
f32: p_difference_rms|model_diff.c|s/exp(-loss.OTHER.) - exp(-loss.BASE.)/exp(-loss[OTHER]) - 1.001 * exp(-loss[BASE])/
kld: cut_off_base|model_diff.c|s/KLD_RANGE - half_a_step/KLD_RANGE + half_a_step/
nonfinite: kl_mean|model_diff.c|s/bool finite = isfinite(kl)/bool finite = true/;s/finite = finite && isfinite.*/continue;/
rows that are not finite|model_diff.c|s/ && !option.skip_nonfinite//;s/total.nonfinite_rows > 0$/false/;s/if (total.nonfinite_rows > 0)/if (false)/
it says: nonfinite.other: row 107|model_diff.c|s/masked.OTHER. && !masked.BASE./masked[BASE] \&\& !masked[OTHER]/
it says: ... and 3 more|model_diff.c|s/MOST_REPORTED));/0));/
batches: tokens|model_diff.c|/^    collect(&batches/d
batches: kl_mean|model_diff.c|s/read_at(&sides.side., first \* work.row_bytes/read_at(\&sides[side], 0 * work.row_bytes/
as little memory as it says|model_diff.c|s/(ARRAYS + 1) \* ALIGNMENT_BYTES/(ARRAYS - 1) * ALIGNMENT_BYTES/
no progress in a file|model_diff.c|s/if (isatty(fileno(stderr)))/if (true)/
progress on a terminal|model_diff.c|s/if (isatty(fileno(stderr)))/if (false)/
kld: perplexity_base|model_diff/files.h|s|work.context / 2 + 1 + in_chunk|work.context / 2 + in_chunk|
kld: kl_mean|model_diff/files.h|s/uint16_t u;/int16_t u;/
odd_kld: exit status 0|model_diff/files.h|s/(work.classes + work.classes % 2)/work.classes/
an array of fewer rows|model_diff/files.h|s/rows.OTHER. != rows.BASE./rows[OTHER] > rows[BASE]/
a .kld file that is too long|model_diff/files.h|s/f->bytes != bytes/f->bytes < bytes/
another vocabulary|model_diff/files.h|s/if (header.side..i. != header.BASE..i.)/if (i != 1 \&\& header[side][i] != header[BASE][i])/
another token|model_diff/files.h|s/tokens.OTHER..at. != tokens.BASE..at./tokens[OTHER][at] < 0/
a token out of range|model_diff/files.h|s/tokens.BASE..at. >= work.classes/false/
a target out of range|model_diff/files.h|s/target >= work.classes/false/
a scale that can.t be|model_diff/files.h|s/if (scale < 0 ||/if (false ||/
a file that can.t be|model_diff/files.h|s/MOST_BYTES = 9e18/MOST_BYTES = 1e30/
f16: exit status 0|model_diff/options.h|s/{"f16", GPULOSS_F16, 2, 10}/{"f16", GPULOSS_F16, 4, 10}/
bf16: perplexity_base|model_diff/options.h|s/{"bf16", GPULOSS_BF16,/{"bf16", GPULOSS_F16,/
no driver|model_diff/options.h|s/GPULOSS_GROUP_ENVIRONMENT/GPULOSS_GROUP_RESOURCE/
f32: kl_mean|model_diff/figures.h|s/m->squares .* (double)(m->count - 1) /m->squares \/ (double)m->count /
: kl_9|model_diff/figures.h|s/share \* (double)(total.kl.count - 1)/share * (double)(total.kl.count - 2)/
: kl_9|model_diff/figures.h|s/rank - (double)below/0 * rank/
f32: perplexity_other|model_diff/figures.h|s/perplexity \* standard_error/standard_error/
f64: what is printed|model_diff/figures.h|s/%-44s %12.7g", description, value/%-44s %12.7g", description, 1.001 * value/
f64: kl_mean|model_diff/figures.h|s/%s,%.17g,", name/%s,%.9g,", name/
the histogram$|model_diff/figures.h|s/log10(total.kls.at.) - low/log10(total.kls[at]) - low + 0.01/
the histogram of zeros|model_diff/figures.h|s/small++;/;/
the name as it is in the histogram|model_diff/figures.h|s/c == '<' ||/c == '|' ||/
a csv on a full disk|model_diff/figures.h|s/if (fclose(out) != 0 || failed)/if (fclose(out) != 0 \&\& false)/
FAULTS

# run NUMBER FILE SED [MODELS]: the test of examples/ with the fault, in a folder of its own.
run() {
    local tree=$out/$1
    mkdir -p "$tree" && cp -r examples "$tree/" && ln -s "$PWD/gpuloss.h" "$interpreter" "$tree/" || return 1
    sed -i "$3" "$tree/examples/$2"
    BUILD=$tree bash tests/model_diff/run.sh "$tree/examples" "${@:4}" >"$tree/log" 2>&1
    echo $? >"$tree/status"
}
export -f run
run 0 model_diff.c ''
awk -F '|' '{
    sed = $0
    sub(/^[^|]*\|[^|]*\|/, "", sed)
    printf "%d%c%s%c%s%c", NR, 0, $2, 0, sed, 0
}' "$out/faults" | xargs -0 -n 3 -P "$(nproc)" bash -c 'run "$0" "$1" "$2" "$out/0/model_diff_test"'

ends() { cat "$out/$1/log" && return "$(cat "$out/$1/status")"; }
accept "examples/model_diff.c as it is" ends 0
n=0
while IFS='|' read -r failure file fault; do
    n=$((n + 1))
    if cmp -s "examples/$file" "$out/$n/examples/$file"; then
        not_planted "$fault"
    else
        reject "$fault" "^  FAILED: .*$failure" ends $n
    fi
done <"$out/faults"

rm -rf "${out:?}"/[0-9]*

report bad_model_diff
