#!/bin/bash
# languages.sh: faults in the programs in other languages, of which tests/languages/run.sh has to reject each.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/bad/tree.sh
out=${BUILD:-build}/bad_languages
rm -rf "$out" && mkdir -p "$out" && out=$(realpath "$out") || exit 2
copy_tree
script=tests/languages/run.sh

# bad LANGUAGE FILE NAME WORD SED
bad() { planted $script "$1" "$3" "$4" "languages/$2" "$5"; }
declared() { bad rust gpuloss_sys.rs "$@"; }
in_rust() { bad rust losses.rs "$@"; }
in_go() { bad go losses.go "$@"; }

if command -v rustc >/dev/null; then
    accept "Rust as it is" in_tree $script rust
    declared "a field of another size" "create_desc.device has another type" 's/pub device: c_int/pub device: i64/'
    declared "a field of another type of the same size" "kl_div_desc.eps has another type" 's/pub eps: f64/pub eps: i64/'
    declared "a pointer to what is not const" "gpuloss_create_desc.driver_path has" 's/driver_path: \*const/driver_path: *mut/'
    declared "another function in a field" "create_desc.symbol has" 's/extern "C" fn(user: \*mut c_void, /extern "C" fn(/'
    declared "fields swapped" "[<>] gpuloss_kl_div_sparse_desc.loss_rows " \
        '/^pub struct gpuloss_kl_div_sparse_desc/,/^}/{s/ loss:/ LOSS:/;s/ loss_rows:/ loss:/;s/ LOSS:/ loss_rows:/}'
    declared "a field left out, where padding hides it" "[<] gpuloss_cross_entropy_desc.flags " \
        '/^pub struct gpuloss_cross_entropy_desc/,/^}/{/pub flags/d}'
    declared "a field too many" "has no member named .more" 's/^    pub scratch_bytes: .*/&\n    pub more: usize,/'
    declared "an array of another length" "gpuloss_info.device_name has" 's/; 256\]/; 255]/'
    declared "a struct in the order that Rust likes" "[<>] gpuloss_create_desc.device " \
        '/^#\[repr(C)\]$/{N;/gpuloss_create_desc/s/.*\n//}'
    declared "a status of another size" "gpuloss_status has another size" \
        's/^pub type gpuloss_status = c_uint/pub type gpuloss_status = i64/'
    declared "another version" "[<>] GPULOSS_VERSION_PATCH " 's/_PATCH: c_uint = .*;/_PATCH: c_uint = 98;/'
    declared "another sum of the version" "[<>] GPULOSS_VERSION " \
        's/GPULOSS_VERSION_MINOR \* 100/GPULOSS_VERSION_MINOR * 1000/'
    declared "other sizes of descs" "[<>] GPULOSS_DESC_BYTES " '/^    + size_of::<gpuloss_kl_div_desc>()$/d'
    declared "another enumerator" "[<>] GPULOSS_I32 " 's/^\(pub const GPULOSS_I32.*\) = 2;/\1 = 3;/'
    declared "an argument left out" "conflicting types for .gpuloss_free" '/fn gpuloss_free/s/, pointer: \*mut c_void//'
    declared "arguments swapped" "conflicting types for .gpuloss_create_versioned" \
        '/^        header_version: /{h;d};/^        desc_bytes: /G'
    declared "another result" "conflicting types for .gpuloss_destroy" 's/\(fn gpuloss_destroy.*\);/\1 -> gpuloss_status;/'
    in_rust "a wrong loss" "exit status 1 instead of 0" 's/loss -= log_p/loss -= 1.001 * log_p/'
    in_rust "a wrong gradient" "its gradient .*: FAIL" 's/(l.exp() - /(l.exp() * 1.001 - /'
    in_rust "a wrong divergence" "KL divergence .*: FAIL" 's/log_t.exp() \* (log_t - log_q)/log_q.exp() * (log_t - log_q)/'
    in_rust "another reduction" "cross-entropy .*: FAIL" 's/reduction = GPULOSS_MEAN/reduction = 2/'
    in_rust "a comparison left out" "FAILED: rust: it computes" '/compare("its gradient"/d'
    in_rust "an array that is too short" "grad: needs 32 x 50 elements (got 31)" \
        's/gpu.alloc(ROWS \* CLASSES)/gpu.alloc(ROWS - 1)/'
    in_rust "a length that is not checked" "FAILED: rust: it computes" \
        's/gpu.alloc(ROWS \* CLASSES)/gpu.alloc(ROWS - 1)/;/check_length("grad"/d'
    in_rust "a status that is ignored" "FAILED: rust: without a driver" 's/if status == GPULOSS_OK/if status < 1000/'
    in_rust "another exit status of the environment" "exit status 3 instead of 2" 's/is_environment { 2 }/is_environment { 3 }/'
    in_rust "another exit status of other errors" "exit status 2 instead of 3" 's/{ 2 } else { 3 }/{ 2 } else { 2 }/'
    in_rust "an error without its message" "it does not say: NVIDIA driver library" \
        's/\.to_string_lossy()\.into_owned();/.to_string_lossy().chars().take(0).collect();/'
    in_rust "an array that is not freed" "balance: 1 arrays and 0 streams" \
        's/^    let mut gpu_grad = \(.*\)?;/    let mut gpu_grad = std::mem::ManuallyDrop::new(\1?);/'
    in_rust "a context that is not freed" "it does not say: balance" \
        's/unsafe { gpuloss_destroy(.*/self.context = NonNull::dangling();/'
    in_rust "a warning" "unused variable" 's/^    let gpu = Gpu::new()?;/    let unused = 1;\n&/'
    if command -v rustfmt >/dev/null; then
        in_rust "a line that is not formatted" "FAILED: rust: formatting" 's/^    let gpu = /    let  gpu = /'
    else
        skip "formatting of Rust: there is no rustfmt"
    fi
