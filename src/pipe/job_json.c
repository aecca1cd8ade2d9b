/* The description of a job, versioned JSON: written for a node, and read with a sentence for all that can be wrong. */
#include "io/json.h"
#include "pipe/job.h"

/* As FusionLLM names operators in its Table 2. */
static const char *const ddp__job_types[] = {"placeholder", "variable", "parametric", "non-parametric", "loss"};
static const char *const ddp__job_inits[] = {"zero", "one", "normal", "uniform"};
static const char *const ddp__job_dtypes[] = {"f32", "i32"};

/* ---- writing ---- */

/* What stands before a value, and the value. */
static void ddp__job_put_text(ddp__text *t, const char *before, const char *value)
{
    ddp__text_addf(t, "%s", before);
    ddp__json_string(t, value);
}

static void ddp__job_put_number(ddp__text *t, const char *before, double value)
{
    ddp__text_addf(t, "%s", before);
    ddp__json_number(t, value);
}

static void ddp__job_shape(ddp__text *t, const ddp_shape *s)
{
    ddp__text_addf(t, ", \"shape\": [");
    for (int i = 0; i < s->dims; i++) ddp__text_addf(t, i ? ", %ld" : "%ld", s->dim[i]);
    ddp__text_addf(t, "]");
}

static void ddp__job_arrays(ddp__text *t, const char *key, const ddp_param *p, int n)
{
    if (n < 0) return;
    ddp__text_addf(t, ", \"%s\": [", key);
    for (int i = 0; i < n; i++) {
        ddp__text_addf(t, "%s{\"init\": \"%s\"", i ? ", " : "", ddp__job_inits[p[i].init]);
        ddp__job_put_number(t, ", \"scale\": ", (double)p[i].scale);
        ddp__job_shape(t, &p[i].shape);
        ddp__text_addf(t, "}");
    }
    ddp__text_addf(t, "]");
}

static void ddp__job_rule_text(ddp__text *t, const ddp_job_rule *r)
{
    ddp__job_put_text(t, ", \"optimizer\": {\"name\": ", r->name);
    ddp__job_put_number(t, ", \"lr\": ", r->lr);
    ddp__job_put_number(t, ", \"momentum\": ", r->momentum);
    ddp__job_put_number(t, ", \"weight_decay\": ", r->weight_decay);
    ddp__text_addf(t, "}");
}

/* As ddp_edge_wire_parse reads it. */
static void ddp__job_wire_text(ddp__text *t, const ddp_edge_wire *w)
{
    ddp__text_addf(t, ", \"edge_wire\": \"%s", ddp_edge_coding_name(w->coding));
    if (w->ratio > 0) ddp__job_put_number(t, ":", w->ratio);
    if (w->factor > 0) ddp__job_put_number(t, ":", w->factor);
    ddp__text_addf(t, "\"");
}

/* The names of who takes the output of operator i. */
static void ddp__job_users(ddp__text *t, const ddp_job *j, int i)
{
    int n = 0;

    for (int u = i + 1; u < j->ops; u++)
        for (int k = 0; k < j->op[u].arg_count; k++) {
            if (j->op[u].args[k] != i) continue;
            ddp__job_put_text(t, n++ ? ", " : "", j->op[u].name);
            break;
        }
}

/* A row of Table 2. */
static void ddp__job_op_text(ddp__text *t, const ddp_job *j, int i)
{
    const ddp_job_op *o = &j->op[i];
    int n = DDP_OP_ARGS;

    ddp__job_put_text(t, i ? ",\n  {\"name\": " : "\n  {\"name\": ", o->name);
    ddp__text_addf(t, ", \"type\": \"%s\", \"users\": [", ddp__job_types[o->type]);
    ddp__job_users(t, j, i);
    ddp__text_addf(t, "], \"args\": [");
    for (int k = 0; k < o->arg_count; k++) ddp__job_put_text(t, k ? ", " : "", j->op[o->args[k]].name);
    ddp__text_addf(t, "]");
    if (o->node >= 0) ddp__text_addf(t, ", \"node\": %d", o->node);
    if (o->type == DDP_JOB_PLACEHOLDER) {
        ddp__text_addf(t, ", \"dtype\": \"%s\"", ddp__job_dtypes[o->dtype]);
    } else {
        while (n && o->attribute[n - 1] == 0) n--;
        ddp__job_put_text(t, ", \"op\": ", o->op);
        ddp__job_put_text(t, ", \"layer\": ", o->layer);
        ddp__text_addf(t, ", \"attributes\": [");
        for (int k = 0; k < n; k++) ddp__job_put_number(t, k ? ", " : "", o->attribute[k]);
        if (o->tied >= 0) ddp__job_put_text(t, "], \"tied\": ", j->op[o->tied].name);
        ddp__job_put_number(t, o->tied >= 0 ? ", \"flops\": " : "], \"flops\": ", o->flops);
        ddp__job_put_number(t, ", \"backward_flops\": ", o->backward_flops);
        ddp__job_arrays(t, "parameters", o->param, o->params);
        ddp__job_arrays(t, "buffers", o->buffer, o->buffers);
        if (o->rule.name[0] || o->rule.lr > 0) ddp__job_rule_text(t, &o->rule);
    }
    if (o->shape.dims >= 0) ddp__job_shape(t, &o->shape);
    ddp__text_addf(t, "}");
}

