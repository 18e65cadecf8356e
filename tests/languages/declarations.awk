# awk -v to=c|rust|constants|structs -f declarations.awk gpuloss_sys.rs: the declarations of gpuloss_sys.rs, for a comparison
# with gpuloss.h.
#     c          declarations in C, which compile after gpuloss.h if each function and field has the same types there
#     rust       a main(), which prints each constant, the size of each struct, and the offset and size of each field
#     constants  the names of the constants
#     structs    the names of the structs that have fields
# Declarations look as rustfmt writes them: one on a line, or the arguments of a function on lines of their own.

# A type in C. Pointers are written behind what they point to.
function c_type(type, arguments) {
    if (sub(/^\*mut /, "", type))
        return c_type(type) " *"
    if (sub(/^\*const /, "", type))
        return c_type(type) " const *"
    if (type ~ /^\[.*; [0-9]+\]$/)
        return c_type(substr(type, 2, index(type, ";") - 2)) " [" substr(type, index(type, ";") + 2)
    if (sub(/^Option<unsafe extern "C" fn\(/, "", type)) {
        arguments = type
        sub(/\).*/, "", arguments)
        sub(/.*\) -> /, "", type)
        sub(/>$/, "", type)
        return c_type(type) " (*)(" c_arguments(arguments) ")"
    }
    return type in c_types ? c_types[type] : type
}

# "name: type, name: type" in C.
function c_arguments(text, parts, n, i, all) {
    n = split(text, parts, /, */)
    for (i = 1; i <= n; i++)
        if (sub(/^ *[a-z_]+: /, "", parts[i]))
            all = all (all == "" ? "" : ", ") c_type(parts[i])
    return all == "" ? "void" : all
}

function c_function(text, name, arguments, result) {
    name = arguments = result = text
    sub(/\(.*/, "", name)
    sub(/^[^(]*\(/, "", arguments)
    sub(/\).*/, "", arguments)
    if (!sub(/.*\) -> /, "", result))
        result = "c_void"
    print "extern " c_type(result) " " name "(" c_arguments(arguments) ");"
}

BEGIN {
    split("c_void=void c_char=char c_int=int c_uint=unsigned usize=size_t i64=int64_t f64=double " \
          "CUctx_st=struct_CUctx_st CUstream_st=struct_CUstream_st", pairs, " ")
    for (i in pairs) {
        split(pairs[i], pair, "=")
        sub(/struct_/, "struct ", pair[2])
        c_types[pair[1]] = pair[2]
    }
    if (to == "rust") {
        print "macro_rules! field {"
        print "    ($s:ident, $f:ident) => {{"
        print "        let value = std::mem::MaybeUninit::<$s>::uninit();"
        print "        let field = unsafe { std::ptr::addr_of!((*value.as_ptr()).$f) };"
        print "        let offset = field as usize - value.as_ptr() as usize;"
        print "        println!(\"{}.{} {} {}\", stringify!($s), stringify!($f), offset, size_of(field));"
        print "    }};"
        print "}"
        print "fn size_of<T>(_: *const T) -> usize {"
        print "    std::mem::size_of::<T>()"
        print "}"
        print "fn main() {"
    }
}

sub(/^pub const /, "") {
    name = $1
    sub(/:/, "", name)
    if (to == "rust")
        print "    println!(\"" name " {}\", " name ");"
    else if (to == "constants")
        print name
}

sub(/^pub type /, "") {
    name = type = $0
    sub(/ = .*/, "", name)
    sub(/.* = /, "", type)
    sub(/;$/, "", type)
    if (to == "c")
        print "_Static_assert(sizeof(" name ") == sizeof(" c_type(type) "), \"" name " has another size\");"
}

sub(/^pub struct /, "") { within = $1 }
/^}/ { within = "" }
within != "" && sub(/^    pub /, "") {
    name = type = $0
    sub(/:.*/, "", name)
    sub(/^[a-z_]*: /, "", type)
    sub(/,$/, "", type)
    if (to == "c")
        print "_Static_assert(__builtin_types_compatible_p(__typeof__(((" within " *)0)->" name "), __typeof__(" \
            c_type(type) ")), \"" within "." name " has another type\");"
    else if (to == "rust")
        print "    field!(" within ", " name ");"
    if (!seen[within]++ && to == "structs")
        print within
    else if (seen[within] == 1 && to == "rust")
        print "    println!(\"" within " {}\", std::mem::size_of::<" within ">());"
}

sub(/^    pub fn /, "") {
    signature = ""
    is_function = 1
}
is_function {
    sub(/^ +/, "")
    signature = signature $0 " "
    if (/;$/) {
        sub(/; $/, "", signature)
        if (to == "c")
            c_function(signature)
        is_function = 0
    }
}

END {
    if (to == "rust")
        print "}"
}
