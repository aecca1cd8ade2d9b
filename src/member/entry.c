/* Exchanges state between workers: small values that all ranks gather, and the state of a joining worker. */
#include "member/state.h"
#include "wire/hello.h"

enum { DDP__TELL_BYTES = 4 << 20 }; /* maximum size of a message */

/* ---- small values ---- */

/* Runs one message of the library's own data: n bytes at `at`, sent as floats for PUSH and later verbs, which
 * address one rank. */
static ddp_status ddp__word_run(ddp__engine *e, ddp_verb verb, int peer, long step, void *at, size_t n,
                                ddp_received *got, ddp_error *err)
{
    ddp_message m = DDP__ZEROS;
    ddp_piece p;

    m.verb = verb;
    m.bytes = verb < DDP_SEND;
    p.bytes = at;
    p.count = m.bytes ? n : n / sizeof(float);
    m.from = &p;
    m.from_count = 1;
    m.peer = peer;
    m.step = step;
    m.layer = DDP__OWN_WORD;
    m.received = got;
    m.filler = 1;
    return ddp__engine_run(e, &m, err);
}

static ddp_status ddp__worker_say(const ddp__worker *s, ddp_verb verb, void *bytes, size_t n, int from,
                                  ddp_error *err)
{
    return s->engine && n ? ddp__word_run(s->engine, verb, from, s->step, bytes, n, NULL, err) : DDP_OK;
}

ddp_status ddp__gather_by(ddp__engine *e, int rank, int world, int hub, void *words, size_t bytes,
                          ddp_error *err)
{
    unsigned char *of = (unsigned char *)words;
    ddp_received got;
    float asks;

    if (rank != hub) {
        DDP__TRY(ddp__word_run(e, DDP_PUSH, hub, 0, of + (size_t)rank * bytes, bytes, NULL, err));
        return ddp__word_run(e, DDP_PULL, hub, 0, words, (size_t)world * bytes, NULL, err);
    }
    for (int r = 0; r < world; r++) {
        if (r == hub) continue;
        DDP__TRY(ddp__word_run(e, DDP_SERVE, r, 0, of + (size_t)r * bytes, bytes, &got, err));
        if (got.verb != DDP_PUSH) memset(of + (size_t)r * bytes, 0, bytes);
    }
    for (int r = 0; r < world; r++) {
        if (r == hub) continue;
        DDP__TRY(ddp__word_run(e, DDP_SERVE, r, 0, &asks, sizeof asks, &got, err));
        if (got.verb == DDP_PULL)
            DDP__TRY(ddp__word_run(e, DDP_ANSWER, r, 0, words, (size_t)world * bytes, NULL, err));
    }
    return DDP_OK;
}

ddp_status ddp__worker_gather(const ddp__worker *s, uint64_t *words, int each, ddp_error *err)
{
    const size_t own = (size_t)s->rank * (size_t)each, n = (size_t)s->world * (size_t)each;
    unsigned char *b = (unsigned char *)ddp__calloc(n, 8);
    ddp_status code;

    if (!b) return ddp__fail(err, DDP_MEMORY, "out of memory for control data of %d workers", s->world);
    for (size_t i = own; i < own + (size_t)each; i++) ddp__hello_put(b + 8 * i, words[i], 8);
    code = s->hub ? ddp__gather_by(s->engine, s->rank, s->world, s->hub, b, 8 * (size_t)each, err)
                  : ddp__worker_say(s, DDP_ALL_GATHER, b, 8 * n, 0, err);
    for (size_t i = 0; code == DDP_OK && i < n; i++) words[i] = ddp__hello_get(b + 8 * i, 8);
    DDP_FREE(b);
    return code;
}

/* ---- a joining worker ---- */

/* Broadcasts the small values of worker `from`, or of the lowest live worker if that one is lost. A member's
 * memory does not change: if `from` is lost, the values come from another worker and are sent again. part:
 * [DDP__TELL_BYTES]. */
