/* Parses link specifications and scripts of incidents, and applies them to one worker. */
#include "emulate/links.h"
#include "emulate/netspec.h"

typedef struct ddp__rate_unit {
    const char *name;
    double value;
} ddp__rate_unit;

static const ddp__rate_unit ddp__rate_units[] = {
    {"bit", 1 / 8.0}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {NULL, 0}};
static const ddp__rate_unit ddp__delay_units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};
static const ddp__rate_unit ddp__no_unit[] = {{"", 1}, {NULL, 0}};

/* Parses a number (digits and at most one point) followed by a unit. Returns 1 if text[0..n) is exactly
 * that. */
static int ddp__quantity(const char *text, size_t n, const ddp__rate_unit *units, double *out)
{
    char word[60], *unit;
    size_t digits;

    if (n >= sizeof word) return 0;
    memcpy(word, text, n);
    word[n] = 0;
    digits = strspn(word, "0123456789.");
    *out = ddp__number(word, &unit);
    while (units->name && strcmp(units->name, unit)) units++;
    *out *= units->value;
    return digits > 0 && unit == word + digits && units->name;
}

int ddp__netspec_fits(double rate, double delay_s)
{
    return (rate == 0 || (rate >= 1 && rate <= 1.25e14)) && delay_s >= 0 && delay_s <= 3600;
}

/* Parses RATE from the first n bytes of text. Returns 1, or 0 if it is not a rate. */
static int ddp__netspec_rate(const char *text, size_t n, double *bytes_per_s)
{
    if ((n == 1 && *text == '0') || (n == 4 && !strncmp(text, "none", 4))) {
        *bytes_per_s = 0;
        return 1;
    }
    return ddp__quantity(text, n, ddp__rate_units, bytes_per_s) && *bytes_per_s > 0 &&
           ddp__netspec_fits(*bytes_per_s, 0);
}

static ddp_status ddp__netspec_time(const char *spec, const char *what, const char *text, size_t n,
                                    double *out, ddp_error *err)
{
    if (ddp__quantity(text, n, ddp__delay_units, out) && *out <= 3600) return DDP_OK;
    return ddp__fail(err, DDP_ARG,
                     "network '%.100s': the %s '%.*s' is not a number up to an hour with us, ms or s; "
                     "for example 100mbit,20ms",
                     spec, what, n > 60 ? 60 : (int)n, text);
}

ddp_status ddp__netspec_parse(const char *spec, ddp__netspec *out, ddp_error *err)
{
    ddp__netspec s = DDP__ZEROS;
    size_t n = strcspn(spec, ",");
    const char *delay = spec[n] ? spec + n + 1 : NULL, *jitter = delay ? strchr(delay, ',') : NULL;

    if (!ddp__netspec_rate(spec, n, &s.rate))
        return ddp__fail(
            err, DDP_ARG,
            "network '%.100s': the rate '%.*s' is not a number from 8 bit/s to a million gbit/s with bit, "
            "kbit, mbit or gbit; for example 100mbit,20ms, or none",
            spec, n > 60 ? 60 : (int)n, spec);
    if (delay) DDP__TRY(ddp__netspec_time(spec, "delay", delay, strcspn(delay, ","), &s.delay_s, err));
    if (jitter) DDP__TRY(ddp__netspec_time(spec, "jitter", jitter + 1, strlen(jitter + 1), &s.jitter_s, err));
    *out = s;
    return DDP_OK;
}

ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err)
{
    ddp__netspec s;
    size_t n;

    if (!spec || !bytes_per_s || !delay_s) return ddp__fail(err, DDP_ARG, "ddp_net_parse: a NULL argument");
    n = strlen(spec);
    if (strchr(spec, '/') || (n > 5 && !strcmp(spec + n - 5, ".json")))
        return ddp__fail(err, DDP_ARG,
                         "network '%.100s' looks like a file: one worker's link is given as RATE,DELAY, "
                         "for example 100mbit,20ms",
                         spec);
    DDP__TRY(ddp__netspec_parse(spec, &s, err));
    *bytes_per_s = s.rate;
    *delay_s = s.delay_s + s.jitter_s / 2;
    return DDP_OK;
}

/* ---- the script of incidents ---- */

enum { DDP__SCRIPT_WORDS = 6 };

typedef struct ddp__script_text { /* a line split into words */
    const char *name, *word[DDP__SCRIPT_WORDS];
    size_t size[DDP__SCRIPT_WORDS];
    int line, words, world;
    ddp_error *err;
} ddp__script_text;

static ddp_status ddp__script_bad(const ddp__script_text *t, int word, const char *what)
{
    int known = word < t->words;

    return ddp__fail(t->err, DDP_FORMAT,
                     "%s, line %d: '%.*s' is not %s; write for example: t=3 stall 2 for 1.5, t=5 "
                     "drop 1-3, t=8 kill 2, t=10 slow 0 to 10mbit",
                     t->name, t->line, known ? (t->size[word] < 40 ? (int)t->size[word] : 40) : 0,
                     known ? t->word[word] : "", what);
}

