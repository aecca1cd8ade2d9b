/* Compares the ranks when a session starts. A difference in a setting, the model or the optimizer is an error
 * that names it. */
#include "config/settings.h"
#include "session/part.h"
#include "context/context.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "session/keep.h"
#include "session/session.h"
#include "session/start.h"

static ddp_status ddp__team_layers(ddp_ctx *d, ddp_error *err)
{
    const size_t L = (size_t)ddp__layers(d);
    int32_t *all = (int32_t *)ddp__calloc((size_t)ddp_world(d) * L, sizeof *all);
    ddp_status s;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d layers", ddp__layers(d));
    for (int l = 0; l < ddp__layers(d); l++)
        all[(size_t)ddp_rank(d) * L + (size_t)l] = ddp__unit_of(d, l)->group;
    s = ddp__gather_words(d, 0, all, L * sizeof *all, err);
    for (int l = 0; s == DDP_OK && l < ddp__layers(d); l++) {
        const int group = ddp__unit_of(d, l)->group,
                  *ranks = ddp__engine_group_ranks(ddp__engine_of(d, 0), group);
        int n = ranks ? ddp__engine_group_size(ddp__engine_of(d, 0), group) : ddp_world(d);
        for (int i = 0; i < n; i++) {
            const int r = ranks ? ranks[i] : i, other = (int)all[(size_t)r * L + (size_t)l];
            if (other == group) continue;
            s = ddp__fail(err, DDP_MISMATCH,
                          "layer %d (%s) belongs to group %d on rank %d and to group %d on rank %d: "
                          "all ranks of a group must register it with the same group (0 = all ranks)",
                          l, ddp__unit_of(d, l)->name, group, ddp_rank(d), other, r);
            break;
        }
    }
    DDP_FREE(all);
    return s;
}

/* ---- comparison ---- */

enum { DDP__HYPERS = sizeof((ddp_optimizer *)0)->hyper / sizeof(float) };

/* Description that each rank sends, all 0 if the rank is lost. */
typedef struct ddp__fingerprint {
    int32_t version, layers, micro_batches, team, mixed, site;
    char strategy[32], optimizer[32];
    float hyper[DDP__HYPERS]; /* parameters of an update rule of the library */
    uint64_t layout;          /* layers and optimizer */
    uint64_t model, dropout;  /* the graph's operators */
    double setting[DDP__SETTINGS];
    ddp__same same[DDP_SAME], usual[DDP_SAME];
    char states[DDP__PROGRAM_NAMES];
} ddp__fingerprint;

/* Returns the names of an optimizer's hyper values. NULL means that the program has its own rule. */
static const char *const *ddp__optimizer_names(const ddp_optimizer *o)
{
    static const char *const sgd[DDP__HYPERS] = {
        "momentum", "weight decay", "Nesterov's momentum (0: no, 1: yes)", "", "", ""};
    static const char *const adam[DDP__HYPERS] = {"beta1", "beta2", "eps", "weight decay", "", ""};
    static const char *const muon[DDP__HYPERS] = {
        "momentum", "weight decay", "matrix learning rate / learning rate", "beta1", "beta2", "eps"};

    if (ddp__is_muon(o)) return muon;
    if (ddp__optimizer_rule(o) == DDP__RULE_SGD) return sgd;
    return ddp__optimizer_rule(o) == DDP__RULE_ADAM ? adam : NULL;
}

int ddp__settings(const ddp_ctx *d, int joined, ddp__setting *out)
{
    const ddp__setting more[DDP__SESSION_SETTINGS] = {
        {"net (bytes/s of the slowest link)", ddp__links_of(d, 0)->slowest, NULL},
        {"learning rate", (double)ddp__optimizer(d)->lr, NULL},
        {"dropout", ddp__dropout(d), NULL}};
    const int n = ddp__settings_compared(ddp__cfg(d), joined, out);

    memcpy(out + n, more, sizeof more);
    return n + DDP__SESSION_SETTINGS;
}

