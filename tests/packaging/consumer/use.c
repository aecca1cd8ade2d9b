/* Two ranks, as threads, add a number. With DREAMDDP_IMPLEMENTATION this file also contains the library. */
#include "dreamddp.h"

static int add(ddp_ctx *d, void *user)
{
    float x = 1;
    (void)user;
    return ddp_all_reduce(d, &x, 1, 1) || x < 2 || x > 2;
}

int main(void)
{
    static ddp_config cfg;
    ddp_error err;
    cfg.world = 2;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    return ddp_launch(&cfg, add, 0, &err);
}
