/* Simulates a few steps of workers and servers, event by event, with the messages and the busy time of
 * each link. */
#include "plan/osp/served.h"
#include "plan/queue.h"

/* Messages on one link share it in parts, as chunks do in a real run. */
enum { DDP__SERVED_STEPS = 24, DDP__SERVED_SKIP = 8, DDP__SERVED_PARTS = 8 };

typedef enum ddp__served_state {
    DDP__SERVED_NONE,
    DDP__SERVED_PUSHED,
    DDP__SERVED_THERE,
    DDP__SERVED_ANSWERED
} ddp__served_state;

/* The messages between a worker and a server: sent at once (line 0), and late (line 1). */
typedef struct ddp__served_line {
    double left; /* when the latest part has left the sender */
    int state;   /* ddp__served_state */
    int parts;   /* parts that have not reached the link of the receiver, -1 while the last one is passing
                    through it */
    int clock;   /* number of pushes */
} ddp__served_line;

typedef struct ddp__served_run {
    const ddp_served *s;
    double *up, *down; /* [workers + servers] when the link of each rank is free */
    ddp__due *heap;    /* [events] number of a worker whose compute ends, or of workers + a line. At most
                          one event each */
    int events;
    int *computes;          /* [workers] 1 = the worker is computing */
    double *mark;           /* [workers] when its step DDP__SERVED_SKIP ended, and at the end the duration of
                               the remaining steps */
    ddp__served_line *line; /* [2][servers][workers] */
    int *step;              /* [workers] */
    int *turn;              /* [servers] */
} ddp__served_run;

size_t ddp_served_room(int workers, int servers)
{
    const size_t w = (size_t)workers, k = (size_t)servers;

    return (3 * w + 2 * k) * sizeof(double) + 2 * w * k * sizeof(ddp__served_line) +
           (w + 2 * w * k) * sizeof(ddp__due) + (2 * w + k) * sizeof(int);
}

static void ddp__served_lay(ddp__served_run *r, const ddp_served *s, void *work)
{
    const size_t w = (size_t)s->workers, k = (size_t)s->servers;

    memset(work, 0, ddp_served_room(s->workers, s->servers));
    r->s = s;
    r->events = 0;
    r->up = (double *)work;
    r->down = r->up + w + k;
    r->mark = r->down + w + k;
    r->line = (ddp__served_line *)(void *)(r->mark + w);
    r->heap = (ddp__due *)(void *)(r->line + 2 * w * k);
    r->step = (int *)(void *)(r->heap + w + 2 * w * k);
    r->computes = r->step + w;
    r->turn = r->computes + w;
}

static ddp__served_line *ddp__served_of(const ddp__served_run *r, int late, int k, int w)
{
    return &r->line[((size_t)late * (size_t)r->s->servers + (size_t)k) * (size_t)r->s->workers + (size_t)w];
}

/* ---- messages ---- */

static int ddp__served_rank(const ddp_served *s, int k) { return s->colocated ? k : s->workers + k; }

static double ddp__served_takes(const ddp_served *s, int late, int k)
{
    const double put_off = s->late ? s->late[k] : 0;

    return (late ? put_off : s->bytes[k] - put_off) / s->bytes_per_s / (int)DDP__SERVED_PARTS;
}

/* Starts a message of line (late, k, w), to its server or back. It occupies the whole uplink of the
 * sender. */
static void ddp__served_send(ddp__served_run *r, int late, int k, int w, int back, double now)
{
    const ddp_served *s = r->s;
    const int server = ddp__served_rank(s, k), from = back ? server : w;
    ddp__served_line *x = ddp__served_of(r, late, k, w);

    x->state = back ? (int)DDP__SERVED_ANSWERED : (int)DDP__SERVED_PUSHED;
    x->parts = server == w ? -1 : (int)DDP__SERVED_PARTS;
    x->left = now;
    if (server != w) {
        x->left = (r->up[from] > now ? r->up[from] : now) + ddp__served_takes(s, late, k);
        r->up[from] = x->left + ((int)DDP__SERVED_PARTS - 1) * ddp__served_takes(s, late, k);
    }
    ddp__due_add(r->heap, r->events++, x->left, s->workers + (int)(x - r->line));
}

/* A part reaches the receiver's link, which several senders share. Returns 1 if the message is complete. */
static int ddp__served_part(ddp__served_run *r, ddp__served_line *x, int late, int k, int w)
{
    const ddp_served *s = r->s;
    const int to = x->state == (int)DDP__SERVED_PUSHED ? ddp__served_rank(s, k) : w;
    const double takes = ddp__served_takes(s, late, k);
    double behind = r->down[to] + takes;

    if (x->parts < 0) return 1;
    r->down[to] = behind > x->left ? behind : x->left;
    x->left += takes;
    x->parts -= x->parts > 1 ? 1 : 2;
    behind = x->parts > 0 ? x->left : r->down[to] + s->delay_s;
    ddp__due_add(r->heap, r->events++, behind, s->workers + (int)(x - r->line));
    return 0;
}

/* ---- workers and servers ---- */

/* The number of lines of a worker that are in any state except NONE. */
static int ddp__served_open(const ddp__served_run *r, int late, int w)
{
    int n = 0;

    for (int k = 0; k < r->s->servers; k++)
        n += ddp__served_of(r, late, k, w)->state != (int)DDP__SERVED_NONE;
    return n;
}

static void ddp__served_push(ddp__served_run *r, int late, int w, double now)
{
    for (int k = 0; k < r->s->servers; k++)
        if (!late || (r->s->late && r->s->late[k] > 0)) ddp__served_send(r, late, k, w, 0, now);
}

