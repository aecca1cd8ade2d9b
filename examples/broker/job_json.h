/* The description of a job in versioned JSON: writing it for a node, and reading it with an error for each
 * fault. */
#ifndef EXAMPLES_BROKER_JOB_JSON_H
#define EXAMPLES_BROKER_JOB_JSON_H

#include "job.h"

/* The names of operator types in Table 2 of FusionLLM. */
static const char *const job_types[] = {"placeholder", "variable", "parametric", "non-parametric", "loss"};
static const char *const job_inits[] = {"zero", "one", "normal", "uniform"};
static const char *const job_dtypes[] = {"f32", "i32"};

/* ---- writing ---- */

/* Writes the text before a value, then the value. */
static void job_put_text(ddp__text *t, const char *before, const char *value)
{
    ddp__text_addf(t, "%s", before);
    ddp__json_string(t, value);
}

static void job_put_number(ddp__text *t, const char *before, double value)
{
    ddp__text_addf(t, "%s", before);
    ddp__json_number(t, value);
}

static void job_shape(ddp__text *t, const ddp_shape *s)
{
    ddp__text_addf(t, ", \"shape\": [");
    for (int i = 0; i < s->dims; i++) ddp__text_addf(t, i ? ", %ld" : "%ld", s->dim[i]);
    ddp__text_addf(t, "]");
}

static void job_arrays(ddp__text *t, const char *key, const ddp_param *p, int n)
{
    if (n < 0) return;
    ddp__text_addf(t, ", \"%s\": [", key);
    for (int i = 0; i < n; i++) {
        ddp__text_addf(t, "%s{\"init\": \"%s\"", i ? ", " : "", job_inits[p[i].init]);
        job_put_number(t, ", \"scale\": ", (double)p[i].scale);
        job_shape(t, &p[i].shape);
        ddp__text_addf(t, "}");
    }
    ddp__text_addf(t, "]");
}

static void job_rule_text(ddp__text *t, const job_rule *r)
{
    job_put_text(t, ", \"optimizer\": {\"name\": ", r->name);
    job_put_number(t, ", \"lr\": ", r->lr);
    job_put_number(t, ", \"momentum\": ", r->momentum);
    job_put_number(t, ", \"weight_decay\": ", r->weight_decay);
    ddp__text_addf(t, "}");
}

/* The format that ddp_edge_wire_parse reads. */
static void job_wire_text(ddp__text *t, const ddp_edge_wire *w)
{
    ddp__text_addf(t, ", \"edge_wire\": \"%s", ddp_edge_coding_name(w->coding));
    if (w->ratio > 0) job_put_number(t, ":", w->ratio);
    if (w->factor > 0) job_put_number(t, ":", w->factor);
    ddp__text_addf(t, "\"");
}

/* Writes the names of the operators that take the output of operator i. */
static void job_users(ddp__text *t, const job *j, int i)
{
    int n = 0;

    for (int u = i + 1; u < j->ops; u++)
        for (int k = 0; k < j->op[u].arg_count; k++) {
            if (j->op[u].args[k] != i) continue;
            job_put_text(t, n++ ? ", " : "", j->op[u].name);
            break;
        }
}

/* Writes a row of Table 2. */
static void job_op_text(ddp__text *t, const job *j, int i)
{
    const job_op *o = &j->op[i];
    int n = DDP_OP_ARGS;

    job_put_text(t, i ? ",\n  {\"name\": " : "\n  {\"name\": ", o->name);
    ddp__text_addf(t, ", \"type\": \"%s\", \"users\": [", job_types[o->type]);
    job_users(t, j, i);
    ddp__text_addf(t, "], \"args\": [");
    for (int k = 0; k < o->arg_count; k++) job_put_text(t, k ? ", " : "", j->op[o->args[k]].name);
    ddp__text_addf(t, "]");
    if (o->node >= 0) ddp__text_addf(t, ", \"node\": %d", o->node);
    if (o->type == JOB_PLACEHOLDER) {
        ddp__text_addf(t, ", \"dtype\": \"%s\"", job_dtypes[o->dtype]);
    } else {
        while (n && o->attribute[n - 1] == 0) n--;
        job_put_text(t, ", \"op\": ", o->op);
        job_put_text(t, ", \"layer\": ", o->layer);
        ddp__text_addf(t, ", \"attributes\": [");
        for (int k = 0; k < n; k++) job_put_number(t, k ? ", " : "", o->attribute[k]);
        if (o->tied >= 0) job_put_text(t, "], \"tied\": ", j->op[o->tied].name);
        job_put_number(t, o->tied >= 0 ? ", \"flops\": " : "], \"flops\": ", o->flops);
        job_put_number(t, ", \"backward_flops\": ", o->backward_flops);
        job_arrays(t, "parameters", o->param, o->params);
        job_arrays(t, "buffers", o->buffer, o->buffers);
        if (o->rule.name[0] || o->rule.lr > 0) job_rule_text(t, &o->rule);
    }
    if (o->shape.dims >= 0) job_shape(t, &o->shape);
    ddp__text_addf(t, "}");
}

