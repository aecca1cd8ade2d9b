/* What workers tell each other of their states: a few bytes, or the values a newcomer needs. */
#include "base/platform.h"
#include "member/state.h"
#include "wire/hello.h"

enum { DDP__TELL_FLOATS = 1 << 20 }; /* of a message: 4 MiB */

int ddp__worker_first(const ddp__worker *s)
{
    ddp__epoch_info info;

    if (!s->engine) return 1;
    ddp__engine_epoch(s->engine, &info);
    return s->world > 64 ? s->rank == 0 : !(info.live & (((uint64_t)1 << s->rank) - 1));
}

static ddp_status ddp__worker_say(const ddp__worker *s, ddp_verb verb, void *bytes, size_t n, int from,
                                  ddp_error *err)
{
    ddp_message m;
    ddp_piece p;

    if (!s->engine || !n) return DDP_OK;
    p.bytes = bytes;
    p.count = n;
    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.bytes = 1;
    m.from = &p;
    m.from_count = 1;
    m.peer = from;
    m.step = s->step;
    m.layer = DDP__OWN_WORD;
    m.filler = 1;
    return ddp__engine_run(s->engine, &m, err);
}

ddp_status ddp__worker_spread(const ddp__worker *s, void *bytes, size_t n, int from, ddp_error *err)
{
    const size_t most = DDP__TELL_FLOATS * sizeof(float);
    unsigned char *b = (unsigned char *)bytes;
    size_t now;

    for (; n; n -= now, b += now) {
        now = n < most ? n : most;
        DDP__TRY(ddp__worker_say(s, DDP_BROADCAST, b, now, from, err));
    }
    return DDP_OK;
}

ddp_status ddp__worker_gather(const ddp__worker *s, uint64_t *words, int each, ddp_error *err)
{
    const size_t own = (size_t)s->rank * (size_t)each, n = (size_t)s->world * (size_t)each;
    unsigned char *b = (unsigned char *)ddp__calloc(n, 8);
    ddp_status code;
    size_t i;

    if (!b) return ddp__fail(err, DDP_MEMORY, "out of memory for words of %d workers", s->world);
    for (i = own; i < own + (size_t)each; i++) ddp__hello_put(b + 8 * i, words[i], 8);
    code = ddp__worker_say(s, DDP_ALL_GATHER, b, 8 * n, 0, err);
    for (i = 0; code == DDP_OK && i < n; i++) words[i] = ddp__hello_get(b + 8 * i, 8);
    DDP_FREE(b);
    return code;
}

/* ---- a newcomer ---- */

/* A member's memory stays as it is: should `from` be lost, what is told is some other worker's, and
 * is told again. */
static ddp_status ddp__enter_small(const ddp__worker *s, ddp__tensor *t, int from, int comes,
                                   ddp_error *err)
{
    const size_t width = ddp_safetensors_type_bytes(t->type);
    unsigned char word[8], *copy;
    uint64_t count;
    ddp_status code;

    ddp__hello_put(word, t->count, 8);
    if (t->flags & DDP__WORKER_BLOB) DDP__TRY(ddp__worker_spread(s, word, 8, from, err));
    count = ddp__hello_get(word, 8);
    if (count > t->most)
        return ddp__fail(err, DDP_MISMATCH, "rank %d tells %" PRIu64 " values of %s; at most %zu "
                         "are possible", from, count, t->name, t->most);
    copy = (unsigned char *)ddp__calloc((size_t)count + 1, width);
    if (!copy) return ddp__fail(err, DDP_MEMORY, "out of memory for an entry");
    memcpy(copy, t->data, (count < t->count ? (size_t)count : t->count) * width);
    code = ddp__worker_spread(s, copy, (size_t)count * width, from, err);
    if (code == DDP_OK && comes) {
        memcpy(t->data, copy, (size_t)count * width);
        t->count = (size_t)count;
    }
    DDP_FREE(copy);
    return code;
}

static ddp_status ddp__enter_large(const ddp__worker *s, const ddp__tensor *t, int from, int comes,
                                   float *part, ddp_error *err)
{
    size_t at, n;

    for (at = 0; at < t->count; at += n) {
        float *here = (float *)t->data + at;
        n = t->count - at < (size_t)DDP__TELL_FLOATS ? t->count - at : (size_t)DDP__TELL_FLOATS;
        if (t->flags & DDP__WORKER_THERE)
            DDP__TRY(ddp__host_download(s->host, part, here, n * sizeof *part, err));
        else memcpy(part, here, n * sizeof *part);
        DDP__TRY(ddp__worker_say(s, DDP_BROADCAST, part, n * sizeof *part, from, err));
        if (!comes) continue;
        if (t->flags & DDP__WORKER_THERE)
            ddp__host_upload(s->host, here, part, n * sizeof *part);
        else memcpy(here, part, n * sizeof *part);
    }
    return DDP_OK;
}

static ddp_status ddp__enter_from(ddp__worker *s, int from, int comes, float *part, ddp_error *err)
{
    int i;

    for (i = 0; i < s->tensors; i++)
        if (!s->tensor[i].layer && (s->tensor[i].flags & DDP__WORKER_TOLD))
            DDP__TRY(ddp__enter_small(s, &s->tensor[i], from, comes, err));
    for (i = 0; i < s->tensors; i++)
        if (s->tensor[i].layer && (s->tensor[i].flags & DDP__WORKER_TOLD))
            DDP__TRY(ddp__enter_large(s, &s->tensor[i], from, comes, part, err));
    return DDP_OK;
}

/* The lowest member that lives, and what it says of the run. */
static ddp_status ddp__enter_members(ddp__worker *s, int newcomer, uint64_t *words, int *from,
                                     ddp_error *err)
{
    int r = 0;

    memset(words, 0, 2 * (size_t)s->world * sizeof *words);
    words[2 * s->rank] = s->rank != newcomer;
    words[2 * s->rank + 1] = s->run;
    DDP__TRY(ddp__worker_gather(s, words, 2, err));
    while (r < s->world && !words[2 * r]) r++;
    if (r == s->world)
        return ddp__fail(err, DDP_PEER_LOST, "all members were lost while rank %d joined",
                         newcomer);
    s->run = words[2 * r + 1];
    *from = r;
    return DDP_OK;
}

ddp_status ddp__worker_enter(ddp__worker *s, int newcomer, ddp_error *err)
{
    uint64_t *words = (uint64_t *)ddp__calloc(2 * (size_t)s->world, sizeof *words);
    float *part = (float *)ddp__calloc(DDP__TELL_FLOATS, sizeof *part);
    int from = 0, told = -1;
    ddp_status code = words && part ? DDP_OK
                                    : ddp__fail(err, DDP_MEMORY, "out of memory for an entry");

    if (code == DDP_OK) code = ddp__enter_members(s, newcomer, words, &from, err);
    while (code == DDP_OK && told != from) { /* who told it all must still be there behind that */
        told = from;
        code = ddp__enter_from(s, from, s->rank == newcomer, part, err);
        if (code == DDP_OK) code = ddp__enter_members(s, newcomer, words, &from, err);
    }
    if (code == DDP_OK && s->rank == newcomer) code = s->check(s, -1, "an entry", err);
    if (words) DDP_FREE(words);
    if (part) DDP_FREE(part);
    return code;
}
