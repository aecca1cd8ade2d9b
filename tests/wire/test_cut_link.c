/* Links between processes that are cut and come back, between network namespaces, or do not come
 * back, as the other process was killed. */
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

/* Before peer_timeout_s, which is 20: the system has closed its connection. */
static void a_killed_process_is_found_at_once(void **state)
{
    (void)state;
    assert_true(seconds_to_notice(1) < 15);
    assert_true(seconds_to_notice(0) < 15);
}

/* A real cut, between network namespaces. */
static void a_cut_link_resumes_when_it_is_back(void **state)
{
    cut_board *board = board_or_skip();
    (void)state;

    /* it lasts longer than a link may be silent, and the operation is not over before it */
    assert_true(cut_for(3, "ip -n NS0 link set NSa down", "ip -n NS0 link set NSa up", 10, (size_t)4 << 20,
                        board) > 0);
    namespaces_off();
    munmap(board, sizeof *board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_is_found_at_once),
        cmocka_unit_test(a_cut_link_resumes_when_it_is_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