static void job_message_text(ddp__text *t, const job *j, const job_message *m)
{
    const ddp_edge_wire *w = &m->compress_cfg;

    job_put_text(t, "{\"name\": ", j->op[m->op].name);
    ddp__text_addf(t, ", \"op_users\": [");
    job_users(t, j, m->op);
    job_put_text(t, "], \"actual_op_user\": ", j->op[m->user].name);
    ddp__text_addf(t,
                   ", \"from\": %d, \"to\": %d, \"is_loss\": %s, \"require_grad\": %s, \"local_iter\": %ld, "
                   "\"micro_batch\": %d, \"compress_cfg\": {\"algorithm\": \"%s\"",
                   m->from, m->to, m->is_loss ? "true" : "false", m->require_grad ? "true" : "false",
                   m->local_iter, m->micro_batch,
                   w->coding == DDP_EDGE_F32 ? "none" : ddp_edge_coding_name(w->coding));
    job_put_number(t, ", \"ratio\": ", w->ratio > 0 ? w->ratio : 1);
    if (w->coding == DDP_EDGE_ADATOPK) job_put_number(t, ", \"factor\": ", w->factor > 0 ? w->factor : 3);
    ddp__text_addf(t, "}}");
}

/* Writes Table 3: the activations and gradients that the node receives and sends. */
static void job_messages_text(ddp__text *t, const job *j, int node)
{
    static const char *const lists[] = {"required_activations", "sent_activations", "required_gradients",
                                        "sent_gradients"};
    const int n = job_messages(j, node, NULL, 0);
    job_message *m = (job_message *)calloc((size_t)n + 1, sizeof *m);

    if (!m) t->failed = 1;
    if (m) job_messages(j, node, m, n);
    for (int list = 0; m && list < 4; list++) {
        int written = 0;
        ddp__text_addf(t, "\"%s\": [", lists[list]);
        for (int i = 0; i < n; i++) {
            if (m[i].gradient != list / 2 || (m[i].from == node) != list % 2) continue;
            ddp__text_addf(t, "%s\n  ", written++ ? "," : "");
            job_message_text(t, j, &m[i]);
        }
        ddp__text_addf(t, "],\n");
    }
    free(m);
}

/* Returns the description of `node` (-1 for the whole job) with its messages. Free it with job_text_free.
 * Returns NULL if out of memory. */
static inline char *job_text(const job *j, int node)
{
    ddp__text body, all;

    if (!j || !j->ops) return NULL;
    memset(&body, 0, sizeof body);
    memset(&all, 0, sizeof all);
    ddp__text_addf(
        &body,
        ",\n\"steps\": %ld, \"micro_batches\": %d, \"seed\": %llu, \"pipeline\": \"%s\",\n\"nodes\": %d, "
        "\"node\": %d",
        j->steps, j->micro_batches, (unsigned long long)j->seed, ddp_pipeline_name(j->schedule), j->nodes,
        node);
    job_put_text(&body, ", \"loss\": ", j->op[j->loss].name);
    job_rule_text(&body, &j->rule);
    job_wire_text(&body, &j->edge);
    ddp__text_addf(&body, ",\n");
    if (node >= 0) job_messages_text(&body, j, node);
    ddp__text_addf(&body, "\"operators\": [");
    for (int i = 0; i < j->ops; i++) job_op_text(&body, j, i);
    ddp__text_addf(&body, "]}\n");
    ddp__text_addf(&all, "{\"dreamddp_job\": %d, \"hash\": \"%016llx\"", JOB_VERSION,
                   (unsigned long long)ddp__hash(DDP__HASH_START, body.data, body.size));
    ddp__text_add(&all, body.data, body.size);
    all.failed |= body.failed;
    ddp__text_free(&body);
    if (!all.failed) return all.data;
    ddp__text_free(&all);
    return NULL;
}