static void ddp__job_message_text(ddp__text *t, const ddp_job *j, const ddp_op_data *m)
{
    const ddp_edge_wire *w = &m->compress_cfg;

    ddp__job_put_text(t, "{\"name\": ", j->op[m->op].name);
    ddp__text_addf(t, ", \"op_users\": [");
    ddp__job_users(t, j, m->op);
    ddp__job_put_text(t, "], \"actual_op_user\": ", j->op[m->user].name);
    ddp__text_addf(t, ", \"from\": %d, \"to\": %d, \"is_loss\": %s, \"require_grad\": %s, \"local_iter\": %ld, "
                   "\"micro_batch\": %d, \"compress_cfg\": {\"algorithm\": \"%s\"",
                   m->from, m->to, m->is_loss ? "true" : "false", m->require_grad ? "true" : "false", m->local_iter,
                   m->micro_batch, w->coding == DDP_EDGE_F32 ? "none" : ddp_edge_coding_name(w->coding));
    ddp__job_put_number(t, ", \"ratio\": ", w->ratio > 0 ? w->ratio : 1);
    if (w->coding == DDP_EDGE_ADATOPK) ddp__job_put_number(t, ", \"factor\": ", w->factor > 0 ? w->factor : 3);
    ddp__text_addf(t, "}}");
}

/* Table 3: what the node requires and sends, activations and gradients. */
static void ddp__job_messages_text(ddp__text *t, const ddp_job *j, int node)
{
    static const char *const lists[] = {"required_activations", "sent_activations", "required_gradients", "sent_gradients"};
    const int n = ddp_job_messages(j, node, NULL, 0);
    ddp_op_data *m = (ddp_op_data *)ddp__calloc((size_t)n, sizeof *m);

    if (!m) t->failed = 1;
    if (m) ddp_job_messages(j, node, m, n);
    for (int list = 0; m && list < 4; list++) {
        int written = 0;
        ddp__text_addf(t, "\"%s\": [", lists[list]);
        for (int i = 0; i < n; i++) {
            if (m[i].gradient != list / 2 || (m[i].from == node) != list % 2) continue;
            ddp__text_addf(t, "%s\n  ", written++ ? "," : "");
            ddp__job_message_text(t, j, &m[i]);
        }
        ddp__text_addf(t, "],\n");
    }
    DDP_FREE(m);
}

char *ddp_job_text(const ddp_job *j, int node)
{
    ddp__text body, all;

    if (!j || !j->ops) return NULL;
    memset(&body, 0, sizeof body);
    memset(&all, 0, sizeof all);
    ddp__text_addf(&body, ",\n\"steps\": %ld, \"micro_batches\": %d, \"seed\": %llu, \"pipeline\": \"%s\",\n\"nodes\": %d, "
                   "\"node\": %d", j->steps, j->micro_batches, (unsigned long long)j->seed, ddp_pipeline_name(j->schedule),
                   j->nodes, node);
    ddp__job_put_text(&body, ", \"loss\": ", j->op[j->loss].name);
    ddp__job_rule_text(&body, &j->rule);
    ddp__job_wire_text(&body, &j->edge);
    ddp__text_addf(&body, ",\n");
    if (node >= 0) ddp__job_messages_text(&body, j, node);
    ddp__text_addf(&body, "\"operators\": [");
    for (int i = 0; i < j->ops; i++) ddp__job_op_text(&body, j, i);
    ddp__text_addf(&body, "]}\n");
    ddp__text_addf(&all, "{\"dreamddp_job\": %d, \"hash\": \"%016llx\"", DDP_JOB_VERSION,
                   (unsigned long long)ddp__hash(DDP__HASH_START, body.data, body.size));
    ddp__text_add(&all, body.data, body.size);
    all.failed |= body.failed;
    ddp__text_free(&body);
    if (!all.failed) return all.data;
    ddp__text_free(&all);
    return NULL;
}