static int ddp__script_is(const ddp__script_text *t, int word, const char *text)
{
    return word < t->words && t->size[word] == strlen(text) && !memcmp(t->word[word], text, t->size[word]);
}

static ddp_status ddp__script_worker(const ddp__script_text *t, const char *text, size_t n, int word,
                                     int *out)
{
    double v = 0;

    if (n > 6 || !ddp__quantity(text, n, ddp__no_unit, &v) || memchr(text, '.', n))
        return ddp__script_bad(t, word, "a worker's number");
    if (v >= t->world)
        return ddp__fail(t->err, DDP_ARG,
                         "%s, line %d: worker %.0f does not exist: with %d workers they are 0 to %d", t->name,
                         t->line, v, t->world, t->world - 1);
    *out = (int)v;
    return DDP_OK;
}

static ddp_status ddp__script_pair(const ddp__script_text *t, ddp__incident *i)
{
    const char *text = t->word[2], *dash = (const char *)memchr(text, '-', t->size[2]);
    size_t head = dash ? (size_t)(dash - text) : 0;

    if (!dash) return ddp__script_bad(t, 2, "a pair of workers such as 1-3");
    DDP__TRY(ddp__script_worker(t, text, head, 2, &i->a));
    DDP__TRY(ddp__script_worker(t, dash + 1, t->size[2] - head - 1, 2, &i->b));
    return i->a == i->b ? ddp__script_bad(t, 2, "a pair of two workers") : DDP_OK;
}

/* Parses the words after "t=TIME". */
static ddp_status ddp__script_words(const ddp__script_text *t, ddp__incident *i)
{
    static const char *const kinds[] = {"stall", "slow", "drop", "kill"}, *const links[] = {"for", "to"};
    int kind = 0, words = 3;

    while (kind < 4 && !ddp__script_is(t, 1, kinds[kind])) kind++;
    if (kind == 4) return ddp__script_bad(t, 1, "stall, slow, drop or kill");
    i->kind = (ddp__incident_kind)kind;
    if (t->words < 3) return ddp__script_bad(t, 2, "a worker's number");
    if (i->kind == DDP__DROP)
        DDP__TRY(ddp__script_pair(t, i));
    else
        DDP__TRY(ddp__script_worker(t, t->word[2], t->size[2], 2, &i->a));
    if (i->kind == DDP__STALL || i->kind == DDP__SLOW) {
        words = 5;
        if (!ddp__script_is(t, 3, links[kind]))
            return ddp__script_bad(t, 3, kind == DDP__STALL ? "'for'" : "'to'");
        if (t->words < 5) return ddp__script_bad(t, 4, kind == DDP__STALL ? "a number of seconds" : "a rate");
    }
    if (i->kind == DDP__STALL && (!ddp__quantity(t->word[4], t->size[4], ddp__no_unit, &i->seconds) ||
                                  !(i->seconds > 0 && i->seconds <= 1e7)))
        return ddp__script_bad(t, 4, "a number of seconds above 0, up to 10000000");
    if (i->kind == DDP__SLOW && !ddp__netspec_rate(t->word[4], t->size[4], &i->rate))
        return ddp__script_bad(t, 4, "a rate with bit, kbit, mbit or gbit, or none");
    return t->words > words ? ddp__script_bad(t, words, "expected here") : DDP_OK;
}

ddp_status ddp__script_line(const char *name, int line, const char *text, size_t n, int world,
                            ddp__incidents *s, ddp_error *err)
{
    ddp__script_text t = DDP__ZEROS;
    ddp__incident i = DDP__ZEROS;
    const char *comment = (const char *)memchr(text, '#', n), *end;

    t.name = name;
    t.line = line;
    t.world = world;
    t.err = err;
    for (end = comment ? comment : text + n; text < end; text++) {
        if (*text == ' ' || *text == '\t' || *text == '\r') continue;
        t.word[t.words] = text;
        while (text < end && *text != ' ' && *text != '\t' && *text != '\r') text++;
        t.size[t.words] = (size_t)(text - t.word[t.words]);
        if (++t.words == DDP__SCRIPT_WORDS) break;
    }
    if (t.words == 0) return DDP_OK;
    if (t.size[0] < 3 || memcmp(t.word[0], "t=", 2) ||
        !ddp__quantity(t.word[0] + 2, t.size[0] - 2, ddp__no_unit, &i.at) || i.at > 1e7)
        return ddp__script_bad(&t, 0, "a time such as t=3.5");
    DDP__TRY(ddp__script_words(&t, &i));
    if (!ddp__reserve(s->list, ddp__count(s->list) + 1))
        return ddp__fail(err, DDP_MEMORY, "no memory for the script %s", name);
    stbds_arrput(s->list, i);
    return DDP_OK;
}