static inline void job_text_free(char *text)
{
    if (text) DDP_FREE(text);
}

/* ---- reading: the first error is reported, and later values are ignored ---- */

typedef struct job_place {
    char *key; /* name of the operator */
    int value; /* its index in the job */
} job_place;

typedef struct job_reader {
    const char *name; /* position in the text */
    job *j;
    ddp_error *err;
    ddp_status fault;
    job_place *named; /* a string map of stb_ds: the operators read so far */
} job_reader;

static ddp_status job_bad(job_reader *r, const ddp__json *at, const char *fmt, ...)
{
    char what[300];
    va_list args;

    if (r->fault) return r->fault;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return r->fault = ddp__fail(r->err, DDP_FORMAT, "%s, line %d, column %d: %s", r->name, at->line,
                                at->column, what);
}

/* Returns a member, or `given` if it is missing. */
static double job_number(job_reader *r, const ddp__json *o, const char *key, double given, double least,
                         double most, int whole)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return given;
    if (v->kind == DDP__JSON_NUMBER && v->number >= least && v->number <= most &&
        (!whole || v->number == floor(v->number)))
        return v->number;
    job_bad(r, v, "\"%s\" must be a %snumber from %g to %g", key, whole ? "whole " : "", least, most);
    return given;
}

static int job_choice(job_reader *r, const ddp__json *o, const char *key, int given, const char *const *names,
                      int count)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return given;
    for (int i = 0; v->kind == DDP__JSON_STRING && i < count; i++)
        if (!strcmp(v->string, names[i])) return i;
    job_bad(r, v, "\"%s\" must be one of %s, %s ... %s", key, names[0], names[1], names[count - 1]);
    return given;
}

static void job_string(job_reader *r, const ddp__json *o, const char *key, char *out, size_t room)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (v && v->kind == DDP__JSON_STRING && strlen(v->string) < room)
        snprintf(out, room, "%s", v->string);
    else if (v)
        job_bad(r, v, "\"%s\" must be a text of at most %zu bytes", key, room - 1);
}

/* Returns the first of at most `room` values of an array, or NULL. */
static const ddp__json *job_list(job_reader *r, const ddp__json *o, const char *key, int room)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v || (v->kind == DDP__JSON_ARRAY && v->count <= room)) return v ? v->first : NULL;
    job_bad(r, v, "\"%s\" must be an array of at most %d values", key, room);
    return NULL;
}

static void job_read_shape(job_reader *r, const ddp__json *o, ddp_shape *out)
{
    double count = 1;

    if (ddp__json_get(o, "shape")) out->dims = 0;
    for (const ddp__json *v = job_list(r, o, "shape", 4); v && !r->fault; v = v->next) {
        if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1 && v->number <= 1e9) ||
            v->number != floor(v->number))
            job_bad(r, v, "a dimension must be a whole number from 1 to 1e+09");
        else
            out->dim[out->dims++] = (long)v->number;
        count *= v->number;
    }
    if (count > 1e12) job_bad(r, o, "\"shape\" has more than 1e+12 elements");
}

/* Returns a number, or -1 if the kernel determines it. */
static int job_read_arrays(job_reader *r, const ddp__json *o, const char *key, ddp_param *out, int room)
{
    int n = 0;

    for (const ddp__json *v = job_list(r, o, key, room); v; v = v->next, n++) {
        out[n].name = "weight";
        job_read_shape(r, v, &out[n].shape);
        out[n].init = (ddp_init)job_choice(r, v, "init", (int)DDP_INIT_ZERO, job_inits, 4);
        out[n].scale = (float)job_number(r, v, "scale", 0, 0, 1e30, 0);
    }
    return ddp__json_get(o, key) ? n : -1;
}

