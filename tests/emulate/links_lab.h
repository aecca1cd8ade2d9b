/* Engines over the links of a topology or a script, with files in a separate folder. Include after dreamddp.h
 * and cmocka.h. */
#ifndef LINKS_LAB_H
#define LINKS_LAB_H

#include "comm/net_world.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_links.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* Writes a file with this name and text and returns its path, which is valid until the second call from now.
 * */
static const char *write_file(const char *name, const char *text)
{
    static char paths[2][128];
    static int next;
    char *path = paths[next++ % 2];
    FILE *f;

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
    return path;
}

static ddp__links rank_links[8];

static void use_links(ddp__engine_config *cfg, int rank) { cfg->links = &rank_links[rank]; }

static void links_for(int world, const char *net, const char *script)
{
    const char *path = script ? write_file("now", script) : NULL;

    for (int r = 0; r < world; r++) {
        ddp_config c;
        ddp_error err;
        memset(&c, 0, sizeof c);
        c.transport = DDP_TCP;
        c.rank = r;
        c.world = world;
        c.net = net;
        c.network.net_script = path;
        if (ddp__links_open(&c, 0, &rank_links[r], &err) != DDP_OK) fail_msg("%s", err.msg);
    }
}

static void links_done(int world)
{
    for (int r = 0; r < world; r++) ddp__links_free(&rank_links[r]);
}

typedef struct timing {
    size_t n; /* number of floats */
    double took[8];
    double start;    /* when rank 0 started to send */
    double whole;    /* for run_script: measured from before the script's t=0, however late a rank starts */
    ddp_status want; /* expected on every rank */
    const char *text;
} timing;

/* Rank 0 sends n floats to every other rank at the same time. */
static void send_to_all(net_rank *me, void *user)
{
    timing *t = (timing *)user;
    float *data = (float *)calloc(t->n, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    long ticket[8];

    piece.data = data;
    piece.count = t->n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    piece.count = 1;
    net_ok(me, net_do(me, &m)); /* all ranks are connected */
    piece.count = t->n;
    if (me->rank == 0) t->start = ddp_now();
    m.verb = me->rank ? DDP_RECEIVE : DDP_SEND;
    for (int r = 1; r < me->world; r++) {
        m.peer = me->rank ? 0 : r;
        if (me->rank == 0 || me->rank == r)
            net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[r], &me->err));
    }
    for (int r = 1; r < me->world; r++)
        if (me->rank == 0 || me->rank == r) net_ok(me, ddp__engine_wait(me->engine, ticket[r], &me->err));
    t->took[me->rank] = ddp_now();
    free(data);
}

/* Rank 0 reaches rank 1 at 80 Mbit/s and 10 ms, and rank 2 at 20 Mbit/s and 50 ms. If `limited`, its access
 * link has 40 Mbit/s. It sends 2.5 MB to each; took[r] receives the seconds until rank r has its part. */
static DDP__UNUSED void run_pairs(int limited, int tcp, timing *t)
{
    static const char *const hosts[] = {"", ", \"host_gbps\": [0.04, 1, 1]"};
    char text[512], name[40];
    net_setup set;

    snprintf(text, sizeof text,
             "{\"bandwidth_gbps\": [[0, 0.08, 0.02], [1, 0, 1], [1, 1, 0]],"
             " \"delay_ms\": [[0, 10, 50], [1, 0, 1], [1, 1, 0]]%s}",
             hosts[limited]);
    snprintf(name, sizeof name, "pairs%d.json", 2 * limited + tcp); /* both cases may run at once */
    links_for(3, write_file(name, text), NULL);
    net_defaults(&set, 3);
    set.tcp = tcp;
    set.tune = use_links;
    set.cfg.peer_timeout_s = set.cfg.op_timeout_s = 100; /* reached only after a failure */
    memset(t, 0, sizeof *t);
    t->n = 625000;
    net_run(&set, send_to_all, t);
    for (int r = 1; r < 3; r++) t->took[r] -= t->start;
    assert_true(t->took[2] > (limited ? 1.5 : 1.045));
    assert_true(t->took[1] > (limited ? 0.505 : 0.255));
    links_done(3);
}

static void reduce_once(net_rank *me, void *user)
{
    timing *t = (timing *)user;
    float *data = (float *)calloc(t->n, sizeof *data);
    ddp_status status;
    ddp_piece piece;
    ddp_message m;
    double begin = ddp_now();

    piece.data = data;
    piece.count = t->n;
    for (size_t i = 0; i < t->n; i++) data[i] = (float)(me->rank + 1);
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    status = net_do(me, &m);
    t->took[me->rank] = ddp_now() - begin;
    if (status != t->want || (t->text && !strstr(me->err.msg, t->text)))
        net_fail(me, "status %d, %.250s", (int)status, me->err.msg);
    for (size_t i = 0; status == DDP_OK && i < t->n; i++)
        if (data[i] != (float)(me->world * (me->world + 1) / 2)) status = DDP_FAILED;
    if (status == DDP_FAILED) net_fail(me, "a wrong sum");
    free(data);
}

static DDP__UNUSED double run_script(int world, int tcp, const char *net, const char *script, timing *t,
                                     double peer_timeout_s)
{
    net_setup set;
    double longest = 0, begin = ddp_now();

    links_for(world, net, script);
    net_defaults(&set, world);
    set.tcp = tcp;
    set.tune = use_links;
    set.cfg.peer_timeout_s = peer_timeout_s;
    net_run(&set, reduce_once, t);
    t->whole = ddp_now() - begin;
    links_done(world);
    for (int r = 0; r < world; r++)
        if (t->took[r] > longest) longest = t->took[r];
    return longest;
}

#endif /* LINKS_LAB_H */