static ddp_status ddp__enter_tensor(const ddp__worker *s, ddp__tensor *t, int from, int comes,
                                    unsigned char *part, ddp_error *err)
{
    const size_t width = ddp_safetensors_type_bytes(t->type), own = t->count * width;
    uint64_t count = t->count;
    size_t at, n;

    if (t->flags & DDP__WORKER_BLOB) {
        ddp__hello_put(part, count, 8);
        DDP__TRY(ddp__worker_say(s, DDP_BROADCAST, part, 8, from, err));
        count = ddp__hello_get(part, 8);
        if (count > t->most)
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d sends %" PRIu64 " values of %s; at most %zu are possible", from, count,
                             t->name, t->most);
    }
    for (at = 0; at < count * width; at += n) {
        unsigned char *here = (unsigned char *)t->data + at;
        n = (size_t)count * width - at < (size_t)DDP__TELL_BYTES ? (size_t)count * width - at
                                                                 : (size_t)DDP__TELL_BYTES;
        if (at < own) memcpy(part, here, n < own - at ? n : own - at);
        DDP__TRY(ddp__worker_say(s, DDP_BROADCAST, part, n, from, err));
        if (comes) memcpy(here, part, n);
    }
    if (comes) t->count = (size_t)count;
    return DDP_OK;
}

/* ---- states of the program ---- */

/* Makes room on the joining worker for the bytes of rank `from`. */
static ddp_status ddp__program_room(ddp__tensor *t, uint64_t bytes, int from, ddp_error *err)
{
    const double total = ddp__memory_total();
    void *grown;

    if (total > 0 && (double)bytes > total)
        return ddp__fail(err, DDP_MEMORY,
                         "rank %d sends %" PRIu64
                         " bytes of the state '%s', but this process may use only %.0f: join on a machine "
                         "with more memory, or reduce the state",
                         from, bytes, t->name + sizeof DDP__PROGRAM - 1, total);
    grown = DDP_REALLOC(t->data, bytes ? (size_t)bytes : 1);
    if (!grown)
        return ddp__fail(err, DDP_MEMORY, "out of memory for %" PRIu64 " bytes of the state '%s' of rank %d",
                         bytes, t->name + sizeof DDP__PROGRAM - 1, from);
    t->data = grown;
    t->count = (size_t)bytes;
    return DDP_OK;
}

static ddp_status ddp__program_bytes(const ddp__worker *s, const ddp__tensor *t, size_t bytes, size_t most,
                                     int from, int comes, unsigned char *part, ddp_error *err)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < most ? bytes - at : most;
        if (s->rank == from) memcpy(part, (unsigned char *)t->data + at, n);
        DDP__TRY(ddp__worker_say(s, DDP_BROADCAST, part, n, from, err));
        if (comes) memcpy((unsigned char *)t->data + at, part, n);
    }
    return DDP_OK;
}

/* Rank `from` lends the states of its program that were not in the clone, and the joining worker receives the
 * bytes. Their number is sent first. If the joining worker has no room it fails, and the members continue
 * without sending. words: [world]. part: [DDP__TELL_BYTES]. */
