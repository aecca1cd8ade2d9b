/* Shared by the users of fuzz_use.c: checks that abort if they fail, and temporary files. */
#ifndef IO_USE_H
#define IO_USE_H

#include <ftw.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void fuzz_expect(int holds)
{
    if (!holds) abort();
}

/* A failure has its code and a message of one line. */
static void fuzz_refused(ddp_status s, const ddp_error *err)
{
    fuzz_expect(s != DDP_OK && err->code == s && err->msg[0] && !strpbrk(err->msg, "\n\r"));
}

/* Returns 1 for success, which has no message. */
static int fuzz_taken(ddp_status s, const ddp_error *err)
{
    if (s != DDP_OK) fuzz_refused(s, err);
    return s == DDP_OK;
}

static void fuzz_seconds(double t) { fuzz_expect(t >= 0 && t <= DBL_MAX); }

/* Equal up to rounding: the sums are computed in another order. */
static int fuzz_near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)) + DBL_MIN; }

static char *fuzz_string(const uint8_t *p, size_t n)
{
    char *s = (char *)malloc(n + 1);

    fuzz_expect(s != NULL);
    memcpy(s, p, n);
    s[n] = 0;
    return s;
}

/* ---- files: in a folder of this process, on a memory file system if there is one ---- */

enum { FUZZ_PATH = 200 };
static char fuzz_folder[FUZZ_PATH / 2];

static int fuzz_remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static void fuzz_sweep(void) { nftw(fuzz_folder, fuzz_remove_one, 8, FTW_DEPTH | FTW_PHYS); }

static void fuzz_path(char out[FUZZ_PATH], const char *name)
{
    const char *base = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";

    if (!fuzz_folder[0]) {
        snprintf(fuzz_folder, sizeof fuzz_folder, "%s/dreamddp-fuzz-XXXXXX", base);
        fuzz_expect(mkdtemp(fuzz_folder) != NULL);
        atexit(fuzz_sweep);
    }
    snprintf(out, FUZZ_PATH, "%s/%s", fuzz_folder, name);
}

static void fuzz_write(char path[FUZZ_PATH], const char *name, const void *p, size_t n)
{
    FILE *f;

    fuzz_path(path, name);
    f = fopen(path, "wb");
    fuzz_expect(f && fwrite(p, 1, n, f) == n && !fclose(f));
}

#endif /* IO_USE_H */
