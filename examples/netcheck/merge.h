/* Compares the dumps of the ranks of a run and reports where they differ. Include it after dreamddp.h with
 * its implementation: the JSON reader is private. */
#ifndef EXAMPLES_NETCHECK_MERGE_H
#define EXAMPLES_NETCHECK_MERGE_H

enum { DUMP_TEXT = 200 };

typedef enum dump_state { DUMP_QUEUED, DUMP_ACTIVE, DUMP_DONE } dump_state;

typedef struct dump_op {
    long sequence, step, peer; /* peer is -1 for a collective */
    double bytes, left;
    int send;
    dump_state state;
    char what[DUMP_TEXT]; /* "all-reduce of layer h.3" */
} dump_op;

/* The dump of one rank. */
typedef struct dump_rank {
    int present;
    dump_op *op; /* [ops] */
    int ops;     /* capacity: the next power of two */
    long begun;  /* collectives submitted */
    long told;   /* number of operations that a rank without a dump had begun, as reported by others, or -1 if
                  * unknown */
    char error[DDP_ERROR_TEXT];
} dump_rank;

typedef struct dumps {
    int world;
    char run[128];
    dump_rank *rank; /* [world] */
    FILE *out;
    ddp_error *err;
} dumps;

/* ---- reading ---- */

static const char *dumps_string(const ddp__json *v, const char *key, const char *otherwise)
{
    const ddp__json *m = ddp__json_get(v, key);

    return m && m->kind == DDP__JSON_STRING ? m->string : otherwise;
}

static double dumps_number(const ddp__json *v, const char *key, double otherwise)
{
    const ddp__json *m = ddp__json_get(v, key);

    return m && m->kind == DDP__JSON_NUMBER ? m->number : otherwise;
}

static ddp_status dumps_head(dumps *pm, const char *path, const ddp__json *v, dump_rank **rank)
{
    double number = dumps_number(v, "rank", -1), world = dumps_number(v, "world", -1);
    const char *run = dumps_string(v, "run_id", "");
    const ddp__json *peers = ddp__json_get(v, "peers"), *p;

    if (!(world >= 1 && world <= 65535) || !(number >= 0 && number < world))
        return ddp__fail(pm->err, DDP_FORMAT, "%s is not a dump: rank %g of %g ranks", path, number, world);
    if (!pm->rank) {
        pm->world = (int)world;
        snprintf(pm->run, sizeof pm->run, "%s", run);
        pm->rank = (dump_rank *)ddp__calloc((size_t)pm->world, sizeof *pm->rank);
        if (!pm->rank) return ddp__fail(pm->err, DDP_MEMORY, "out of memory for %g dumps", world);
        for (int r = 0; r < pm->world; r++) pm->rank[r].told = -1;
    }
    if (pm->world != (int)world || strcmp(pm->run, run))
        return ddp__fail(pm->err, DDP_MISMATCH,
                         "%s is of run '%s' with %g ranks, the files before it of run '%s' with "
                         "%d: merge the dumps of one run",
                         path, run, world, pm->run, pm->world);
    *rank = &pm->rank[(int)number];
    if ((*rank)->present)
        return ddp__fail(pm->err, DDP_MISMATCH, "%s is a second dump of rank %g", path, number);
    (*rank)->present = 1;
    v = ddp__json_get(v, "error");
    snprintf((*rank)->error, sizeof(*rank)->error, "%s", dumps_string(v, "text", ""));
    for (p = peers ? peers->first : NULL; p; p = p->next) {
        double of = dumps_number(p, "rank", -1), begun = dumps_number(p, "begun", -1);
        if (of >= 0 && of < world && (double)pm->rank[(int)of].told < begun)
            pm->rank[(int)of].told = (long)begun;
    }
    return DDP_OK;
}