static void ddp__fingerprint_fill(const ddp_ctx *d, ddp__fingerprint *f)
{
    ddp__setting setting[DDP__SETTINGS];

    f->version = DDP_VERSION_MAJOR * 10000 + DDP_VERSION_MINOR * 100 + DDP_VERSION_PATCH;
    f->layers = ddp__layers(d);
    f->micro_batches = ddp__cfg(d)->micro_batches;
    f->team = ddp__team_group(d);
    f->mixed = d->session->mixed;
    f->site = ddp__cfg(d)->site;
    snprintf(f->strategy, sizeof f->strategy, "%s", ddp__ops(d)->name);
    snprintf(f->optimizer, sizeof f->optimizer, "%s", ddp__optimizer(d)->name);
    if (ddp__optimizer_names(ddp__optimizer(d))) memcpy(f->hyper, ddp__optimizer(d)->hyper, sizeof f->hyper);
    f->layout = ddp__layout_hash(d);
    f->model = ddp__model_hash(d);
    f->dropout = ddp__dropout_hash(d);
    for (int i = ddp__settings(d, 0, setting) - 1; i >= 0; i--) f->setting[i] = setting[i].value;
    memcpy(f->same, d->session->same, sizeof f->same);
    memcpy(f->usual, d->session->usual, sizeof f->usual);
    ddp__program_names(d, f->states);
}

static int ddp__in_team(const ddp_ctx *d, int rank)
{
    for (int i = 0; i < ddp__team_size(d); i++)
        if (ddp__team_rank(d, i) == rank) return 1;
    return 0;
}

/* Reports two different values of a setting, with enough digits to distinguish them. */
static ddp_status ddp__setting_differs(const ddp__setting *s, int r, double value, int first, double there,
                                       ddp_error *err)
{
    char has[48], other[48];

    ddp__setting_text(s, value, 6, has, sizeof has);
    ddp__setting_text(s, there, 6, other, sizeof other);
    if (!strcmp(has, other)) {
        ddp__setting_text(s, value, 17, has, sizeof has);
        ddp__setting_text(s, there, 17, other, sizeof other);
    }
    return ddp__fail(err, DDP_MISMATCH, "rank %d has %s %s, rank %d has %s: start every rank with the same",
                     r, s->name, has, first, other);
}

static const ddp__same *ddp__same_named(const ddp__fingerprint *f, const char *name)
{
    for (int i = 0; i < DDP_SAME; i++)
        if (!strcmp(f->same[i].name, name)) return &f->same[i];
    return NULL;
}

/* Returns the first ddp_same number that f has and o lacks, or NULL. */
static const ddp__same *ddp__same_only(const ddp__fingerprint *f, const ddp__fingerprint *o)
{
    for (int i = 0; i < DDP_SAME && f->same[i].name[0]; i++)
        if (!ddp__same_named(o, f->same[i].name)) return &f->same[i];
    return NULL;
}

/* Compares the numbers of ddp_same. */
static ddp_status ddp__compare_sames(int r, const ddp__fingerprint *f, int first,
                                     const ddp__fingerprint *zero, ddp_error *err)
{
    const ddp__same *x = ddp__same_only(f, zero), *y = ddp__same_only(zero, f);

    for (int i = 0; i < DDP_SAME && !x && !y && f->same[i].name[0]; i++) {
        const ddp__same *other = ddp__same_named(zero, f->same[i].name);
        if (f->same[i].value == other->value) continue;
        x = &f->same[i];
        y = other;
    }
    if (!x && !y) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH,
                     "rank %d has %.31s %lld, rank %d has %.31s %lld: start every rank with the same", r,
                     x ? x->name : "nothing", x ? (long long)x->value : 0, first, y ? y->name : "nothing",
                     y ? (long long)y->value : 0);
}