static ddp_status ddp__enter_programs(ddp__worker *s, int newcomer, int from, uint64_t *words,
                                      unsigned char *part, ddp_error *err)
{
    const size_t own = s->part && s->part < (size_t)DDP__TELL_BYTES ? s->part : (size_t)DDP__TELL_BYTES;
    unsigned char b[8 * (1 + DDP__PROGRAMS)] = {0};
    ddp__tensor *x[DDP__PROGRAMS];
    ddp_error room = {DDP_OK, ""};
    uint64_t most, bytes;
    int n = 0;

    for (int i = 0; i < s->tensors; i++)
        if (s->tensor[i].flags & DDP__WORKER_PROGRAM && !(s->tensor[i].flags & DDP__WORKER_EARLY))
            x[n++] = &s->tensor[i];
    if (!n) return DDP_OK;
    ddp__hello_put(b, own, 8);
    for (int i = 0; s->rank == from && i < n; i++) {
        DDP__TRY(s->lend(s, x[i], err));
        ddp__hello_put(b + 8 + 8 * i, x[i]->count, 8);
    }
    DDP__TRY(ddp__worker_say(s, DDP_BROADCAST, b, 8 * (1 + (size_t)n), from, err));
    most = ddp__hello_get(b, 8);
    if (most < 1 || most > (uint64_t)DDP__TELL_BYTES)
        return ddp__fail(
            err, DDP_MISMATCH,
            "rank %d announces messages of %" PRIu64
            " bytes, but at most %d are possible: run the same version of this library on all ranks",
            from, most, (int)DDP__TELL_BYTES);
    for (int i = 0; s->rank == newcomer && !room.code && i < n; i++)
        (void)ddp__program_room(x[i], ddp__hello_get(b + 8 + 8 * i, 8), from, &room);
    memset(words, 0, (size_t)s->world * sizeof *words);
    words[s->rank] = room.code ? 2 : 1;
    DDP__TRY(ddp__worker_gather(s, words, 1, err));
    if (room.code) return ddp__fail(err, room.code, "%s", room.msg);
    if (words[newcomer] != 1) return DDP_OK;
    for (int i = 0; i < n; i++) {
        bytes = ddp__hello_get(b + 8 + 8 * i, 8);
        DDP__TRY(
            ddp__program_bytes(s, x[i], (size_t)bytes, (size_t)most, from, s->rank == newcomer, part, err));
        x[i]->flags |= DDP__WORKER_FOUND;
    }
    return DDP_OK;
}

/* ---- the whole entry ---- */

/* Determines the lowest live member, and takes its description of the run. */
static ddp_status ddp__enter_members(ddp__worker *s, int newcomer, uint64_t *words, int *from, ddp_error *err)
{
    int r = 0;

    memset(words, 0, 2 * (size_t)s->world * sizeof *words);
    words[2 * s->rank] = s->rank != newcomer;
    words[2 * s->rank + 1] = s->run;
    DDP__TRY(ddp__worker_gather(s, words, 2, err));
    while (r < s->world && !words[2 * r]) r++;
    if (r == s->world)
        return ddp__fail(err, DDP_PEER_LOST, "all members were lost while rank %d joined", newcomer);
    s->run = words[2 * r + 1];
    *from = r;
    return DDP_OK;
}

ddp_status ddp__worker_enter(ddp__worker *s, int newcomer, ddp_error *err)
{
    uint64_t *words = (uint64_t *)ddp__calloc(2 * (size_t)s->world, sizeof *words);
    unsigned char *part = (unsigned char *)ddp__calloc(DDP__TELL_BYTES, 1);
    int from = 0, told = -1;
    ddp_status code = words && part ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for joining");

    if (code == DDP_OK) code = ddp__enter_members(s, newcomer, words, &from, err);
    while (code == DDP_OK && told != from) { /* the member that sent everything must still be live
                                                afterwards */
        told = from;
        ddp__hello_put(part, ddp__fresh_number(), 8);
        code = ddp__worker_say(s, DDP_BROADCAST, part, 8, from, err);
        s->rest = ddp__hello_get(part, 8);
        for (int i = 0; code == DDP_OK && i < s->tensors; i++)
            if (s->tensor[i].flags & DDP__WORKER_TOLD && !s->tensor[i].layer)
                code = ddp__enter_tensor(s, &s->tensor[i], from, s->rank == newcomer, part, err);
        if (code == DDP_OK) code = ddp__enter_programs(s, newcomer, from, words, part, err);
        if (code == DDP_OK) code = ddp__enter_members(s, newcomer, words, &from, err);
    }
    if (code == DDP_OK && s->rank == newcomer) code = s->check(s, -1, "an entry", err);
    if (words) DDP_FREE(words);
    if (part) DDP_FREE(part);
    return code;
}