static ddp_status dumps_operation(dumps *pm, dump_rank *r, const ddp__json *v)
{
    const char *state = dumps_string(v, "state", "done"), *verb = dumps_string(v, "verb", "?"),
               *layer = dumps_string(v, "layer", NULL), *values = dumps_string(v, "values", "a plain buffer");
    dump_op *o;

    if ((r->ops & (r->ops - 1)) == 0) {
        o = (dump_op *)DDP_REALLOC(r->op, (r->ops ? 2 * (size_t)r->ops : 1) * sizeof *o);
        if (!o) return ddp__fail(pm->err, DDP_MEMORY, "out of memory for %d operations", r->ops + 1);
        r->op = o;
    }
    o = &r->op[r->ops++];
    memset(o, 0, sizeof *o);
    o->sequence = (long)dumps_number(v, "sequence", -1);
    o->step = (long)dumps_number(v, "step", 0);
    o->peer = (long)dumps_number(v, "peer", -1);
    o->bytes = dumps_number(v, "bytes", 0);
    o->left = dumps_number(v, "left", 0);
    o->send = !strcmp(verb, "send");
    o->state = !strcmp(state, "done") ? DUMP_DONE : !strcmp(state, "active") ? DUMP_ACTIVE : DUMP_QUEUED;
    if (layer && !strcmp(layer, "barrier"))
        snprintf(o->what, sizeof o->what, "a barrier");
    else
        snprintf(o->what, sizeof o->what, "%.30s of %s%.120s", verb,
                 layer && strncmp(layer, "layer ", 6) ? "layer " : "", layer ? layer : values);
    if (o->peer < 0 && o->sequence >= r->begun) r->begun = o->sequence + 1;
    return DDP_OK;
}

static ddp_status dumps_line(dumps *pm, const char *path, int number, const char *line, size_t n,
                             dump_rank **rank)
{
    char name[300];
    ddp__json *v;
    ddp_status s = DDP_OK;
    const char *event;

    snprintf(name, sizeof name, "%.260s:%d", path, number);
    v = ddp__json_parse(name, line, n, pm->err);
    if (!v) return pm->err->code;
    event = dumps_string(v, "event", "");
    if (!*rank && strcmp(event, "dump"))
        s = ddp__fail(pm->err, DDP_FORMAT,
                      "%s is not a dump of a rank: its first line has no "
                      "\"event\":\"dump\"",
                      path);
    else if (!*rank)
        s = dumps_head(pm, path, v, rank);
    else if (!strcmp(event, "operation"))
        s = dumps_operation(pm, *rank, v);
    ddp__json_free(v);
    return s;
}

static ddp_status dumps_read(dumps *pm, const char *path)
{
    ddp__text t = {NULL, 0, 0, 0, 0};
    dump_rank *rank = NULL;
    size_t at = 0;
    int number = 1;
    ddp_status s = ddp__file_read(path, &t, pm->err);

    for (; s == DDP_OK && at < t.size; number++) {
        const char *end = (const char *)memchr(t.data + at, '\n', t.size - at);
        size_t n = end ? (size_t)(end - (t.data + at)) : t.size - at;
        if (n > 0) s = dumps_line(pm, path, number, t.data + at, n, &rank);
        at += n + 1;
    }
    if (s == DDP_OK && !rank) s = ddp__fail(pm->err, DDP_FORMAT, "%s is empty, no dump", path);
    ddp__text_free(&t);
    return s;
}

/* ---- findings ---- */

/* Writes "rank 2" or "ranks 0, 1, 3" for the set flags. Returns their number. */
static int dumps_list(const dumps *pm, const unsigned char *flag, char *out, size_t room)
{
    size_t used;
    int count = 0, shown = 0;

    for (int r = 0; r < pm->world; r++) count += flag[r] != 0;
    used = (size_t)snprintf(out, room, count == 1 ? "rank " : "ranks ");
    for (int r = 0; r < pm->world; r++) {
        if (!flag[r]) continue;
        if (used + 40 > room) {
            snprintf(out + used, room - used, " and %d more", count - shown);
            break;
        }
        used += (size_t)snprintf(out + used, room - used, shown++ ? ", %d" : "%d", r);
    }
    return count;
}