void ddp_job_text_free(char *text)
{
    if (text) DDP_FREE(text);
}

/* ---- reading: the first fault stands, and what is read behind it does not count ---- */

typedef struct ddp__job_reader {
    const char *name; /* of the text */
    ddp_job    *j;
    ddp_error  *err;
    ddp_status  fault;
} ddp__job_reader;

static ddp_status ddp__job_bad(ddp__job_reader *r, const ddp__json *at, const char *fmt, ...)
{
    char what[300];
    va_list args;

    if (r->fault) return r->fault;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return r->fault = ddp__fail(r->err, DDP_FORMAT, "%s, line %d, column %d: %s", r->name, at->line, at->column, what);
}

/* A member that may be missing: then `given`. */
static double ddp__job_number(ddp__job_reader *r, const ddp__json *o, const char *key, double given, double least,
                              double most, int whole)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return given;
    if (v->kind == DDP__JSON_NUMBER && v->number >= least && v->number <= most && (!whole || v->number == floor(v->number)))
        return v->number;
    ddp__job_bad(r, v, "\"%s\" must be a %snumber from %g to %g", key, whole ? "whole " : "", least, most);
    return given;
}

static int ddp__job_choice(ddp__job_reader *r, const ddp__json *o, const char *key, int given, const char *const *names,
                           int count)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return given;
    for (int i = 0; v->kind == DDP__JSON_STRING && i < count; i++)
        if (!strcmp(v->string, names[i])) return i;
    ddp__job_bad(r, v, "\"%s\" must be one of %s, %s ... %s", key, names[0], names[1], names[count - 1]);
    return given;
}

static void ddp__job_string(ddp__job_reader *r, const ddp__json *o, const char *key, char *out, size_t room)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (v && v->kind == DDP__JSON_STRING && strlen(v->string) < room) snprintf(out, room, "%s", v->string);
    else if (v) ddp__job_bad(r, v, "\"%s\" must be a text of at most %zu bytes", key, room - 1);
}

/* The first of at most `room` values of an array; NULL: there is none. */
static const ddp__json *ddp__job_list(ddp__job_reader *r, const ddp__json *o, const char *key, int room)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v || (v->kind == DDP__JSON_ARRAY && v->count <= room)) return v ? v->first : NULL;
    ddp__job_bad(r, v, "\"%s\" must be an array of at most %d values", key, room);
    return NULL;
}

static void ddp__job_read_shape(ddp__job_reader *r, const ddp__json *o, ddp_shape *out)
{
    double count = 1;

    if (ddp__json_get(o, "shape")) out->dims = 0;
    for (const ddp__json *v = ddp__job_list(r, o, "shape", 4); v && !r->fault; v = v->next) {
        if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1 && v->number <= 1e9) || v->number != floor(v->number))
            ddp__job_bad(r, v, "a dimension must be a whole number from 1 to 1e+09");
        else out->dim[out->dims++] = (long)v->number;
        count *= v->number;
    }
    if (count > 1e12) ddp__job_bad(r, o, "\"shape\" has more than 1e+12 elements");
}

/* How many; -1: the kernel says it. */
static int ddp__job_read_arrays(ddp__job_reader *r, const ddp__json *o, const char *key, ddp_param *out, int room)
{
    int n = 0;

    for (const ddp__json *v = ddp__job_list(r, o, key, room); v; v = v->next, n++) {
        out[n].name = "weight";
        ddp__job_read_shape(r, v, &out[n].shape);
        out[n].init = (ddp_init)ddp__job_choice(r, v, "init", (int)DDP_INIT_ZERO, ddp__job_inits, 4);
        out[n].scale = (float)ddp__job_number(r, v, "scale", 0, 0, 1e30, 0);
    }
    return ddp__json_get(o, key) ? n : -1;
}

