/* Runs a strategy's serve function on its own thread next to a worker, implements the calls that serve may
 * make, and sets up the ranks that compute. */
#include "context/clock.h"
#include "context/context.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/verbs.h"
#include "measure/measure.h"
#include "session/part.h"
#include "session/serve.h"

/* State shared by the server thread and the worker's thread. */
struct ddp__desk {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int running, over; /* running: the thread was started. over: serve has returned (under lock). */
    int wake;          /* atomic */
    ddp_status status; /* result of serve (under lock) */
};

ddp_status ddp__serve_status(ddp_ctx *d, int code, ddp_error *err)
{
    if (ddp__engine_error(ddp__engine_of(d, 0), err)) return err->code;
    return code ? ddp__fail(err, DDP_FAILED, "strategy %s: serve returned %d and gave no reason",
                            ddp__ops(d)->name, code)
                : DDP_OK;
}

/* ---- server thread of a worker ---- */

static void *ddp__desk_run(void *arg)
{
    ddp_ctx *d = (ddp_ctx *)arg;
    struct ddp__desk *k = d->session->desk;
    ddp_error err;
    ddp_status s;
    int code;

    do code = ddp__ops(d)->serve(d, ddp__self(d)); /* the worker's own checkpoint includes this share */
    while (code == (int)DDP_SERVE_SAVE);
    s = ddp__serve_status(d, code, &err);
    if (s != DDP_OK) ddp__engine_abort(ddp__engine_of(d, 0), s, err.msg);
    pthread_mutex_lock(&k->lock);
    k->over = 1;
    k->status = s;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

ddp_status ddp__desk_open(ddp_ctx *d, ddp_error *err)
{
    struct ddp__desk *k;
    int why;

    if (!ddp__ops(d)->serve) return DDP_OK;
    k = (struct ddp__desk *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *k);
    if (!k) return ddp__fail(err, DDP_MEMORY, "out of memory for a server");
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    d->session->desk = k;
    if (ddp__cfg(d)->server.count > 0 || !ddp__engine_of(d, 0)) return DDP_OK;
    why = ddp__thread_deep(&k->thread, ddp__desk_run, d);
    if (why) return ddp__fail(err, DDP_MEMORY, "cannot start a thread that serves: %s", strerror(why));
    k->running = 1;
    return DDP_OK;
}

void ddp__desk_close(ddp_ctx *d)
{
    struct ddp__desk *k = d->session->desk;

    if (ddp__started(d) && ddp__ops(d)->tell_servers && !ddp__error(d)->code && !ddp__is_server(d) &&
        DDP__EVENT(d, tell_servers, (d, ddp__self(d), 1)))
        ddp__ctx_fail(d, ddp__error(d));
    if (!k) return;
    if (k->running) pthread_join(k->thread, NULL);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    d->session->desk = NULL;
}

/* ---- what serve may call ---- */

int ddp_server_post(ddp_ctx *d, const ddp_message *m, long *ticket)
{
    ddp_error err;

    DDP__DO(ddp__host_check(ddp__host_of(d), ddp__error(d)));
    return (int)ddp__engine_submit(ddp__engine_of(d, 0), m, ticket, &err);
}

int ddp_server_done(ddp_ctx *d, long ticket)
{
    return ddp__host_forked(ddp__host_of(d)) || ddp__engine_done(ddp__engine_of(d, 0), ticket);
}

int ddp_server_wait(ddp_ctx *d, const long *tickets, int n)
{
    ddp_error err;

    DDP__DO(ddp__host_check(ddp__host_of(d), ddp__error(d)));
    if (ddp__engine_wait_any(ddp__engine_of(d, 0), tickets, n, &d->session->desk->wake) >= 0) return 0;
    ddp__atomic_store(&d->session->desk->wake, 0);
    return (int)ddp__engine_error(ddp__engine_of(d, 0), &err);
}

void ddp_server_wake(ddp_ctx *d)
{
    if (!ddp__has_engine(d)) return;
    ddp__atomic_store(&d->session->desk->wake, 1);
    ddp__engine_nudge(ddp__engine_of(d, 0));
}

int ddp_server_fail(ddp_ctx *d, ddp_status code, const char *fmt, ...)
{
    char text[DDP_ERROR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    ddp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    DDP__DO(ddp__host_check(ddp__host_of(d), ddp__error(d)));
    if (ddp__engine_of(d, 0))
        ddp__engine_abort(ddp__engine_of(d, 0), code, text);
    else
        ddp__fail(ddp__error(d), code, "%s", text); /* there is no other thread */
    return (int)code;
}

void ddp_server_set(ddp_ctx *d, int *flag, int value)
{
    if (ddp__host_forked(ddp__host_of(d))) return;
    pthread_mutex_lock(&d->session->desk->lock);
    ddp__atomic_store(flag, value);
    pthread_cond_broadcast(&d->session->desk->changed);
    pthread_mutex_unlock(&d->session->desk->lock);
}

/* A failure ends serve, which also ends this wait. */
int ddp_server_await(ddp_ctx *d, const int *flag)
{
    struct ddp__desk *k = d->session->desk;
    const double begin = ddp_now();

    DDP__DO(ddp__host_check(ddp__host_of(d), ddp__error(d)));
    pthread_mutex_lock(&k->lock);
    while (!ddp__atomic_load(flag) && k->running && !k->over) pthread_cond_wait(&k->changed, &k->lock);
    pthread_mutex_unlock(&k->lock);
    ddp__clock_wait(d, begin, ddp_now());
    if (ddp__atomic_load(flag)) return 0;
    if (ddp__engine_of(d, 0)) ddp__engine_error(ddp__engine_of(d, 0), ddp__error(d));
    return ddp__error(d)->code ? (int)ddp__error(d)->code
                               : ddp_complain(d, DDP_FAILED, "the server of rank %d has ended", ddp_rank(d));
}

/* ---- the ranks that compute ---- */

ddp_status ddp__computes(ddp_ctx *d, const char *hook)
{
    if (!ddp__is_server(d)) return DDP_OK;
    return ddp__fail(ddp__error(d), DDP_USAGE,
                     "%s: rank %d of %d serves (servers %d): call ddp_serve there instead "
                     "of the steps",
                     hook, ddp_rank(d), ddp_world(d), ddp__cfg(d)->server.count);
}

ddp_status ddp__computing_open(ddp_ctx *d, ddp_error *err)
{
    const int workers = ddp_world(d) - ddp_servers(d);
    int *rank, group = 0;
    ddp_status s;

    if (!ddp_servers(d) || ddp__cfg(d)->elastic.min_world > 0) return DDP_OK;
    rank = (int *)ddp__calloc((size_t)workers, sizeof *rank);
    if (!rank) return ddp__fail(err, DDP_MEMORY, "out of memory for a group of %d ranks", workers);
    for (int r = 0; r < workers; r++) rank[r] = r;
    s = ddp__engine_group(ddp__engine_of(d, 0), rank, workers, &group, err);
    if (s == DDP_OK && ddp__second_of(d))
        s = ddp__engine_group(ddp__second_of(d), rank, workers, &group, err);
    DDP_FREE(rank);
    ddp__computing_set(d, group);
    return s;
}

/* Makes the computing ranks the team that plans and measures together. In an elastic world they are a group
 * that may shrink. */
void ddp__computing_team(ddp_ctx *d)
{
    if (!ddp_servers(d)) return;
    if (!ddp__computing(d)) ddp__engine_retire(ddp__engine_of(d, 0));
    if (ddp__is_server(d)) return;
    ddp__team_set(d, ddp__computing(d), ddp_world(d) - ddp_servers(d), 0, ddp_rank(d));
}
