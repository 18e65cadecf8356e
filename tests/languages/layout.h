/* The lines of the table that declarations.awk makes of a Rust file, from C. */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <gpuloss.h>
#include <stdio.h>

#define CONSTANT(name) printf(#name " %lld\n", (long long)name);
#define STRUCT(name) printf(#name " %zu\n", sizeof(name));
#define FIELD(name, field) printf(#name "." #field " %zu %zu\n", offsetof(name, field), sizeof(((name *)NULL)->field));

#endif