/* Server k answers the workers that its rule allows after a change. */
static void ddp__served_rule(ddp__served_run *r, int late, int k, double now)
{
    const ddp_served *s = r->s;
    int there = 0, least = INT_MAX, w;

    for (w = 0; w < s->workers; w++) {
        const ddp__served_line *x = ddp__served_of(r, late, k, w);
        there += x->state == (int)DDP__SERVED_THERE;
        if (x->clock < least) least = x->clock;
    }
    if (s->rule == DDP_SERVING_TOGETHER && there < s->workers) return;
    for (int i = 0; i < s->workers; i++) {
        const ddp__served_line *x;
        w = s->rule == DDP_SERVING_IN_TURN ? r->turn[k] : i;
        x = ddp__served_of(r, late, k, w);
        if (s->rule == DDP_SERVING_EACH && s->ahead >= 0 && x->clock - least > s->ahead) continue;
        if (x->state != (int)DDP__SERVED_THERE) continue;
        ddp__served_send(r, late, k, w, 1, now);
        r->turn[k] = (w + 1) % s->workers;
    }
}

/* A worker has received all answers of a step. */
static void ddp__served_stepped(ddp__served_run *r, int w, double now)
{
    r->step[w]++;
    if (r->step[w] == (int)DDP__SERVED_SKIP || r->step[w] == (int)DDP__SERVED_STEPS)
        r->mark[w] = now - r->mark[w];
    r->computes[w] = 1;
    ddp__due_add(r->heap, r->events++, now + r->s->compute_s, w);
    ddp__served_push(r, 1, w, now);
}

/* Processes the next event. Returns 0 if all workers have finished. */
static int ddp__served_next(ddp__served_run *r)
{
    const int workers = r->s->workers, servers = r->s->servers;
    const ddp__due e = ddp__due_take(r->heap, r->events--);
    const int line = (int)e.i - workers, w = line < 0 ? (int)e.i : line % workers,
              k = line / workers % servers;
    const int late = line >= workers * servers;
    ddp__served_line *x = line < 0 ? NULL : &r->line[line];
    int left = 0;

    if (x && !ddp__served_part(r, x, late, k, w)) return 1;
    if (x && x->state == (int)DDP__SERVED_PUSHED) {
        x->state = (int)DDP__SERVED_THERE;
        x->clock++;
        ddp__served_rule(r, late, k, e.key);
        return 1;
    }
    if (x)
        x->state = (int)DDP__SERVED_NONE;
    else
        r->computes[w] = 0;
    if (x && !late && ddp__served_open(r, 0, w) == 0)
        ddp__served_stepped(r, w, e.key);
    else if ((!x || late) && !r->computes[w] && ddp__served_open(r, 1, w) == 0)
        ddp__served_push(r, 0, w, e.key);
    for (int i = 0; i < workers; i++) left += r->step[i] < (int)DDP__SERVED_STEPS;
    return left > 0;
}

static ddp_status ddp__served_check(const ddp_served *s, ddp_error *err)
{
    if (s->workers < 1 || s->servers < 1 || (s->colocated && s->servers != s->workers))
        return ddp__fail(
            err, DDP_ARG,
            "%d workers and %d servers%s: at least one of each, and equal numbers if each worker serves",
            s->workers, s->servers, s->colocated ? ", co-located" : "");
    DDP__TRY(ddp__check_finite(s->compute_s, 0, err, "computing takes %g s", s->compute_s));
    DDP__TRY(ddp__check_finite(s->delay_s, 0, err, "a delay is %g s", s->delay_s));
    DDP__TRY(ddp__check_finite(s->bytes_per_s, 1, err, "a link sends %g bytes a second", s->bytes_per_s));
    if (s->late && s->rule != DDP_SERVING_TOGETHER)
        return ddp__fail(err, DDP_ARG, "late bytes are possible only with rule DDP_SERVING_TOGETHER");
    for (int k = 0; k < s->servers; k++)
        if (!ddp__within(s->bytes[k], 0, DBL_MAX) || (s->late && !ddp__within(s->late[k], 0, s->bytes[k])))
            return ddp__fail(err, DDP_ARG,
                             "server %d has %g bytes, %g of them late: both must be at least 0, and late at "
                             "most all bytes",
                             k, s->bytes[k], s->late ? s->late[k] : 0.0);
    return DDP_OK;
}

ddp_status ddp_served_step(const ddp_served *s, void *work, double *out, ddp_error *err)
{
    ddp__served_run r;
    void *own = NULL;
    double sum = 0;

    if (!s || !s->bytes || !out)
        return ddp__fail(err, DDP_ARG, "ddp_served_step: bytes and out must not be NULL");
    DDP__TRY(ddp__served_check(s, err));
    if (!work) work = own = ddp__calloc(ddp_served_room(s->workers, s->servers), 1);
    if (!work)
        return ddp__fail(err, DDP_MEMORY, "out of memory for %d workers and %d servers", s->workers,
                         s->servers);
    ddp__served_lay(&r, s, work);
    for (int w = 0; w < s->workers; w++) {
        r.computes[w] = 1;
        ddp__due_add(r.heap, r.events++, s->compute_s, w);
    }
    while (ddp__served_next(&r)) {
    }
    for (int w = 0; w < s->workers; w++) sum += r.mark[w];
    *out = sum / s->workers / ((int)DDP__SERVED_STEPS - (int)DDP__SERVED_SKIP);
    if (own) DDP_FREE(own);
    return DDP_OK;
}