/* Compares rank r with the first live rank. */
static ddp_status ddp__compare_settings(const ddp_ctx *d, int r, const ddp__fingerprint *f, int first,
                                        const ddp__fingerprint *zero, ddp_error *err)
{
    ddp__setting setting[DDP__SETTINGS]; /* for their names */
    const int settings = ddp__settings(d, 0, setting);

    if (f->version != zero->version)
        return ddp__fail(err, DDP_MISMATCH,
                         "rank %d runs dreamddp version %06d, rank %d has %06d: build all ranks from "
                         "one header",
                         r, (int)f->version, first, (int)zero->version);
    if (strcmp(f->strategy, zero->strategy))
        return ddp__fail(err, DDP_MISMATCH,
                         "rank %d runs strategy %.31s, rank %d %.31s: start every rank with the same "
                         "strategy",
                         r, f->strategy, first, zero->strategy);
    if (f->micro_batches != zero->micro_batches)
        return ddp__fail(err, DDP_MISMATCH,
                         "rank %d accumulates %d micro-batches, rank %d %d: start every rank with "
                         "the same micro_batches",
                         r, (int)f->micro_batches, first, (int)zero->micro_batches);
    for (int i = 0; i < settings; i++)
        if (!(f->setting[i] == zero->setting[i]))
            return ddp__setting_differs(&setting[i], r, f->setting[i], first, zero->setting[i], err);
    DDP__TRY(ddp__compare_sames(r, f, first, zero, err));
    if (!strcmp(f->states, zero->states)) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH,
                     "rank %d has the states '%.100s' (ddp_add_state), rank %d '%.100s': register the same "
                     "on every rank in the same order",
                     r, f->states, first, zero->states);
}

/* Compares rank r with the first rank of its team, which has the same model. */
static ddp_status ddp__compare_optimizers(const ddp_ctx *d, int r, const ddp__fingerprint *f, int first,
                                          const ddp__fingerprint *team, ddp_error *err)
{
    const char *const *names = ddp__optimizer_names(ddp__optimizer(d));

    if (strcmp(f->optimizer, team->optimizer))
        return ddp__fail(err, DDP_MISMATCH,
                         "rank %d has the optimizer %.31s, rank %d has %.31s: start every rank with the same",
                         r, f->optimizer, first, team->optimizer);
    for (int i = 0; names && i < DDP__HYPERS; i++) {
        const ddp__setting s = {names[i], 0, NULL};
        if (f->hyper[i] < team->hyper[i] || f->hyper[i] > team->hyper[i])
            return ddp__setting_differs(&s, r, (double)f->hyper[i], first, (double)team->hyper[i], err);
    }
    return DDP_OK;
}

static ddp_status ddp__compare_ranks(const ddp_ctx *d, const ddp__fingerprint *all, ddp_error *err)
{
    const ddp__fingerprint *zero = all, *team;
    int first, root;

    while (zero->version == 0) zero++; /* skips lost workers */
    first = (int)(zero - all);
    root = ddp__team_group(d) ? ddp__team_root(d) : first;
    team = all + root;
    for (int r = 0; r < ddp_world(d); r++) {
        const ddp__fingerprint *f = all + r;
        if (f->version == 0) continue;
        if (f->version == zero->version && ddp__in_team(d, r) && f->layers != team->layers)
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d registered %d layers, rank %d has %d: every rank%s must "
                             "register the same model",
                             r, (int)f->layers, root, (int)team->layers,
                             ddp__team_group(d) ? " of a group" : "");
        DDP__TRY(ddp__compare_settings(d, r, f, first, zero, err));
        if (ddp__in_team(d, r)) DDP__TRY(ddp__compare_optimizers(d, r, f, root, team, err));
    }
    return DDP_OK;
}

