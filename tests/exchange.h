/* Collectives over a group, over a link or with another wire format, using ddp_exchange. Include after
 * dreamddp.h. */
#ifndef TESTS_EXCHANGE_H
#define TESTS_EXCHANGE_H

typedef struct way {
    int group, link;
    ddp_coding coding;
} way;

static inline int exchange(ddp_ctx *d, ddp_verb verb, way w, float *x, size_t n, float scale, int peer)
{
    ddp_message m;
    ddp_piece p;

    memset(&m, 0, sizeof m);
    memset(&p, 0, sizeof p);
    p.data = x;
    p.count = n;
    m.verb = verb;
    m.from = &p;
    m.from_count = 1;
    m.scale = scale;
    m.peer = peer;
    m.group = w.group;
    m.link = w.link;
    m.coding = w.coding;
    m.layer = DDP_NO_LAYER;
    return ddp_exchange(d, &m);
}

static inline way a_way(int group, int link, ddp_coding c)
{
    way w;

    w.group = group;
    w.link = link;
    w.coding = c;
    return w;
}

static inline way in_group(int group) { return a_way(group, 0, DDP_AS_FLOAT); }
static inline way on_link(int link) { return a_way(0, link, DDP_AS_FLOAT); }
static inline way coded(ddp_coding c) { return a_way(0, 0, c); }

#endif /* TESTS_EXCHANGE_H */
