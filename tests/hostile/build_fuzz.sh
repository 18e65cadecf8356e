# Sourced by the scripts that run fuzz.c: functions that build it, and run it. C is compiled with clang, which has
# libFuzzer.
# shellcheck shell=bash
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all'
fuzz_c="clang -std=gnu11 -O1 -g -w $sanitize"

# Says why fuzz.c can't be built here, or nothing.
why_no_fuzzer() {
    if ! command -v clang >/dev/null; then
        echo "there is no clang"
    elif ! clang -x c $sanitize -fsanitize=fuzzer - -o /dev/null >/dev/null 2>&1 <<<'
            int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long bytes);
            int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long bytes) { return data == 0 && bytes; }'; then
        echo "clang has no libFuzzer"
    fi
}

# prepare_fuzz HEADER FOLDER: a library that unpacks each text once, the stand-in driver, and the sources. The descs of the
# corpus are files of their own.
prepare_fuzz() {
    local part
    bash tests/unpack_once/run.sh "$1" "$2" 1 || return 1
    for part in fake_driver fake_kernels; do
        $fuzz_c -c "$2/tests/host/$part.c" -o "$2/$part.o" || return 1
    done
    mkdir -p "$2/corpus" && split -l 1 "$2/tests/hostile/corpus" "$2/corpus/"
}

# build_fuzz FOLDER: from the files in FOLDER. The program is FOLDER/fuzz.
build_fuzz() {
    local sources=$1/tests/hostile
    $fuzz_c -fsanitize=fuzzer -DUNPACKED_ONCE "$sources"/{fuzz,fields,rules}.c "$1"/{fake_driver,fake_kernels,images}.o \
        -o "$1/fuzz" -ldl -lpthread
}

# run_fuzz FOLDER ARGUMENTS...: a desc that fails is written to FOLDER. Texts are long, and strstr() need not check all of them.
run_fuzz() {
    local folder=$1
    shift
    mkdir -p "$folder/found" &&
        ASAN_OPTIONS=intercept_strstr=0 "$folder/fuzz" -max_len=4095 -reload=0 -artifact_prefix="$folder/" "$@" "$folder/found" \
            "$folder/corpus"
}

# half_are_accepted LOG: of the calls of a run.
half_are_accepted() { sed -n 's/^calls: //p' "$1" | tee /dev/stderr | awk '{ is_half = 2 * $3 > $1 } END { exit !is_half }'; }