/* Checks that the ranks of this rank's team agree on the team. */
static ddp_status ddp__team_agree(ddp_ctx *d, const ddp__fingerprint *all, ddp_error *err)
{
    for (int i = 0; i < ddp__team_size(d); i++) {
        const int r = ddp__team_rank(d, i), team = (int)all[r].team;
        if (all[r].version == 0 || team == ddp__team_group(d)) continue;
        return ddp__fail(
            err, DDP_MISMATCH,
            "all layers of rank %d belong to group %d, those of rank %d to %s: where "
            "one rank has layers of all ranks or of several groups, every rank must register the same "
            "layers",
            team ? r : ddp_rank(d), team ? team : ddp__team_group(d), team ? ddp_rank(d) : r,
            d->session->mixed || !team ? "none or to several" : "another");
    }
    return DDP_OK;
}

/* Description of a layer that the ranks compare when their models differ. */
typedef struct ddp__shape_word {
    uint64_t hash, count;
    int32_t blocks;
    char name[48];
} ddp__shape_word;

static ddp__shape_word ddp__shape_of(const ddp__unit *u)
{
    ddp__shape_word w;

    memset(&w, 0, sizeof w);
    w.hash = ddp__unit_hash(u);
    w.count = u->count;
    w.blocks = ddp__count(u->block);
    snprintf(w.name, sizeof w.name, "%s", u->name);
    return w;
}

/* Finds the layer that differs if the number of layers is equal, from the layers of the first rank. */
static ddp_status ddp__compare_layers(ddp_ctx *d, ddp_error *err)
{
    const size_t bytes = (size_t)ddp__layers(d) * sizeof(ddp__shape_word);
    ddp__shape_word *first = (ddp__shape_word *)ddp__calloc(bytes, 1);
    ddp_status s;

    if (!first) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d layers", ddp__layers(d));
    for (int l = 0; l < ddp__layers(d); l++) first[l] = ddp__shape_of(ddp__unit_of(d, l));
    s = ddp__tell(d, ddp__team_group(d), first, bytes, err);
    for (int l = 0; s == DDP_OK && l < ddp__layers(d); l++) first[l].name[sizeof first[l].name - 1] = 0;
    for (int l = 0; s == DDP_OK && l < ddp__layers(d); l++) {
        const ddp__shape_word own = ddp__shape_of(ddp__unit_of(d, l)), *f = &first[l];
        const int alike = own.count == f->count && own.blocks == f->blocks && !strcmp(own.name, f->name);
        if (own.hash == f->hash) continue;
        s = ddp__fail(err, DDP_MISMATCH,
                      "layer %d: rank %d registered %s with %zu values in %d blocks, rank %d %s with %zu "
                      "in %d%s: every rank%s must register the same model",
                      l, ddp_rank(d), own.name, (size_t)own.count, (int)own.blocks, ddp__team_root(d),
                      f->name, (size_t)f->count, (int)f->blocks, alike ? ", of other lengths or kinds" : "",
                      ddp__team_group(d) ? " of a group" : "");
    }
    DDP_FREE(first);
    return s;
}

/* Called if a rank of the team registered another model. Finds the layer that differs, or reports that only
 * operators outside layers differ. */
static ddp_status ddp__compare_models(ddp_ctx *d, int other, const char *what, ddp_error *err)
{
    DDP__TRY(ddp__compare_layers(d, err));
    DDP__TRY(ddp__all_come(d, ddp__team_group(d),
                           err)); /* this rank agrees with the first rank, and waits for the abort of the rank
                                     that does not */
    return ddp__fail(err, DDP_MISMATCH,
                     "the models of rank %d and rank %d have equal layers and different %s: start every "
                     "rank with the same model",
                     ddp_rank(d), other, what);
}

/* Writes one warning for all numbers of ddp_usually_same that differ from the values of the first live
 * rank. */