static void ddp__job_read_rule(ddp__job_reader *r, const ddp__json *o, ddp_job_rule *out)
{
    const ddp__json *v = ddp__json_get(o, "optimizer");

    if (v && v->kind != DDP__JSON_OBJECT) ddp__job_bad(r, v, "\"optimizer\" must be an object with name and lr");
    ddp__job_string(r, v, "name", out->name, sizeof out->name);
    out->lr = ddp__job_number(r, v, "lr", 0, 0, 1e6, 0);
    out->momentum = ddp__job_number(r, v, "momentum", 0, 0, 1, 0);
    out->weight_decay = ddp__job_number(r, v, "weight_decay", 0, 0, 1e6, 0);
}

/* The operator of that name before `before`; -1: none. */
static int ddp__job_named(const ddp_job *j, const char *name, int before)
{
    while (--before >= 0 && strcmp(j->op[before].name, name)) {}
    return before;
}

static int ddp__job_find(ddp__job_reader *r, const ddp__json *v, int before)
{
    const int i = v->kind == DDP__JSON_STRING ? ddp__job_named(r->j, v->string, before) : -1;

    if (v->kind != DDP__JSON_STRING) ddp__job_bad(r, v, "the name of an operator is needed");
    else if (i < 0) ddp__job_bad(r, v, "no operator %.100s stands before its user", v->string);
    return i;
}

static void ddp__job_read_args(ddp__job_reader *r, const ddp__json *v, int i)
{
    ddp_job_op *o = &r->j->op[i];
    const ddp__json *at, *tied = ddp__json_get(v, "tied");
    int k = 0;

    for (at = ddp__job_list(r, v, "args", DDP_OP_INPUTS); at; at = at->next)
        o->args[o->arg_count++] = ddp__job_find(r, at, i);
    o->tied = tied ? ddp__job_find(r, tied, i) : -1;
    for (at = ddp__job_list(r, v, "attributes", DDP_OP_ARGS); at; at = at->next) {
        if (at->kind != DDP__JSON_NUMBER || !(fabs(at->number) <= 1e9))
            ddp__job_bad(r, at, "an attribute must be a number from -1e+09 to 1e+09");
        o->attribute[k++] = at->number;
    }
}

static ddp_status ddp__job_read_op(ddp__job_reader *r, const ddp__json *v, int i)
{
    ddp_job_op *o = &r->j->op[i];
    int type;

    if (v->kind != DDP__JSON_OBJECT) return ddp__job_bad(r, v, "an operator must be an object with name and op");
    ddp__job_string(r, v, "name", o->name, sizeof o->name);
    if (!o->name[0]) return ddp__job_bad(r, v, "an operator needs a name");
    if (ddp__job_named(r->j, o->name, i) >= 0) return ddp__job_bad(r, v, "two operators have this name");
    ddp__job_string(r, v, "op", o->op, sizeof o->op);
    ddp__job_string(r, v, "layer", o->layer, sizeof o->layer);
    type = o->op[0] ? (int)DDP_JOB_NON_PARAMETRIC : (int)DDP_JOB_PLACEHOLDER;
    o->type = (ddp_job_type)ddp__job_choice(r, v, "type", type, ddp__job_types, 5);
    o->dtype = (ddp_dtype)ddp__job_choice(r, v, "dtype", (int)DDP_F32, ddp__job_dtypes, 2);
    o->node = (int)ddp__job_number(r, v, "node", -1, 0, r->j->nodes - 1, 1);
    ddp__job_read_args(r, v, i);
    o->shape.dims = -1;
    ddp__job_read_shape(r, v, &o->shape);
    o->flops = ddp__job_number(r, v, "flops", 0, 0, DBL_MAX, 0);
    o->backward_flops = ddp__job_number(r, v, "backward_flops", 0, 0, DBL_MAX, 0);
    o->params = ddp__job_read_arrays(r, v, "parameters", o->param, DDP_OP_PARAMS);
    o->buffers = ddp__job_read_arrays(r, v, "buffers", o->buffer, DDP_OP_BUFFERS);
    ddp__job_read_rule(r, v, &o->rule);
    if (o->type == DDP_JOB_PLACEHOLDER && (o->op[0] || o->arg_count || o->shape.dims < 0))
        return ddp__job_bad(r, v, "an input needs a shape, and has no op and no args");
    if (o->type != DDP_JOB_PLACEHOLDER && !o->op[0])
        return ddp__job_bad(r, v, "an operator needs \"op\", the name of its kernel");
    return r->fault;
}

