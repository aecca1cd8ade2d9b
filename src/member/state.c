/* A worker's state as a list of arrays. Writes it to a file or to memory, and reads it from a file. */
#include "member/state.h"

enum { DDP__WORKER_PART = 65536 }; /* values copied and hashed at a time */

/* ---- the list ---- */

ddp_status ddp__worker_open(ddp__worker *s, int layers, int room, ddp_error *err)
{
    memset(s, 0, sizeof *s);
    s->layer = (const char **)ddp__calloc((size_t)layers + 1, sizeof *s->layer);
    s->tensor = (ddp__tensor *)ddp__calloc((size_t)room, sizeof *s->tensor);
    s->layers = layers;
    s->room = room;
    if (s->layer) s->layer[layers] = "";
    if (s->layer && s->tensor) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory for the state of %d layers", layers);
}

void ddp__worker_free(ddp__worker *s)
{
    for (int i = 0; i < s->tensors; i++)
        if (!s->tensor[i].layer && s->tensor[i].data && !(s->tensor[i].flags & DDP__WORKER_LENT))
            DDP_FREE(s->tensor[i].data);
    if (s->tensor) DDP_FREE(s->tensor);
    if (s->layer) DDP_FREE(s->layer);
    memset(s, 0, sizeof *s);
}

static ddp__tensor *ddp__worker_next(ddp__worker *s, ddp_safetensors_type type, size_t count, int flags)
{
    ddp__tensor *t = &s->tensor[s->tensors++];

    DDP_ASSERT(s->tensors <= s->room);
    memset(t, 0, sizeof *t); /* ddp__worker_rest_drop may have used it */
    t->type = type;
    t->count = count;
    t->flags = flags;
    return t;
}

void ddp__worker_add(ddp__worker *s, const char *name, int l, int b, float *data, size_t count, int flags)
{
    ddp__tensor *t = ddp__worker_next(s, DDP_ST_F32, count, flags);

    if (b < 0)
        snprintf(t->name, sizeof t->name, "%s.%d", name, l);
    else
        snprintf(t->name, sizeof t->name, "%s.%d.%d", name, l, b);
    t->layer = s->layer[l];
    t->l = l;
    t->b = b;
    t->data = data;
}

void *ddp__worker_small(ddp__worker *s, const char *name, ddp_safetensors_type type, size_t count,
                        size_t most, int flags)
{
    ddp__tensor *t = ddp__worker_next(s, type, count, flags);

    snprintf(t->name, sizeof t->name, "%s", name);
    t->most = most > count ? most : count;
    t->data = ddp__calloc(t->most, ddp_safetensors_type_bytes(type));
    return t->data;
}

const ddp__tensor *ddp__worker_find(const ddp__worker *s, const char *name)
{
    for (int i = 0; i < s->tensors; i++)
        if (!strcmp(s->tensor[i].name, name)) return &s->tensor[i];
    return NULL;
}

static size_t ddp__tensor_bytes(const ddp__tensor *t)
{
    return t->count * ddp_safetensors_type_bytes(t->type);
}

/* ---- arrays that a joining worker receives when it enters, or later ---- */

static int ddp__is_rest(const ddp__tensor *t) { return t->layer && t->flags & DDP__WORKER_TOLD; }

static long ddp__rest_turn(const ddp__tensor *t) { return t->flags & DDP__WORKER_LATER ? t->turn : -1; }

int ddp__worker_rest_list(const ddp__worker *s, int *order)
{
    int n = 0;

    for (int i = 0; i < s->tensors; i++) {
        const long turn = ddp__rest_turn(&s->tensor[i]);
        int at = n;
        if (!ddp__is_rest(&s->tensor[i])) continue;
        for (; at > 0 && ddp__rest_turn(&s->tensor[order[at - 1]]) > turn; at--) order[at] = order[at - 1];
        order[at] = i;
        n++;
    }
    return n;
}

void ddp__worker_rest_drop(ddp__worker *s)
{
    int n = 0;

    for (int i = 0; i < s->tensors; i++)
        if (!ddp__is_rest(&s->tensor[i])) s->tensor[n++] = s->tensor[i];
    s->tensors = n;
}

