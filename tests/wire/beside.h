/* Runs cases that mostly wait in parallel, each in a separate process. Include after cmocka.h. */
#ifndef BESIDE_H
#define BESIDE_H

#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BESIDE = 2 };
#else
enum { BESIDE = 6 };
#endif

/* Runs cases 0 to count - 1. `one` returns "" or the failure. The caller must not have other threads. */
static void run_beside(int count, const char *(*one)(int i))
{
    int begun = 0, ended = 0, bad = 0;

    fflush(NULL);
    while (ended < count) {
        int status = 0;
        if (begun < count && begun - ended < BESIDE) {
            const int i = begun++;
            const pid_t pid = fork();
            assert_true(pid >= 0);
            if (pid == 0) {
                const char *wrong = one(i);
                if (wrong[0]) fprintf(stderr, "case %d: %s\n", i, wrong);
                fflush(NULL);
                _exit(wrong[0] != 0);
            }
            continue;
        }
        assert_true(wait(&status) > 0);
        ended++;
        bad += status != 0;
    }
    assert_int_equal(bad, 0);
}

#endif /* BESIDE_H */