ddp_status ddp__script_read(const char *path, int world, ddp__incidents *s, ddp_error *err)
{
    ddp__text text = DDP__ZEROS;
    ddp_status status;
    size_t at = 0;
    int line = 1;

    status = ddp__file_read(path, &text, err);
    if (status == DDP_OK) at = ddp__bom_bytes(text.data, text.size);
    for (; status == DDP_OK && at < text.size; line++) {
        const char *from = text.data + at;
        size_t n = 0;
        while (at + n < text.size && from[n] != '\n' && from[n] != '\r') n++;
        status = ddp__script_line(path, line, from, n, world, s, err);
        at += n + 1;
        if (at < text.size && from[n] == '\r' && text.data[at] == '\n') at++;
    }
    ddp__text_free(&text);
    return status;
}

void ddp__incidents_free(ddp__incidents *s) { ddp__array_free(s->list); }

/* Returns the rate at a time: -1 during a stall, else the rate of the last `slow` before it (of two at the
 * same time, the later line). */
static double ddp__script_rate(const ddp__incidents *s, int rank, double rate, double at)
{
    double since = -1;

    for (int k = 0; k < ddp__count(s->list); k++) {
        const ddp__incident *i = &s->list[k];
        if (i->a != rank || i->at > at) continue;
        if (i->kind == DDP__STALL && at < i->at + i->seconds) return -1;
        if (i->kind != DDP__SLOW || i->at < since) continue;
        since = i->at;
        rate = i->rate;
    }
    return rate;
}

ddp_status ddp__script_apply(const ddp__incidents *s, int rank, ddp__links *l, ddp_error *err)
{
    if (ddp__count(s->list) == 0) return DDP_OK;
    l->own.turn = (ddp__turn *)ddp__calloc(2 * (size_t)ddp__count(s->list), sizeof *l->own.turn);
    l->act = (ddp__act *)ddp__calloc((size_t)ddp__count(s->list), sizeof *l->act);
    if (!l->own.turn || !l->act)
        return ddp__fail(err, DDP_MEMORY, "no memory for a script of %d incidents", ddp__count(s->list));
    for (int k = 0; k < ddp__count(s->list); k++) {
        const ddp__incident *i = &s->list[k];
        if (i->kind == DDP__SLOW && i->rate > 0 && (!(l->slowest > 0) || i->rate < l->slowest))
            l->slowest = i->rate;
        if (i->a != rank) continue;
        if (i->kind == DDP__STALL || i->kind == DDP__SLOW) {
            l->own.turn[l->own.turns++].at = i->at;
            if (i->kind == DDP__STALL) l->own.turn[l->own.turns++].at = i->at + i->seconds;
        } else {
            l->act[l->acts].at = i->at;
            l->act[l->acts++].peer = i->kind == DDP__DROP ? i->b : -1;
        }
    }
    qsort(l->own.turn, (size_t)l->own.turns, sizeof *l->own.turn, ddp__rising);
    qsort(l->act, (size_t)l->acts, sizeof *l->act, ddp__rising);
    for (int k = 0; k < l->own.turns; k++)
        l->own.turn[k].rate = ddp__script_rate(s, rank, l->own.rate, l->own.turn[k].at);
    return DDP_OK;
}

ddp_rng ddp__jitter_rng(uint64_t seed, int from, int to)
{
    return ddp_rng_seed(seed ^ UINT64_C(0x6a69747465720000), (uint64_t)from << 32 | (uint64_t)(unsigned)to);
}

ddp_status ddp__links_alike(const ddp__netspec *spec, int rank, int world, uint64_t seed, ddp__links *l,
                            ddp_error *err)
{
    memset(l, 0, sizeof *l);
    l->path = (ddp__path *)ddp__calloc((size_t)world, sizeof *l->path);
    if (!l->path) return ddp__fail(err, DDP_MEMORY, "no memory for the links of %d workers", world);
    l->own.rate = l->slowest = spec->rate;
    l->farthest = spec->delay_s + spec->jitter_s;
    l->flight = spec->rate * l->farthest;
    l->plan_rate = spec->rate;
    l->plan_delay_s = spec->delay_s + spec->jitter_s / 2;
    for (int r = 0; r < world; r++) {
        l->path[r].delay_s = spec->delay_s;
        l->path[r].jitter_s = spec->jitter_s;
        l->path[r].rng = ddp__jitter_rng(seed, r, rank);
    }
    return DDP_OK;
}

void ddp__links_free(ddp__links *l)
{
    DDP_FREE(l->path);
    DDP_FREE(l->own.turn);
    DDP_FREE(l->act);
    memset(l, 0, sizeof *l);
}
