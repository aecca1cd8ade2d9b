/* Durations of broken links: the time until a loss is detected, and until an operation continues. Run it
 * alone on an idle machine: `make timing`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* setns */
#endif
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "wire/cut_lab.h"
#include "wire/resume_lab.h"

/* A time is invalid if another process used the processor, so a time that is too long is measured again. */
enum { TRIES = 3 };

static void a_killed_process_is_found_at_once(void **state)
{
    double high = 1, low = 1;
    (void)state;
    for (int i = 0; i < TRIES && high >= 0.5; i++) high = seconds_to_notice(1);
    for (int i = 0; i < TRIES && low >= 0.5; i++) low = seconds_to_notice(0);
    print_message("found after %.3f s (higher rank), %.3f s (lower rank)\n", high, low);
    assert_true(high < 0.5);
    assert_true(low < 0.5);
}

static void a_cut_link_resumes_when_it_is_back(void **state)
{
    const size_t count = (size_t)8 << 20;
    cut_board *board = board_or_skip();
    double plain = 0, after = 1;
    (void)state;

    for (int i = 0; i < TRIES && after >= plain + 0.5; i++) {
        plain = cut_for(0, "true", "true", 10, count, board);
        after = cut_for(3, "ip -n NS0 link set NSa down", "ip -n NS0 link set NSa up", 10, count, board);
        print_message("rest of the operation without a cut %.2f s, from the return on %.2f s\n", plain,
                      after);
        assert_true(after > 0); /* the cut was during the operation */
    }
    namespaces_off();
    assert_true(after < plain + 0.5);
    munmap(board, sizeof *board);
}

static void an_operation_goes_on_soon_after_a_stall(void **state)
{
    double plain = 0, stalled = 1;
    (void)state;
    for (int i = 0; i < TRIES && stalled >= 1.5 * plain + 0.5; i++) {
        plain = stalled_operation(8000000, 0);
        stalled = stalled_operation(8000000, 3);
        print_message("%.2f s without a stall, %.2f s and the stall with one\n", plain, stalled);
    }
    assert_true(stalled < 1.5 * plain + 0.5);
}

static void a_link_that_stays_away_is_lost_in_time(void **state)
{
    double took = 2;
    (void)state;
    for (int i = 0; i < TRIES && took >= 2.0; i++) {
        took = seconds_to_lose();
        assert_true(took >= 1.2); /* 0.3 s of silence, then 1 s broken */
    }
    assert_true(took < 2.0);
}

static void idle_callers_do_not_keep_a_link_away(void **state)
{
    double took = 1;
    (void)state;
    for (int i = 0; i < TRIES && took >= 1; i++) took = seconds_past_idle_callers();
    print_message("back after %.3f s\n", took);
    assert_true(took < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_is_found_at_once),
        cmocka_unit_test(a_cut_link_resumes_when_it_is_back),
        cmocka_unit_test(an_operation_goes_on_soon_after_a_stall),
        cmocka_unit_test(a_link_that_stays_away_is_lost_in_time),
        cmocka_unit_test(idle_callers_do_not_keep_a_link_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
