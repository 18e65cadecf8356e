# Sourced by the scripts that plant faults in examples: a copy of the tree for each fault.
# shellcheck shell=bash disable=SC2154

# The tree in $out/tree, with its own copy of the examples; all else is linked. Its build folder is $out/build, which has the
# interpreter of this tree.
copy_tree() {
    local entry build
    build=$(realpath "${BUILD:-build}")
    make -s BUILD="$build" "$build/interpreter/libcuda.so.1" || exit 2
    mkdir -p "$out/tree" "$out/build"
    for entry in *; do
        ln -s "$PWD/$entry" "$out/tree/$entry"
    done
    rm "$out/tree/examples" && cp -r examples "$out/tree/examples" && ln -s "$build/interpreter" "$out/build/interpreter"
}

# in_tree SCRIPT ARGUMENTS...: a test script on the copy. Without optimisation, which takes most of its time.
in_tree() {
    local script=$1
    shift
    BUILD=$out/build CFLAGS=-O0 bash "$out/tree/$script" "$@"
}

# planted SCRIPT ARGUMENT NAME WORD FILE SED: with FILE of the examples changed so, the script fails with a message.
planted() {
    local script=$1 argument=$2 name=$3 word=$4 file=examples/$5
    changed "$file" "$6" "$out/tree/$file" && reject "$name" "$word" in_tree "$script" "$argument"
    cp "$file" "$out/tree/$file"
}
