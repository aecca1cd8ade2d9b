/* Workers behind NAT join a run whose members are behind NAT, through a member that all can reach. */
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
static void workers_behind_nat_join_through_rank_0(void **state)
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
    nat_end(2); /* the links of the last worker to ranks 1 and 2 */
    munmap(p.b, sizeof *p.b);
}

/* Rank 0 listens on 0.0.0.0 behind a NAT that forwards its port: only the others know its public address. */
static void worker_joins_at_the_public_address_of_a_forwarded_port(void **state)
{
    static const int all[3] = {0, 1, 2};
    plan_of_run p, first;
    pid_t pid[3];
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 2, 1000);
    /* 0.0.0.0 needs a port that no other test has at any address */
    snprintf(strrchr(p.addr, ':'), 8, ":%d", 11000 + (int)(getpid() % 8000));
    nat_begin(&p);
    p.max_world = 3;
    p.last_comer = 2;
    first = p;
    first.insecure = 1;
    snprintf(first.addr, sizeof first.addr, "0.0.0.0%s", strrchr(p.addr, ':'));
    pid[0] = start(&first, 0, 0);
    pid[1] = start(&p, 1, 0);
    until_step(&p, 0, 8);
    pid[2] = start(&p, 2, 1);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    nat_end(0);
    munmap(p.b, sizeof *p.b);
}

/* Workers 0 to world - 1 of a run, of which rank 0 and one more accept connections. Rank 0 is killed. */
static void rank_0_dies(plan_of_run *p, pid_t *pid, int world, int also_public)
{
    run_begin(p, DDP_LOCALSGD, world, 1000);
    nat_begin(p);
    for (int k = 0; k < world; k++) {
        nat_public = k == also_public;
        pid[k] = start(p, k, 0);
    }
    nat_public = 0;
    for (int k = 0; k < world; k++) until_step(p, k, 8);
    kill(pid[0], SIGKILL);
    wait_for(pid[0]);
}

/* Rank 1 had a relayed connection to rank 2, and dials it now; rank 2 relays between ranks 1 and 3. */
static void members_behind_nat_continue_when_another_member_is_public(void **state)
{
    static const int left[3] = {1, 2, 3};
    plan_of_run p;
    pid_t pid[4];
    (void)state;

    rank_0_dies(&p, pid, 4, 2);
    for (int k = 1; k < 4; k++) until_live(&p, k, 3);
    end_soon(&p);
    for (int k = 1; k < 4; k++) wait_for(pid[k]);
    all_well(&p, left, 3);
    nat_end(0);
    munmap(p.b, sizeof *p.b);
}

static void members_behind_nat_name_the_lost_relay_when_none_is_public(void **state)
{
    plan_of_run p;
    pid_t pid[3];
    (void)state;

    rank_0_dies(&p, pid, 3, -1);
    for (int k = 1; k < 3; k++) {
        wait_for(pid[k]);
        assert_int_equal(p.b->status[k], DDP_PEER_LOST);
        if (!strstr(p.b->text[k], "rank 0, which relayed ")) fail_msg("worker %d: %s", k, p.b->text[k]);
        assert_null(strstr(p.b->text[k], "the others can continue"));
    }
    nat_end(0);
    munmap(p.b, sizeof *p.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_behind_nat_join_through_rank_0),
        cmocka_unit_test(worker_joins_at_the_public_address_of_a_forwarded_port),
        cmocka_unit_test(members_behind_nat_continue_when_another_member_is_public),
        cmocka_unit_test(members_behind_nat_name_the_lost_relay_when_none_is_public),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