static void job_read_rule(job_reader *r, const ddp__json *o, job_rule *out)
{
    const ddp__json *v = ddp__json_get(o, "optimizer");

    if (v && v->kind != DDP__JSON_OBJECT) job_bad(r, v, "\"optimizer\" must be an object with name and lr");
    job_string(r, v, "name", out->name, sizeof out->name);
    out->lr = job_number(r, v, "lr", 0, 0, 1e6, 0);
    out->momentum = job_number(r, v, "momentum", 0, 0, 1, 0);
    out->weight_decay = job_number(r, v, "weight_decay", 0, 0, 1e6, 0);
}

/* Returns the operator of that name among those read so far, or -1. */
static int job_named(job_reader *r, const char *name)
{
    const ptrdiff_t at = stbds_shgeti(r->named, name);

    return at < 0 ? -1 : r->named[at].value;
}

static int job_find(job_reader *r, const ddp__json *v)
{
    const int i = v->kind == DDP__JSON_STRING ? job_named(r, v->string) : -1;

    if (v->kind != DDP__JSON_STRING)
        job_bad(r, v, "the name of an operator is needed");
    else if (i < 0)
        job_bad(r, v, "no operator %.100s is defined before its user", v->string);
    return i;
}

static void job_read_args(job_reader *r, const ddp__json *v, int i)
{
    job_op *o = &r->j->op[i];
    const ddp__json *at, *tied = ddp__json_get(v, "tied");
    int k = 0;

    for (at = job_list(r, v, "args", DDP_OP_INPUTS); at; at = at->next)
        o->args[o->arg_count++] = job_find(r, at);
    o->tied = tied ? job_find(r, tied) : -1;
    for (at = job_list(r, v, "attributes", DDP_OP_ARGS); at; at = at->next) {
        if (at->kind != DDP__JSON_NUMBER || !(fabs(at->number) <= 1e9))
            job_bad(r, at, "an attribute must be a number from -1e+09 to 1e+09");
        o->attribute[k++] = at->number;
    }
}

static ddp_status job_read_op(job_reader *r, const ddp__json *v, int i)
{
    job_op *o = &r->j->op[i];
    int type;

    if (v->kind != DDP__JSON_OBJECT) return job_bad(r, v, "an operator must be an object with name and op");
    job_string(r, v, "name", o->name, sizeof o->name);
    if (!o->name[0]) return job_bad(r, v, "an operator needs a name");
    if (job_named(r, o->name) >= 0) return job_bad(r, v, "two operators have this name");
    job_string(r, v, "op", o->op, sizeof o->op);
    job_string(r, v, "layer", o->layer, sizeof o->layer);
    type = o->op[0] ? (int)JOB_NON_PARAMETRIC : (int)JOB_PLACEHOLDER;
    o->type = (job_type)job_choice(r, v, "type", type, job_types, 5);
    o->dtype = (ddp_dtype)job_choice(r, v, "dtype", (int)DDP_F32, job_dtypes, 2);
    o->node = (int)job_number(r, v, "node", -1, 0, r->j->nodes - 1, 1);
    job_read_args(r, v, i);
    o->shape.dims = -1;
    job_read_shape(r, v, &o->shape);
    o->flops = job_number(r, v, "flops", 0, 0, DBL_MAX, 0);
    o->backward_flops = job_number(r, v, "backward_flops", 0, 0, DBL_MAX, 0);
    o->params = job_read_arrays(r, v, "parameters", o->param, DDP_OP_PARAMS);
    o->buffers = job_read_arrays(r, v, "buffers", o->buffer, DDP_OP_BUFFERS);
    job_read_rule(r, v, &o->rule);
    if (o->type == JOB_PLACEHOLDER && (o->op[0] || o->arg_count || o->shape.dims < 0))
        return job_bad(r, v, "an input needs a shape, and has no op and no args");
    if (o->type != JOB_PLACEHOLDER && !o->op[0])
        return job_bad(r, v, "an operator needs \"op\", the name of its kernel");
    stbds_shput(r->named, o->name, i);
    return r->fault;
}

