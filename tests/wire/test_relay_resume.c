/* Pairs that rank 0 relays, and that come back whenever their connection breaks, at either end. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
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
#include "wire/relayed_lab.h"

static void relayed_pairs_come_back(void **state)
{
    (void)state;
    talk_over_cuts(NULL, 20);
}

/* Who relays is gone: the pair is lost at once, not after the time-out. */
static void without_rank_0_they_are_lost(void **state)
{
    static meet_rank m[3];
    unsigned char want[3] = {0, 0, 1};
    double begin;
    char c;
    long n;
    (void)state;
    meet_relayed(m, 3, NULL);
    m[0].wire->table->close(m[0].wire);
    begin = ddp_now();
    while ((n = m[1].wire->table->recv(m[1].wire, 2, &c, 1)) == 0 && ddp_now() < begin + 60)
        m[1].wire->table->wait(m[1].wire, NULL, want, ddp_now() + 0.1);
    assert_int_equal(n, -1);
    assert_int_not_equal(errno, ETIMEDOUT); /* a closed connection, not the time-out of the peer */
    for (int k = 1; k < 3; k++) m[k].wire->table->close(m[k].wire);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relayed_pairs_come_back),
        cmocka_unit_test(without_rank_0_they_are_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