static void ddp__find_unlike(ddp_ctx *d, const ddp__fingerprint *all)
{
    const ddp__fingerprint *first = all;
    ddp__text t = DDP__ZEROS;
    size_t begin = 0;

    while (first->version == 0) first++;
    t.data = d->session->unlike;
    t.room = sizeof d->session->unlike;
    t.fixed = 1;
    for (int i = 0; i < DDP_SAME && *first->usual[i].name; i++) {
        const ddp__same *x = &first->usual[i];
        const ddp__fingerprint *f = first;
        while (f < all + ddp_world(d) &&
               (!f->version || strcmp(f->usual[i].name, x->name) || f->usual[i].value == x->value))
            f++;
        if (f == all + ddp_world(d)) continue;
        if (!t.size) {
            ddp__text_addf(&t, "rank %d has ", (int)(first - all));
            begin = t.size;
        }
        ddp__text_addf(&t, "%s%s %lld (rank %d: %lld)", t.size > begin ? ", " : "", x->name,
                       (long long)x->value, (int)(f - all), (long long)f->usual[i].value);
    }
    if (!t.size) return;
    ddp__text_addf(&t, ": the run continues, and averages give every rank the same weight");
    if (ddp__leads(d)) ddp__log(ddp__log_of(d), DDP_LOG_WARN, "%s", d->session->unlike);
}

ddp_status ddp__agree(ddp_ctx *d, ddp_error *err)
{
    const size_t world = (size_t)ddp_world(d);
    ddp__fingerprint *all, *own;
    const char *what = NULL; /* differs between this rank and `other` */
    int *site, other = -1, mixed = 0;
    ddp_status s;

    if (ddp__is_on_paper(d) && ddp_world(d) > DDP__LARGE_WORLD)
        return DDP_OK; /* simulated ranks are one program, and each would store a control message of each
                          rank */
    all = (ddp__fingerprint *)ddp__calloc(world, sizeof *all + sizeof(int));
    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d ranks", ddp_world(d));
    own = all + ddp_rank(d);
    site = (int *)(void *)(all + world);
    ddp__fingerprint_fill(d, own);
    s = ddp__gather_words(d, 0, all, sizeof *all, err);
    if (s == DDP_OK) s = ddp__team_agree(d, all, err);
    if (s == DDP_OK) s = ddp__compare_ranks(d, all, err);
    if (s == DDP_OK) ddp__find_unlike(d, all);
    for (int r = 0; r < ddp_world(d); r++) {
        site[r] = (int)all[r].site;
        mixed |= all[r].mixed;
        if (other >= 0 || !all[r].version || !ddp__in_team(d, r)) continue;
        if (all[r].layout != own->layout || all[r].model != own->model)
            what = "operators or arguments, such as the number of heads";
        else if (all[r].dropout != own->dropout)
            what = "places or rates of dropout";
        if (what) other = r;
    }
    if (s == DDP_OK && other < 0) s = ddp__levels_open(d, site, err);
    DDP_FREE(all);
    if (s == DDP_OK && other < 0 && mixed && !ddp__team_group(d)) s = ddp__team_layers(d, err);
    return s == DDP_OK && other >= 0 ? ddp__compare_models(d, other, what, err) : s;
}

/* Adds a number to the list of a call. */
static int ddp__same_add(ddp_ctx *d, const char *verb, ddp__same *list, int *count, const char *name,
                         int64_t value)
{
    if (!name || !*name || strlen(name) >= sizeof list->name || *count == DDP_SAME || ddp__started(d))
        return ddp__ctx_failf(d, ddp__started(d) ? DDP_USAGE : DDP_ARG,
                              "%s: '%.40s': at most %d names of up to %d characters, before the "
                              "first step",
                              verb, name ? name : "", DDP_SAME, (int)sizeof list->name - 1);
    snprintf(list[*count].name, sizeof list->name, "%s", name);
    list[(*count)++].value = value;
    return 0;
}

int ddp_same(ddp_ctx *d, const char *name, int64_t value)
{
    DDP__ENTER(d);
    return ddp__same_add(d, "ddp_same", d->session->same, &d->session->sames, name, value);
}

int ddp_usually_same(ddp_ctx *d, const char *name, int64_t value)
{
    DDP__ENTER(d);
    return ddp__same_add(d, "ddp_usually_same", d->session->usual, &d->session->usuals, name, value);
}

const char *ddp_unlike(const ddp_ctx *d) { return d ? d->session->unlike : ""; }