ddp_status ddp__worker_rest_pack(const ddp__worker *s, unsigned char **out, size_t *bytes, ddp_error *err)
{
    int *order = (int *)ddp__calloc((size_t)s->tensors + 1, sizeof *order);
    const int n = order ? ddp__worker_rest_list(s, order) : 0;
    ddp_status code = DDP_OK;
    size_t at = 0;

    *bytes = 0;
    for (int i = 0; i < n; i++) *bytes += ddp__tensor_bytes(&s->tensor[order[i]]);
    *out = *bytes ? (unsigned char *)DDP_REALLOC(NULL, *bytes) : NULL;
    if (!order || (*bytes && !*out))
        code =
            ddp__fail(err, DDP_MEMORY, "out of memory for a copy of %zu bytes for a joining worker", *bytes);
    for (int i = 0; code == DDP_OK && i < n; i++) {
        const ddp__tensor *t = &s->tensor[order[i]];
        const size_t size = ddp__tensor_bytes(t);
        if (t->flags & DDP__WORKER_THERE)
            code = ddp__host_download(s->host, *out + at, t->data, size, err);
        else if (size)
            memcpy(*out + at, t->data, size);
        at += size;
    }
    if (order) DDP_FREE(order);
    if (code != DDP_OK && *out) DDP_FREE(*out);
    if (code != DDP_OK) *out = NULL;
    return code;
}

/* ---- to a file, and to memory ---- */

/* notes: as in ddp__safetensors_head. */
static ddp_status ddp__worker_head(const ddp__worker *s, const char *path, const char *const *notes,
                                   ddp__text *head, ddp_error *err)
{
    ddp_safetensor *list = (ddp_safetensor *)ddp__calloc((size_t)s->tensors, sizeof *list);
    ddp_status code;

    if (!list) return ddp__fail(err, DDP_MEMORY, "cannot write %.200s: out of memory", path);
    for (int i = 0; i < s->tensors; i++) {
        list[i].name = s->tensor[i].name;
        list[i].type = s->tensor[i].type;
        list[i].dims = 1;
        list[i].dim[0] = (int64_t)s->tensor[i].count;
    }
    code = ddp__safetensors_head(path, s->tensors, list, notes, head, err);
    DDP_FREE(list);
    return code;
}

/* ---- the identity of a file ---- */

/* The metadata of a file, and pointers to it. */
enum { DDP__STATED = 5 };

typedef struct ddp__stated {
    char text[DDP__STATED][24];
    const char *pair[2 * DDP__STATED + 1]; /* key, text, or NULL after the last */
} ddp__stated;

static void ddp__stated_fill(ddp__stated *n, uint64_t run, long step, int rank, uint64_t copy, uint64_t cut)
{
    static const char *const key[DDP__STATED] = {"run", "step", "rank", "copy", "cut"};

    snprintf(n->text[0], sizeof n->text[0], "%016" PRIx64, run);
    snprintf(n->text[1], sizeof n->text[1], "%ld", step);
    snprintf(n->text[2], sizeof n->text[2], "%d", rank);
    snprintf(n->text[3], sizeof n->text[3], "%" PRIu64, copy);
    snprintf(n->text[4], sizeof n->text[4], "%016" PRIx64, cut);
    for (int i = 0; i < DDP__STATED; i++) {
        n->pair[2 * i] = key[i];
        n->pair[2 * i + 1] = n->text[i];
    }
    n->pair[2 * DDP__STATED] = NULL;
}

/* Adds an array to the hash of a file: its name, type, length and digest of values, in the order of the file.
 * So one pass over the values serves two hashes. */
static void ddp__array_hash(ddp__digester *of, const char *name, ddp_safetensors_type type, uint64_t count,
                            ddp__digest values)
{
    const char *kind = ddp_safetensors_type_name(type);

    ddp__digest_add(of, name, strlen(name) + 1);
    ddp__digest_add(of, kind, strlen(kind) + 1);
    ddp__digest_add(of, &count, sizeof count);
    ddp__digest_add(of, &values, sizeof values);
}

/* ---- writing ---- */

/* Writes a tensor to a file, or appends it to a text, which has room for it. Values in device memory are
 * copied through part, [DDP__WORKER_PART] of the widest type. Values may be NULL. */
static ddp_status ddp__tensor_put(const ddp__worker *s, const ddp__tensor *t, ddp__file *f, ddp__text *text,
                                  double *part, ddp__digester *values, ddp_error *err)
{
    const size_t width = ddp_safetensors_type_bytes(t->type);
    size_t at, n;

    for (at = 0; at < t->count; at += n) {
        const void *data = (const char *)t->data + at * width;
        n = t->count - at < (size_t)DDP__WORKER_PART ? t->count - at : (size_t)DDP__WORKER_PART;
        if (t->flags & DDP__WORKER_THERE) {
            DDP__TRY(ddp__host_download(s->host, part, data, n * width, err));
            data = part;
        }
        if (values) ddp__digest_add(values, data, n * width);
        if (f)
            ddp__file_put(f, data, n * width);
        else
            ddp__text_add(text, (const char *)data, n * width);
    }
    return DDP_OK;
}

