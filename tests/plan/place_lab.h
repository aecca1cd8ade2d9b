/* A network of 24 devices in four pipelines of six stages, and a search on it. */
#ifndef TESTS_PLACE_LAB_H
#define TESTS_PLACE_LAB_H

enum { N = 24, D = 4, S = 6 };

/* Whole seconds and rates that are powers of two, so that no sum is rounded. */
static ddp_network network(ddp_rng *r)
{
    ddp_network n;
    int i, j;

    assert_int_equal(ddp_network_new(N, &n, NULL), DDP_OK);
    n.pipelines = D;
    n.stages = S;
    n.dp_bytes = 1 << 20;
    n.pp_bytes = 3 << 18;
    for (i = 0; i < N; i++)
        for (j = 0; j < i; j++) {
            n.delay_s[i * N + j] = n.delay_s[j * N + i] = floor(1e6 * ddp_rng_uniform(r));
            n.rate[i * N + j] = n.rate[j * N + i] = (double)(1 << ddp_rng_below(r, 8));
        }
    return n;
}

static void open_search(ddp__place *p, ddp_place_options *o, const ddp_network *n)
{
    memset(o, 0, sizeof *o);
    o->seed = 5;
    o->max_candidates = 2000;
    assert_int_equal(ddp__place_open(p, n, D, S, NULL), DDP_OK);
    p->o = o;
    ddp__place_limits(p);
}

#endif /* TESTS_PLACE_LAB_H */
