/* Finds the valid name nearest to a misspelt one. ddprun includes this file without the library. */
#ifndef EXAMPLES_NEAREST_H
#define EXAMPLES_NEAREST_H

#include <string.h>

typedef struct nearest_name {
    const char *name; /* the best candidate so far. NULL means that no candidate is near enough. */
    int edits;        /* a candidate must differ by fewer edits */
} nearest_name;

static inline const char *nearest_undashed(const char *name) { return name + strspn(name, "-"); }

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal string alignment).
 * Of longer names the first 63 characters count. */
static inline int nearest_edits(const char *a, const char *b)
{
    enum { MOST = 63 };
    int rows[3][MOST + 1];
    const int n = (int)strnlen(a, MOST), m = (int)strnlen(b, MOST);

    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        const int *above = rows[(i - 1) % 3], *second = rows[(i + 1) % 3];
        int *row = rows[i % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int least = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < least) least = above[j] + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && second[j - 2] + 1 < least)
                least = second[j - 2] + 1;
            row[j] = least;
        }
    }
    return rows[n % 3][m];
}

/* Names differ by at most one edit, and one more for every four letters. */
static inline nearest_name nearest_begin(const char *given)
{
    nearest_name found = {NULL, 0};

    found.edits = 2 + (int)strlen(nearest_undashed(given)) / 4;
    return found;
}

/* An abbreviation of three letters or more counts as one edit. */
static inline void nearest_consider(nearest_name *found, const char *given, const char *candidate)
{
    const char *a = nearest_undashed(given), *b = nearest_undashed(candidate);
    int edits = nearest_edits(a, b);

    if (edits > 1 && strlen(a) > 2 && !strncmp(a, b, strlen(a))) edits = 1;
    if (edits < found->edits) {
        found->edits = edits;
        found->name = candidate;
    }
}

#endif /* EXAMPLES_NEAREST_H */