/* said: receives the two hashes, or is NULL. */
static ddp_status ddp__worker_put(const ddp__worker *s, ddp__file *f, ddp__text *text, ddp__said *said,
                                  ddp_error *err)
{
    double *part = (double *)ddp__calloc(DDP__WORKER_PART, sizeof *part);
    ddp_status code = part ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for writing a state");
    ddp__digester all = DDP__ZEROS, common = DDP__ZEROS;

    for (int i = 0; code == DDP_OK && i < s->tensors; i++) {
        const ddp__tensor *t = &s->tensor[i];
        ddp__digester values = DDP__ZEROS;
        code = ddp__tensor_put(s, t, f, text, part, said ? &values : NULL, err);
        if (!said) continue;
        ddp__array_hash(&all, t->name, t->type, t->count, ddp__digest_end(&values));
        if (!(t->flags & DDP__WORKER_OWN))
            ddp__array_hash(&common, t->name, t->type, t->count, ddp__digest_end(&values));
    }
    if (said) {
        said->hash = ddp__digest_end(&all);
        said->common = ddp__digest_end(&common);
    }
    if (part) DDP_FREE(part);
    return code;
}

ddp_status ddp__worker_write(const ddp__worker *s, const char *path, ddp__said *said, ddp_error *err)
{
    ddp__text head = DDP__ZEROS;
    ddp__stated notes;
    ddp__file f;
    ddp_status code;

    said->there = 1;
    said->cut = s->cut;
    said->copy = (uint64_t)s->copy;
    ddp__stated_fill(&notes, s->run, s->step, s->rank, said->copy, said->cut);
    code = ddp__worker_head(s, path, notes.pair, &head, err);
    if (code == DDP_OK) code = ddp__file_begin(&f, path, err);
    if (code == DDP_OK) {
        ddp__file_put(&f, head.data, head.size);
        code = ddp__worker_put(s, &f, NULL, said, err);
        if (code == DDP_OK)
            code = ddp__file_end(&f, err);
        else
            ddp__file_drop(&f);
    }
    ddp__text_free(&head);
    return code;
}

ddp_status ddp__worker_pack(const ddp__worker *s, unsigned char **out, size_t *bytes, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    ddp_status code = ddp__worker_head(s, "a copy for a joining worker", NULL, &t, err);
    char *grown = NULL;

    *bytes = t.size;
    for (int i = 0; i < s->tensors; i++) *bytes += ddp__tensor_bytes(&s->tensor[i]);
    if (code == DDP_OK) grown = (char *)DDP_REALLOC(t.data, *bytes + 1);
    if (code == DDP_OK && !grown)
        code = ddp__fail(err, DDP_MEMORY, "out of memory for a copy of %zu bytes", *bytes);
    if (grown) {
        t.data = grown;
        t.room = *bytes + 1;
    }
    if (code == DDP_OK) code = ddp__worker_put(s, NULL, &t, NULL, err);
    if (code != DDP_OK) ddp__text_free(&t);
    *out = (unsigned char *)t.data;
    return code;
}

ddp_status ddp__worker_most(const ddp__worker *s, size_t *bytes, ddp_error *err)
{
    ddp__text head = DDP__ZEROS;

    DDP__TRY(ddp__worker_head(s, "a copy for a joining worker", NULL, &head, err));
    *bytes = head.size;
    ddp__text_free(&head);
    for (int i = 0; i < s->tensors; i++) {
        const ddp__tensor *t = &s->tensor[i];
        *bytes += ddp__tensor_bytes(t);
        if (t->flags & DDP__WORKER_BLOB) *bytes += t->most - t->count;
        *bytes += 64; /* longer numbers in the header */
    }
    return DDP_OK;
}

/* ---- from a file ---- */

/* 1 if a file has the state "A" of which the state "A:B" is a part. */
static int ddp__program_has_whole(const ddp_safetensors *f, const char *name)
{
    const char *colon = strrchr(name + sizeof DDP__PROGRAM - 1, ':');
    char whole[sizeof((ddp__tensor *)0)->name];

    if (!colon) return 0;
    snprintf(whole, sizeof whole, "%.*s", (int)(colon - name), name);
    return ddp_safetensors_find(f, whole) != NULL;
}

