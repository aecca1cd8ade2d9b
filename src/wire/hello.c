/* Frames of the rendezvous: packing, checking, and the error messages for frames that do not match. */
#include "wire/hello.h"

static const unsigned char ddp__hello_magic[8] = {'d', 'r', 'e', 'a', 'm', 'd', 'd', 'p'};

void ddp__hello_put(unsigned char *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(v >> (8 * i) & 255);
}

uint64_t ddp__hello_get(const unsigned char *at, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)at[i] << (8 * i);
    return v;
}

uint32_t ddp__hello_world(int world, int ids)
{
    return (uint32_t)world | (ids > world ? (uint32_t)ids << 16 : 0);
}

/* A 2-byte hash of the other 62 bytes. A hash of 0 becomes 1, because 0 means no checksum. */
static uint64_t ddp__hello_sum(const unsigned char *b)
{
    uint64_t sum = ddp__hash(DDP__HASH_START, b, 14);

    sum = ddp__hash(sum, b + 16, DDP__HELLO_BYTES - 16);
    sum = (sum ^ sum >> 16 ^ sum >> 32 ^ sum >> 48) & 65535;
    return sum ? sum : 1;
}

void ddp__hello_seal(unsigned char *b) { ddp__hello_put(b + 14, ddp__hello_sum(b), 2); }

void ddp__hello_pack(const ddp__hello *self, ddp__hello_kind kind, ddp__refusal reason, int detail,
                     unsigned char *b)
{
    const uint32_t field[6] = {self->rank,       self->world,      self->port,
                               (uint32_t)reason, (uint32_t)detail, self->family};

    memset(b, 0, DDP__HELLO_BYTES);
    memcpy(b, ddp__hello_magic, sizeof ddp__hello_magic);
    ddp__hello_put(b + 8, self->version, 4);
    ddp__hello_put(b + 12, (uint64_t)kind, 2);
    ddp__hello_put(b + 16, self->run_id, 8);
    for (int i = 0; i < 6; i++) ddp__hello_put(b + 24 + 4 * i, field[i], 4);
    memcpy(b + 48, self->ip, sizeof self->ip);
    ddp__hello_seal(b);
}

int ddp__hello_send(ddp__tls *tls, int fd, const ddp__hello *self, ddp__hello_kind kind, ddp__refusal reason,
                    int detail)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__hello_pack(self, kind, reason, detail, b);
    return ddp__stream_send_all(tls, fd, b, sizeof b, ddp_now());
}

int ddp__hello_begins(const unsigned char *b, size_t got)
{
    return !memcmp(b, ddp__hello_magic, got < sizeof ddp__hello_magic ? got : sizeof ddp__hello_magic);
}

int ddp__hello_parse(const unsigned char *b, ddp__hello *h)
{
    uint32_t *const field[6] = {&h->rank, &h->world, &h->port, &h->reason, &h->detail, &h->family};

    if (!ddp__hello_begins(b, DDP__HELLO_BYTES)) return 0;
    h->version = (uint32_t)ddp__hello_get(b + 8, 4);
    h->kind = (uint32_t)ddp__hello_get(b + 12, 2);
    h->damaged = ddp__hello_get(b + 14, 2) != 0 && ddp__hello_get(b + 14, 2) != ddp__hello_sum(b);
    h->begun = 0;
    h->run_id = ddp__hello_get(b + 16, 8);
    for (int i = 0; i < 6; i++) *field[i] = (uint32_t)ddp__hello_get(b + 24 + 4 * i, 4);
    memcpy(h->ip, b + 48, sizeof h->ip);
    h->number = h->family;
    h->received = ddp__hello_get(b + 48, 8);
    h->yours = (uint32_t)ddp__hello_get(b + 56, 4);
    h->attempt = (uint32_t)ddp__hello_get(b + 60, 4);
    h->run_name = NULL;
    return 1;
}

ddp__refusal ddp__hello_check(const ddp__hello *self, const ddp__hello *other)
{
    if (other->damaged) return DDP__REFUSE_DAMAGED;
    if (other->version != self->version) return DDP__REFUSE_VERSION;
    if (other->run_id != self->run_id) return DDP__REFUSE_RUN;
    if (other->kind == DDP__JOIN_ASK) return DDP__WELCOME;
    if (self->begun && other->kind == DDP__HELLO) return DDP__REFUSE_BEGUN;
    if ((other->world ^ self->world) == DDP__HELLO_RESUMES) return DDP__REFUSE_RESUME;
    if (other->world != self->world) return DDP__REFUSE_WORLD;
    if (other->rank >= (self->world & 65535) || other->rank == self->rank) return DDP__REFUSE_RANK;
    return DDP__WELCOME;
}

/* "4 ranks", "4 ranks of at most 8" */
static const char *ddp__hello_count(uint32_t world, char *buf, size_t room)
{
    uint32_t ids = (world & ~DDP__HELLO_RESUMES) >> 16;

    if (ids)
        snprintf(buf, room, "%u ranks of at most %u", world & 65535, ids);
    else
        snprintf(buf, room, "%u ranks", world & 65535);
    return buf;
}

void ddp__hello_dispute(const ddp__hello *self, ddp__refusal reason, const ddp__hello *other,
                        const char *name, char *out, size_t room)
{
    unsigned mine = (unsigned)self->rank;
    char count[2][40];

    switch (reason) {
    case DDP__REFUSE_VERSION:
        snprintf(out, room,
                 "%s uses protocol version %u, but rank %u uses version %u: build all ranks from one version "
                 "of dreamddp",
                 name, (unsigned)other->version, mine, (unsigned)self->version);
        break;
    case DDP__REFUSE_RUN:
        snprintf(out, room,
                 "%s belongs to run %" PRIu64 ", but rank %u to run %" PRIu64
                 "%s%.40s%s: another run uses this "
                 "port, or DREAMDDP_RUN_ID differs",
                 name, other->run_id, mine, self->run_id, self->run_name ? " ('" : "",
                 self->run_name ? self->run_name : "", self->run_name ? "')" : "");
        break;
    case DDP__REFUSE_WORLD:
        snprintf(out, room, "%s expects %s, but rank %u expects %s: set the same world size on all ranks",
                 name, ddp__hello_count(other->world, count[0], sizeof count[0]), mine,
                 ddp__hello_count(self->world, count[1], sizeof count[1]));
        break;
    case DDP__REFUSE_DAMAGED:
        snprintf(out, room,
                 "the first message of %s has a wrong checksum: its bytes were changed in transit; start "
                 "again, and if the error persists, use a key (--tls-psk) or another network",
                 name);
        break;
    case DDP__REFUSE_BEGUN:
        snprintf(out, room,
                 "%s has rank %u, but the run has started: start each rank once; to add a worker to a run "
                 "with --min-world, use --join",
                 name, (unsigned)other->rank);
        break;
    case DDP__REFUSE_TWICE:
        snprintf(
            out, room,
            "%s has rank %u, but another rank %u is already connected: give each process a different rank",
            name, (unsigned)other->rank, (unsigned)other->rank);
        break;
    case DDP__REFUSE_RESUME:
        snprintf(count[0], sizeof count[0], "rank %u", mine);
        mine = other->world & DDP__HELLO_RESUMES;
        snprintf(out, room,
                 "reconnection of links is enabled on %s, but not on %s: set the same DREAMDDP_RESUME and "
                 "--min-world on all ranks",
                 mine ? name : count[0], mine ? count[0] : name);
        break;
    default:
        snprintf(out, room, "%s has rank %u of %u, which rank %u does not expect", name,
                 (unsigned)other->rank, (unsigned)other->world & 65535, mine);
    }
}
