/* Workers behind a NAT join a run whose members are behind a NAT, by way of a member that all can reach. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "member/nat_lab.h"

/* Only rank 0 accepts connections: every other pair of members and joining workers is relayed. */
static void workers_behind_nat_join_a_run_by_way_of_rank_0(void **state)
{
    static const int all[4] = {0, 1, 2, 3};
    plan_of_run p;
    pid_t pid[4];
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 2, 1000);
    nat_begin(&p);
    p.max_world = 4;
    p.last_comer = 3;
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 8);
    for (int k = 2; k < 4; k++) {
        pid[k] = start(&p, k, 1);
        until_step(&p, k, 1);
    }
    for (int k = 0; k < 4; k++) wait_for(pid[k]);
    all_well(&p, all, 4);
    nat_end(2); /* links of the last worker, to ranks 1 and 2 */
    munmap(p.b, sizeof *p.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_behind_nat_join_a_run_by_way_of_rank_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
