/* Names of types, and numbers in the text of instructions and variables. */
#include "parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum ptxsim_type ptxsim_type_name(const char *name) {
    static const char *const names[] = {"",     ".pred", ".b8",    ".b16",  ".b32",    ".b64", ".b128",
                                        ".u8",  ".u16",  ".u32",   ".u64",  ".s8",     ".s16", ".s32",
                                        ".s64", ".f16",  ".f16x2", ".bf16", ".bf16x2", ".f32", ".f64"};
    for (int i = 1; i <= T_F64; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum ptxsim_type)i;
    return T_NONE;
}

bool ptxsim_number(const char *text, const char **end, enum ptxsim_type type, uint64_t *value) {
    const char *p = text;
    bool minus = *p == '-';
    bool is_float = ptxsim_is_float((int)type);
    if (minus)
        p++;
    if (!ptxsim_is_digit(*p))
        return false;
    if (p[0] == '0' && (p[1] == 'f' || p[1] == 'F' || p[1] == 'd' || p[1] == 'D') && !minus) {
        bool wide = p[1] == 'd' || p[1] == 'D';
        size_t digits = wide ? 16 : 8;
        char hex[17] = {0};
        for (size_t i = 0; i < digits; i++) {
            if (!isxdigit((unsigned char)p[2 + i]))
                return false;
            hex[i] = p[2 + i];
        }
        *value = strtoull(hex, NULL, 16);
        *end = p + 2 + digits;
        if (wide && type == T_F32) {
            double d;
            memcpy(&d, value, sizeof d);
            float f = (float)d;
            uint32_t u;
            memcpy(&u, &f, sizeof u);
            *value = u;
        } else if (!wide && type == T_F64) {
            uint32_t u = (uint32_t)*value;
            float f;
            memcpy(&f, &u, sizeof f);
            double d = (double)f;
            memcpy(value, &d, sizeof d);
        }
        return true;
    }
    char *stop;
    size_t digits = strspn(p, "0123456789");
    if (is_float && (p[digits] == '.' || p[digits] == 'e' || p[digits] == 'E')) {
        double d = strtod(text, &stop);
        float f = (float)d;
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (type == T_F64)
            memcpy(value, &d, sizeof d);
        else
            *value = u;
        *end = stop;
        return true;
    }
    if (p[0] == '0' && (p[1] == 'b' || p[1] == 'B'))
        *value = strtoull(p + 2, &stop, 2);
    else
        *value = strtoull(p, &stop, 0);
    if (*stop == 'U')
        stop++;
    if (minus)
        *value = 0 - *value;
    *end = stop;
    return true;
}
