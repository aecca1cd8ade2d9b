#include "base/platform.h"
#include "wire/replay.h"

size_t ddp__replay_free(const ddp__replay *r)
{
    return r->room - (size_t)(r->end - r->first);
}

void ddp__replay_put(ddp__replay *r, const void *bytes, size_t n)
{
    size_t to, run;

    if (n == 0) return; /* bytes may be NULL then */
    if (r->end == r->first) r->at = 0; /* little traffic stays in the cache */
    to = (r->at + (size_t)(r->end - r->first)) % r->room;
    run = n < r->room - to ? n : r->room - to;
    memcpy(r->data + to, bytes, run);
    if (n > run) memcpy(r->data, (const unsigned char *)bytes + run, n - run);
    r->end += n;
}

int ddp__replay_forget(ddp__replay *r, uint64_t upto)
{
    if (upto < r->first || upto > r->end) return 0;
    r->at = (r->at + (size_t)(upto - r->first)) % r->room;
    r->first = upto;
    return 1;
}

int ddp__replay_find(const ddp__replay *r, uint64_t from, size_t n, struct iovec *iov)
{
    size_t at = (r->at + (size_t)(from - r->first)) % r->room;
    size_t run = n < r->room - at ? n : r->room - at;

    iov[0].iov_base = r->data + at;
    iov[0].iov_len = run;
    if (run == n) return 1;
    iov[1].iov_base = r->data;
    iov[1].iov_len = n - run;
    return 2;
}