/* Returns the newest operation with that number, or NULL if there is none or the rank no longer had it. */
static const dump_op *dumps_find(const dump_rank *r, long sequence)
{
    for (int i = r->ops - 1; i >= 0; i--)
        if (r->op[i].peer < 0 && r->op[i].sequence == sequence) return &r->op[i];
    return NULL;
}

/* Reports the first operation that differs between ranks. Returns 1 if there is one. */
static int dumps_differ(const dumps *pm)
{
    const dump_op *found = NULL, *other = NULL;
    int first = 0, second = 0;

    for (int a = 0; a < pm->world; a++)
        for (int b = a + 1; b < pm->world; b++)
            for (int i = 0; i < pm->rank[a].ops; i++) {
                const dump_op *x = &pm->rank[a].op[i], *y;
                if (x->peer >= 0 || (found && x->sequence >= found->sequence)) continue;
                y = dumps_find(&pm->rank[b], x->sequence);
                if (!y || (!strcmp(x->what, y->what) && x->bytes == y->bytes)) continue;
                found = x;
                other = y;
                first = a;
                second = b;
            }
    if (!found) return 0;
    fprintf(
        pm->out,
        "the ranks differ at operation %ld: rank %d submitted %s (step %ld, %.0f bytes), rank %d %s (step "
        "%ld, %.0f bytes)\n",
        found->sequence, first, found->what, found->step, found->bytes, second, other->what, other->step,
        other->bytes);
    return 1;
}

/* Reports the first collective that a rank has begun and not finished. */
static const dump_op *dumps_first(const dumps *pm)
{
    const dump_op *first = NULL;

    for (int r = 0; r < pm->world; r++)
        for (int i = 0; i < pm->rank[r].ops; i++) {
            const dump_op *o = &pm->rank[r].op[i];
            if (o->peer < 0 && o->state == DUMP_ACTIVE && (!first || o->sequence < first->sequence))
                first = o;
        }
    return first;
}

/* Reports the last known operation of a rank that never submitted one. */
static void dumps_last(const dumps *pm, int rank)
{
    const dump_rank *r = &pm->rank[rank];
    const dump_op *last = r->ops ? &r->op[r->ops - 1] : NULL;

    if (!r->present)
        fprintf(pm->out,
                "rank %d left no dump; its last message to the others stated that it had "
                "begun %ld operations\n",
                rank, r->told);
    else if (last)
        fprintf(pm->out, "the last operation of rank %d is number %ld, %s (step %ld), %s\n", rank,
                last->sequence, last->what, last->step,
                last->state == DUMP_DONE ? "finished" : "not finished");
    else
        fprintf(pm->out, "rank %d has submitted nothing\n", rank);
}

static int dumps_wait(const dumps *pm, unsigned char *flag, unsigned char *waits)
{
    const dump_op *o = dumps_first(pm);
    char who[160], others[160];

    if (!o) return 0;
    for (int r = 0; r < pm->world; r++) {
        const dump_rank *x = &pm->rank[r];
        const dump_op *own = x->present ? dumps_find(x, o->sequence) : NULL;
        flag[r] = x->present ? x->begun <= o->sequence : x->told >= 0 && x->told <= o->sequence;
        waits[r] = own && own->state != DUMP_DONE;
    }
    (void)dumps_list(pm, waits, others, sizeof others);
    if (dumps_list(pm, flag, who, sizeof who)) {
        fprintf(pm->out, "%s never submitted %s (step %ld), operation %ld; %s wait%s in it\n", who, o->what,
                o->step, o->sequence, others, strchr(others, 's') ? "" : "s");
        for (int r = 0; r < pm->world; r++)
            if (flag[r]) dumps_last(pm, r);
        return 1;
    }
    fprintf(pm->out,
            "%s did not finish %s (step %ld), operation %ld, which every known rank submitted: a "
            "rank or the network between them is stuck\n",
            others, o->what, o->step, o->sequence);
    for (int r = 0; r < pm->world; r++) {
        const dump_op *own = dumps_find(&pm->rank[r], o->sequence);
        if (waits[r] && own)
            fprintf(pm->out, "rank %d still had to send or receive %.0f bytes\n", r, own->left);
    }
    return 1;
}