/* The number of arrays that are states of the program. Logs and skips states that
 * only the file or only this run has. */
static int ddp__programs_in(const ddp__worker *s, const ddp_safetensors *f, const char *path)
{
    const size_t prefix = sizeof DDP__PROGRAM - 1;
    int found = 0;

    for (int i = 0; i < ddp_safetensors_count(f); i++) {
        const char *name = ddp_safetensors_at(f, i)->name;
        if (strncmp(name, DDP__PROGRAM, prefix)) continue;
        found++;
        if (!ddp__worker_find(s, name))
            ddp__log(ddp__host_log(s->host), DDP_LOG_WARN,
                     "rank %d: %.200s has the state '%.60s', which the program has not registered "
                     "(ddp_add_state): it is ignored",
                     s->rank, path, name + prefix);
    }
    for (int i = 0; i < s->tensors; i++)
        if (s->tensor[i].flags & DDP__WORKER_PROGRAM && !ddp_safetensors_find(f, s->tensor[i].name) &&
            !ddp__program_has_whole(f, s->tensor[i].name))
            ddp__log(ddp__host_log(s->host), DDP_LOG_WARN,
                     "rank %d: %.200s has no state '%s' (ddp_add_state): the program's state is unchanged",
                     s->rank, path, s->tensor[i].name + prefix);
    return found;
}

ddp_status ddp__worker_fits(const ddp__worker *s, ddp_safetensors *f, const char *path, ddp_error *err)
{
    int arrays = 0, found; /* excluding states of the program */

    for (int i = 0; i < s->tensors; i++) {
        const ddp__tensor *x = &s->tensor[i];
        const ddp_safetensor *t = ddp_safetensors_find(f, x->name);

        arrays += !(x->flags & DDP__WORKER_PROGRAM);
        if (!t && x->flags & DDP__WORKER_PROGRAM) continue;
        if (t && t->type == x->type && t->dims == 1 &&
            (x->flags & DDP__WORKER_BLOB || t->dim[0] == (int64_t)x->count))
            continue;
        return ddp__fail(err, DDP_MISMATCH,
                         "%.200s: tensor \"%s\"%s%.60s is missing or does not have %zu values of %s: it is a "
                         "checkpoint of another model or wire format",
                         path, x->name, x->layer ? " of layer " : "", x->layer ? x->layer : "", x->count,
                         ddp_safetensors_type_name(x->type));
    }
    found = ddp_safetensors_count(f) - ddp__programs_in(s, f, path);
    if (found == arrays) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.200s has %d tensors, but this model with this wire format has %d",
                     path, found, arrays);
}

/* The 64-bit hash of checkpoints of format 4, over the values only. */
static uint64_t ddp__older_hash(uint64_t h, ddp_safetensors_type type, const void *p, size_t n)
{
    if (type == DDP_ST_F32) return ddp_hash_floats(h, (const float *)p, n);
    return ddp__hash(h, p, n * ddp_safetensors_type_bytes(type));
}

static ddp_status ddp__file_hash(ddp_safetensors *f, int older, ddp__digest *out, ddp_error *err)
{
    double *part = (double *)ddp__calloc(DDP__WORKER_PART, sizeof *part);
    ddp_status code = part ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    ddp__digester all = DDP__ZEROS;
    uint64_t h = 0;

    for (int i = 0; code == DDP_OK && i < ddp_safetensors_count(f); i++) {
        const ddp_safetensor *t = ddp_safetensors_at(f, i);
        const size_t width = ddp_safetensors_type_bytes(t->type);
        const uint64_t count = ddp_safetensors_elements(t);
        ddp__digester values = DDP__ZEROS;
        for (uint64_t at = 0; code == DDP_OK && at < count; at += DDP__WORKER_PART) {
            const size_t n =
                count - at < (size_t)DDP__WORKER_PART ? (size_t)(count - at) : (size_t)DDP__WORKER_PART;
            code = ddp_safetensors_bytes(f, t, at, n, part, err);
            if (code == DDP_OK && older)
                h = ddp__older_hash(h, t->type, part, n);
            else if (code == DDP_OK)
                ddp__digest_add(&values, part, n * width);
        }
        ddp__array_hash(&all, t->name, t->type, count, ddp__digest_end(&values));
    }
    if (part) DDP_FREE(part);
    *out = ddp__digest_end(&all);
    if (!older) return code;
    out->word[0] = 0;
    out->word[1] = h;
    return code;
}

