/* Linked into every test. The environment variable TEST_NAME=TEXT runs only the test functions whose names
 * contain TEXT. TEST_ONLY=NAME runs only the function NAME. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static char pattern[256]; /* cmocka keeps the pointer */

__attribute__((constructor)) static void select_by_name(void)
{
    const char *only = getenv("TEST_ONLY"), *name = getenv("TEST_NAME");
    char *c;

    if (only && *only)
        snprintf(pattern, sizeof pattern, "%s", only);
    else if (name && *name)
        snprintf(pattern, sizeof pattern, "*%s*", name);
    else
        return;
    for (c = pattern; *c; c++) *c = *c == ' ' || *c == '-' ? '_' : (char)tolower((unsigned char)*c);
    cmocka_set_test_filter(pattern);
}