/* Reports sends and receives that the peer never submitted. */
static int dumps_pairs(const dumps *pm)
{
    int found = 0;

    for (int r = 0; r < pm->world; r++)
        for (int i = 0; i < pm->rank[r].ops; i++) {
            const dump_op *o = &pm->rank[r].op[i];
            const dump_rank *peer;
            int met = 0;
            if (o->peer < 0 || o->peer >= pm->world || o->state != DUMP_ACTIVE) continue;
            peer = &pm->rank[o->peer];
            for (int k = 0; k < peer->ops && !met; k++)
                met = peer->op[k].peer == r && peer->op[k].send != o->send &&
                      peer->op[k].sequence == o->sequence && peer->op[k].state != DUMP_QUEUED;
            if (met || !peer->present) continue;
            found = 1;
            fprintf(
                pm->out,
                "rank %d waits in %s rank %ld (number %ld of that pair), which rank %ld never submitted\n", r,
                o->send ? "a send to" : "a receive from", o->peer, o->sequence, o->peer);
        }
    return found;
}

static ddp_status dumps_tell(dumps *pm)
{
    unsigned char *flag = (unsigned char *)ddp__calloc(2 * (size_t)pm->world, 1);
    char who[160];
    int found;

    if (!flag) return ddp__fail(pm->err, DDP_MEMORY, "out of memory for %d ranks", pm->world);
    for (int r = 0; r < pm->world; r++) flag[r] = (unsigned char)!pm->rank[r].present;
    if (dumps_list(pm, flag, who, sizeof who))
        fprintf(pm->out, "%s of %d left no dump here\n", who, pm->world);
    for (int r = 0; r < pm->world; r++)
        if (pm->rank[r].error[0] && !strstr(pm->rank[r].error, "(reported by "))
            fprintf(pm->out, "rank %d failed: %s\n", r, pm->rank[r].error);
    found = dumps_differ(pm);
    found |= dumps_wait(pm, flag, flag + pm->world);
    found |= dumps_pairs(pm);
    if (!found) fprintf(pm->out, "no operation is unfinished: the ranks do not differ\n");
    DDP_FREE(flag);
    return ferror(pm->out) ? ddp__fail(pm->err, DDP_IO, "cannot write the merged dumps: %s", strerror(errno))
                           : DDP_OK;
}

/* Reads the files of ddp_dump of several ranks (count files in any order, and ranks may be missing) and
 * writes the differences to out, one per line: ranks without a dump, errors, operations that differ between
 * ranks, the first operation in which a rank waits and the ranks that never submitted it, and receives
 * without a send. Errors: DDP_IO, DDP_FORMAT (states file and line), DDP_MISMATCH (two runs, two worlds, a
 * rank twice), DDP_MEMORY. */
static ddp_status dumps_merge(const char *const *paths, int count, FILE *out, ddp_error *err)
{
    ddp_error local;
    dumps pm;
    ddp_status s = DDP_OK;

    memset(&pm, 0, sizeof pm);
    memset(&local, 0, sizeof local);
    pm.out = out;
    pm.err = err ? err : &local;
    for (int i = 0; i < count && s == DDP_OK; i++) s = dumps_read(&pm, paths[i]);
    if (s == DDP_OK) s = dumps_tell(&pm);
    for (int i = 0; pm.rank && i < pm.world; i++)
        if (pm.rank[i].op) DDP_FREE(pm.rank[i].op);
    if (pm.rank) DDP_FREE(pm.rank);
    return s;
}

#endif /* EXAMPLES_NETCHECK_MERGE_H */
