/* Small operator lists and networks, for the tests of the estimator and of OP-Fence. */
#ifndef TESTS_FENCE_LAB_H
#define TESTS_FENCE_LAB_H

/* Asserts that both are close to each other and finite. */
static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 2e-9 * fmin(fabs(a), fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static void must(ddp_status status, const ddp_error *err)
{
    if (status != DDP_OK) fail_msg("%s", err->msg);
}

/* ---- lists and networks ---- */

static ddp_oplist list_of(int count)
{
    ddp_oplist list;
    ddp_error err;

    must(ddp_oplist_new(count, &list, &err), &err);
    return list;
}

static void op(ddp_oplist *list, int i, const char *name, int a, int b, double flops, double output,
               double params)
{
    int args[2], n = (a >= 0) + (b >= 0);
    ddp_error err;

    args[0] = a;
    args[1] = b;
    must(ddp_oplist_set(list, i, name, args, n, flops, output, params, &err), &err);
}

/* All links are equal: delay_s, bytes per second. Every device has 10 FLOP/s. */
static ddp_network net_of(int devices, double delay_s, double rate)
{
    ddp_network net;
    ddp_error err;
    int i;

    must(ddp_network_new(devices, &net, &err), &err);
    net.speed = (double *)calloc((size_t)devices, sizeof(double));
    for (i = 0; i < devices; i++) net.speed[i] = 10;
    for (i = 0; i < devices * devices; i++) {
        net.delay_s[i] = i % (devices + 1) ? delay_s : 0;
        net.rate[i] = i % (devices + 1) ? rate : 0;
    }
    return net;
}

#endif /* TESTS_FENCE_LAB_H */