else
    skip "faults in Rust: there is no rustc"
fi

if command -v go >/dev/null; then
    accept "Go as it is" in_tree $script go
    in_go "a wrong loss" "exit status 1 instead of 0" 's/loss -= logs/loss -= 1.001 * logs/'
    in_go "a wrong gradient" "its gradient .*: FAIL" 's/p := math.Exp(log)/p := math.Exp(log) * 1.001/'
    in_go "a wrong divergence" "KL divergence .*: FAIL" 's/math.Exp(t\[c\]) \*/math.Exp(q[c]) */'
    in_go "another reduction" "cross-entropy .*: FAIL" \
        's/^\tdesc := C.cross_entropy_defaults()/&\n\tdesc.reduction = C.GPULOSS_SUM/'
    in_go "a comparison that nobody heeds" ": FAIL$" \
        's/return lossPassed \&\& gradPassed/return lossPassed || gradPassed/;s/-= logs/-= 1.001 * logs/'
    in_go "a gradient that is not compared" "FAILED: go: it computes" \
        's/gradPassed, err := compare.*/gradPassed := len(grad) > 0/'
    in_go "an array that is too short" "grad: needs 32 x 50 elements (got 31)" \
        's/Alloc\[float32\](gpu, rows\*classes)/Alloc[float32](gpu, rows-1)/'
    in_go "an array of a negative length" "length: needs 0 elements or more (got -1)" \
        's/Alloc\[float32\](gpu, rows\*classes)/Alloc[float32](gpu, -1)/'
    in_go "a status that is ignored" "FAILED: go: without a driver" 's/if status == C.GPULOSS_OK/if status < 1000/'
    in_go "another exit status of the environment" "exit status 3 instead of 2" 's/os.Exit(2)/os.Exit(3)/'
    in_go "another exit status of other errors" "exit status 2 instead of 3" 's/os.Exit(3)/os.Exit(2)/'
    in_go "an error without its message" "it does not say: NVIDIA driver library" \
        's/C.GoString(C.gpuloss_last_error())/""/'
    in_go "an array that is not freed" "balance: 1 arrays and 0 streams" '/defer gpuGrad.release()/d'
    in_go "a context that is not freed" "it does not say: balance" '/defer gpu.Close()/d'
    in_go "another version" "compiled with another gpuloss.h" 's/C.GPULOSS_VERSION,/C.GPULOSS_VERSION+1,/'
    in_go "functions that stay hidden" "hidden symbol" 's/ -DGPULOSS_API=extern//'
    in_go "a library that is not linked" "undefined reference to .gpuloss_" 's/ -lgpuloss//'
    in_go "a format of another type" "FAILED: go: vet" 's/%-14s error/%-14d error/'
    if command -v gofmt >/dev/null; then
        in_go "a line that is not formatted" "FAILED: go: formatting" 's/^\tdefer gpu.Close()/\t\tdefer gpu.Close()/'
    else
        skip "formatting of Go: there is no gofmt"
    fi
else
    skip "faults in Go: there is no go"
fi

report bad_languages