/* The text before the hash is fixed by the version and is not hashed. */
static void job_check_hash(job_reader *r, const ddp__json *root, const char *text, size_t n)
{
    const ddp__json *v = ddp__json_get(root, "hash");
    char is[17] = "";
    size_t at = 0;

    if (!v) return;
    if (v->kind == DDP__JSON_STRING && strlen(v->string) == 16) {
        while (at + 18 < n && memcmp(text + at, v->string, 16)) at++;
        if (at + 18 < n)
            snprintf(is, sizeof is, "%016llx",
                     (unsigned long long)ddp__hash(DDP__HASH_START, text + at + 17, n - at - 17));
        if (!strcmp(is, v->string)) return;
    }
    job_bad(r, v,
            "the description does not match its hash: it was changed or damaged (remove the hash from a "
            "description that you edit)");
}

static ddp_status job_read_all(job_reader *r, const ddp__json *root, const char *text, size_t n)
{
    const ddp__json *v = ddp__json_get(root, "dreamddp_job"), *list;
    job *j = r->j;
    char schedule[16] = "", wire[64] = "";
    int i = 0;

    if (!v || v->kind != DDP__JSON_NUMBER)
        return ddp__fail(r->err, DDP_FORMAT,
                         "%s: no job description: the member \"dreamddp_job\", its version, is missing",
                         r->name);
    if (v->number != (double)JOB_VERSION)
        return ddp__fail(r->err, DDP_FORMAT,
                         "%s: a job description of version %g, this program reads version %d: use the same "
                         "release for the broker and all nodes",
                         r->name, v->number, JOB_VERSION);
    job_check_hash(r, root, text, n);
    j->steps = (long)job_number(r, root, "steps", 1, 1, 1e12, 1);
    j->micro_batches = (int)job_number(r, root, "micro_batches", 1, 1, 1e6, 1);
    j->seed = (uint64_t)job_number(r, root, "seed", 0, 0, 9007199254740992.0, 1);
    j->nodes = (int)job_number(r, root, "nodes", 0, 0, 1024, 1);
    j->node = (int)job_number(r, root, "node", -1, -1, j->nodes - 1, 1);
    job_string(r, root, "pipeline", schedule, sizeof schedule);
    job_string(r, root, "edge_wire", wire, sizeof wire);
    job_read_rule(r, root, &j->rule);
    if (r->fault) return r->fault;
    if (wire[0]) DDP__TRY(job_wire(j, wire, r->err));
    if (schedule[0]) DDP__TRY(ddp_pipeline_named(schedule, &j->schedule, r->err));
    DDP__TRY(ddp__json_need(r->name, root, "operators", DDP__JSON_ARRAY, &list, r->err));
    if (!list->count) return job_bad(r, list, "a job needs operators");
    j->op = (job_op *)calloc((size_t)list->count, sizeof *j->op);
    if (!j->op)
        return ddp__fail(r->err, DDP_MEMORY, "%s: out of memory for %ld operators", r->name, list->count);
    j->ops = (int)list->count;
    for (v = list->first; v; v = v->next) DDP__TRY(job_read_op(r, v, i++));
    DDP__TRY(ddp__json_need(r->name, root, "loss", DDP__JSON_STRING, &v, r->err));
    j->loss = job_find(r, v);
    return r->fault;
}

/* Reads a job from n bytes of JSON. name appears in errors, which state the position, or the operator and the
 * value. On an error *out is unchanged. */
static ddp_status job_read(const char *name, const char *text, size_t n, job *out, ddp_error *err)
{
    job j;
    job_reader r = {name, &j, err, DDP_OK, NULL};
    ddp__json *root;
    ddp_status s;

    memset(&j, 0, sizeof j);
    if (!name || !text || !out)
        return ddp__fail(err, DDP_ARG, "job_read: a name, a text and a job are needed");
    root = ddp__json_parse(name, text, n, err);
    if (!root) return err ? err->code : DDP_FORMAT;
    s = job_read_all(&r, root, text, n);
    ddp__json_free(root);
    stbds_shfree(r.named);
    if (s == DDP_OK)
        *out = j;
    else
        job_free(&j);
    return s;
}

#endif /* EXAMPLES_BROKER_JOB_JSON_H */