static ddp_status ddp__file_states(const ddp_safetensors *f, const ddp__listed *x, const char *path,
                                   ddp_error *err)
{
    ddp__stated n;

    ddp__stated_fill(&n, x->run, x->step, x->rank, x->copy, x->cut);
    for (int i = 0; i < DDP__STATED; i++) {
        const char *note = ddp_safetensors_note(f, n.pair[2 * i]);
        if (note && !strcmp(note, n.text[i])) continue;
        return ddp__fail(err, DDP_FORMAT,
                         "%.200s: its %s is %.40s, but the manifest lists %s: it is another file, or one "
                         "of the two was changed",
                         path, n.pair[2 * i], note ? note : "missing", n.text[i]);
    }
    return DDP_OK;
}

ddp_status ddp__damaged(ddp_status s, ddp_error *err)
{
    static const char remedy[] =
        ": copy the file again, or remove its folder to resume from the previous checkpoint";
    const size_t n = err ? strlen(err->msg) : 0;

    if (s == DDP_FORMAT && err && n + sizeof remedy <= sizeof err->msg)
        memcpy(err->msg + n, remedy, sizeof remedy);
    return s;
}

ddp_status ddp__worker_listed(ddp_safetensors *f, const ddp__listed *x, const char *path, ddp_error *err)
{
    char found[DDP__DIGEST_TEXT], listed[DDP__DIGEST_TEXT];
    const int skip = x->older ? 16 : 0; /* digits that an older hash lacks */
    ddp__digest hash;

    if (!x->older) DDP__TRY(ddp__damaged(ddp__file_states(f, x, path, err), err));
    DDP__TRY(ddp__damaged(ddp__file_hash(f, x->older, &hash, err), err));
    if (ddp__digest_equal(hash, x->hash)) return DDP_OK;
    ddp__digest_text(hash, found);
    ddp__digest_text(x->hash, listed);
    ddp__fail(
        err, DDP_FORMAT,
        "%.200s: its hash is %s, but the manifest lists %s: it was changed, or belongs to another checkpoint",
        path, found + skip, listed + skip);
    return ddp__damaged(DDP_FORMAT, err);
}

/* part: [DDP__WORKER_PART], for device memory. Not needed for small values. */
static ddp_status ddp__tensor_load(const ddp__worker *s, ddp__tensor *x, ddp_safetensors *f, float *part,
                                   ddp_error *err)
{
    const ddp_safetensor *t = ddp_safetensors_find(f, x->name);
    const size_t count = t ? (size_t)t->dim[0] : 0;
    size_t at, n;

    if (!t) return DDP_OK; /* a state of the program (ddp__worker_fits) */
    if (x->flags & DDP__WORKER_PROGRAM) x->flags |= DDP__WORKER_FOUND;
    if (!x->layer && count > x->most) {
        void *grown = DDP_REALLOC(x->data, count * ddp_safetensors_type_bytes(x->type));
        if (!grown) return ddp__fail(err, DDP_MEMORY, "out of memory for reading %s", x->name);
        x->data = grown;
        x->most = count;
    }
    x->count = count;
    if (!(x->flags & DDP__WORKER_THERE)) return ddp_safetensors_bytes(f, t, 0, count, x->data, err);
    for (at = 0; at < count; at += n) {
        n = count - at < (size_t)DDP__WORKER_PART ? count - at : (size_t)DDP__WORKER_PART;
        DDP__TRY(ddp_safetensors_bytes(f, t, at, n, part, err));
        ddp__host_upload(s->host, (float *)x->data + at, part, n * sizeof *part);
    }
    return DDP_OK;
}

ddp_status ddp__worker_read(ddp__worker *s, ddp_safetensors *f, long step, const char *path, ddp_error *err)
{
    for (int i = 0; i < s->tensors; i++)
        if (!s->tensor[i].layer) DDP__TRY(ddp__tensor_load(s, &s->tensor[i], f, NULL, err));
    return s->check(s, step, path, err);
}

ddp_status ddp__worker_load(ddp__worker *s, ddp_safetensors *f, const char *path, ddp_error *err)
{
    float *part = (float *)ddp__calloc(DDP__WORKER_PART, sizeof *part);
    ddp_status code = part ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for reading %.200s", path);

    for (int i = 0; code == DDP_OK && i < s->tensors; i++)
        if (s->tensor[i].layer) code = ddp__tensor_load(s, &s->tensor[i], f, part, err);
    if (part) DDP_FREE(part);
    return code;
}
