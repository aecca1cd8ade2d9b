/* [pure] Runs every file of tests/io/corpus/ through the readers, as the fuzzer does. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#ifndef CORPUS_LEAST
#define CORPUS_FOLDER "tests/io/corpus"
#define CORPUS_LEAST  28
#include "io/fuzz_readers.c"
#endif

static const char *const folder = CORPUS_FOLDER;

/* Reads a file. The caller frees the result. */
static uint8_t *contents(const char *name, size_t *n)
{
    uint8_t *p = (uint8_t *)malloc(1 << 20);
    char path[400];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "rb");
    if (!f || !p) fail_msg("cannot read %s", path);
    *n = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

static void corpus_files_are_read_or_rejected(void **unused)
{
    DIR *d = opendir(folder); /* tests run in the root of the repository */
    struct dirent *e;
    int files = 0;

    (void)unused;
    if (!d) SKIP("the corpus is missing");
    while ((e = readdir(d)) != NULL) {
        uint8_t *p;
        size_t n;

        if (e->d_name[0] == '.') continue;
        p = contents(e->d_name, &n);
        LLVMFuzzerTestOneInput(p, n);
        free(p);
        files++;
    }
    closedir(d);
    assert_true(files >= CORPUS_LEAST);
}

/* Prefixes and single changed bits of each file: the first inputs that a fuzzer tries. */
static void damaged_corpus_files_are_read_or_rejected(void **unused)
{
    DIR *d = opendir(folder);
    struct dirent *e;

    (void)unused;
    if (!d) SKIP("the corpus is missing");
    while ((e = readdir(d)) != NULL) {
        uint8_t *p;
        size_t n, i;

        if (e->d_name[0] == '.') continue;
        p = contents(e->d_name, &n);
        for (i = 0; i<n; i += n> 500 ? 17 : 1) {
            LLVMFuzzerTestOneInput(p, i);
            p[i] ^= (uint8_t)(1 << i % 8);
            LLVMFuzzerTestOneInput(p, n);
            p[i] ^= (uint8_t)(1 << i % 8);
        }
        free(p);
    }
    closedir(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corpus_files_are_read_or_rejected),
        cmocka_unit_test(damaged_corpus_files_are_read_or_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
