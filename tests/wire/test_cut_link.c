/* Links between processes that are cut and return, between network namespaces, or end because the other
 * process was killed. */
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

/* Noticed before peer_timeout_s (20 s): the system has closed the connection. */
static void killed_process_is_noticed_at_once(void **state)
{
    (void)state;
    assert_true(seconds_to_notice(1) < 15);
    assert_true(seconds_to_notice(0) < 15);
}

/* A real cut, between network namespaces. */
static void cut_link_resumes_when_it_returns(void **state)
{
    cut_board *board = board_or_skip();
    (void)state;

    /* the cut is longer than a link may be silent, and the operation is still running */
    assert_true(cut_for(3, "ip -n NS0 link set NSa down", "ip -n NS0 link set NSa up", 10, (size_t)4 << 20,
                        board) > 0);
    namespaces_off();
    munmap(board, sizeof *board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_process_is_noticed_at_once),
        cmocka_unit_test(cut_link_resumes_when_it_returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