/* What stands before the hash is the version's, and needs none. */
static void ddp__job_check_hash(ddp__job_reader *r, const ddp__json *root, const char *text, size_t n)
{
    const ddp__json *v = ddp__json_get(root, "hash");
    char is[17] = "";
    size_t at = 0;

    if (!v) return;
    if (v->kind == DDP__JSON_STRING && strlen(v->string) == 16) {
        while (at + 18 < n && memcmp(text + at, v->string, 16)) at++;
        if (at + 18 < n)
            snprintf(is, sizeof is, "%016llx", (unsigned long long)ddp__hash(DDP__HASH_START, text + at + 17, n - at - 17));
        if (!strcmp(is, v->string)) return;
    }
    ddp__job_bad(r, v, "the description was changed or damaged on its way: its hash does not fit (a description that was "
                 "edited goes without one)");
}

static ddp_status ddp__job_read_all(ddp__job_reader *r, const ddp__json *root, const char *text, size_t n)
{
    const ddp__json *v = ddp__json_get(root, "dreamddp_job"), *list;
    ddp_job *j = r->j;
    char schedule[16] = "", wire[64] = "";
    int i = 0;

    if (!v || v->kind != DDP__JSON_NUMBER)
        return ddp__fail(r->err, DDP_FORMAT, "%s: no job description: the member \"dreamddp_job\", its version, is missing",
                         r->name);
    if (v->number != (double)DDP_JOB_VERSION)
        return ddp__fail(r->err, DDP_FORMAT, "%s: a job description of version %g, this program reads version %d: use the same "
                         "release for the broker and all nodes", r->name, v->number, DDP_JOB_VERSION);
    ddp__job_check_hash(r, root, text, n);
    j->steps = (long)ddp__job_number(r, root, "steps", 1, 1, 1e12, 1);
    j->micro_batches = (int)ddp__job_number(r, root, "micro_batches", 1, 1, 1e6, 1);
    j->seed = (uint64_t)ddp__job_number(r, root, "seed", 0, 0, 9007199254740992.0, 1);
    j->nodes = (int)ddp__job_number(r, root, "nodes", 0, 0, 1024, 1);
    j->node = (int)ddp__job_number(r, root, "node", -1, -1, j->nodes - 1, 1);
    ddp__job_string(r, root, "pipeline", schedule, sizeof schedule);
    ddp__job_string(r, root, "edge_wire", wire, sizeof wire);
    ddp__job_read_rule(r, root, &j->rule);
    if (r->fault) return r->fault;
    if (wire[0]) DDP__TRY(ddp_job_wire(j, wire, r->err));
    if (schedule[0]) DDP__TRY(ddp_pipeline_named(schedule, &j->schedule, r->err));
    DDP__TRY(ddp__json_need(r->name, root, "operators", DDP__JSON_ARRAY, &list, r->err));
    if (!list->count) return ddp__job_bad(r, list, "a job needs operators");
    j->op = (ddp_job_op *)ddp__calloc((size_t)list->count, sizeof *j->op);
    if (!j->op) return ddp__fail(r->err, DDP_MEMORY, "%s: out of memory for %ld operators", r->name, list->count);
    j->ops = (int)list->count;
    for (v = list->first; v; v = v->next) DDP__TRY(ddp__job_read_op(r, v, i++));
    DDP__TRY(ddp__json_need(r->name, root, "loss", DDP__JSON_STRING, &v, r->err));
    j->loss = ddp__job_find(r, v, j->ops);
    return r->fault;
}

ddp_status ddp_job_read(const char *name, const char *text, size_t n, ddp_job *out, ddp_error *err)
{
    ddp_job j;
    ddp__job_reader r = {name, &j, err, DDP_OK};
    ddp__json *root;
    ddp_status s;

    memset(&j, 0, sizeof j);
    if (!name || !text || !out) return ddp__fail(err, DDP_ARG, "ddp_job_read: a name, a text and a job are needed");
    root = ddp__json_parse(name, text, n, err);
    if (!root) return err ? err->code : DDP_FORMAT;
    s = ddp__job_read_all(&r, root, text, n);
    ddp__json_free(root);
    if (s == DDP_OK) *out = j;
    else ddp_job_free(&j);
    return s;
}
