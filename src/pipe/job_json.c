/* The description of a job, versioned JSON: written for a node, and read with a sentence for all that can be wrong. */
#include "io/json.h"
#include "pipe/job.h"

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

/* ---- reading ---- */

typedef struct ddp__job_reader {
    const char *name; /* of the text */
    ddp_job    *j;
    ddp_error  *err;
} ddp__job_reader;

static ddp_status ddp__job_bad(const ddp__job_reader *r, const ddp__json *at, const char *fmt, ...)
{
    char what[300];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return ddp__fail(r->err, DDP_FORMAT, "%s, line %d, column %d: %s", r->name, at->line, at->column, what);
}

/* A member that may be missing: then *out stays. */
static ddp_status ddp__job_number(const ddp__job_reader *r, const ddp__json *o, const char *key, double least, double most,
                                  int whole, double *out)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return DDP_OK;
    if (v->kind != DDP__JSON_NUMBER || !(v->number >= least && v->number <= most) || (whole && v->number != floor(v->number)))
        return ddp__job_bad(r, v, "\"%s\" must be a %snumber from %g to %g", key, whole ? "whole " : "", least, most);
    *out = v->number;
    return DDP_OK;
}

static ddp_status ddp__job_string(const ddp__job_reader *r, const ddp__json *o, const char *key, char *out, size_t room)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return DDP_OK;
    if (v->kind != DDP__JSON_STRING || strlen(v->string) >= room)
        return ddp__job_bad(r, v, "\"%s\" must be a text of at most %zu bytes", key, room - 1);
    snprintf(out, room, "%s", v->string);
    return DDP_OK;
}

static ddp_status ddp__job_choice(const ddp__job_reader *r, const ddp__json *o, const char *key, const char *const *names,
                                  int count, int *out)
{
    const ddp__json *v = ddp__json_get(o, key);

    if (!v) return DDP_OK;
    for (int i = 0; v->kind == DDP__JSON_STRING && i < count; i++)
        if (!strcmp(v->string, names[i])) return *out = i, DDP_OK;
    return ddp__job_bad(r, v, "\"%s\" must be one of %s, %s ... %s", key, names[0], names[1], names[count - 1]);
}

/* An array of at most `room` values; *out NULL where the member is missing. */
static ddp_status ddp__job_list(const ddp__job_reader *r, const ddp__json *o, const char *key, int room, const ddp__json **out)
{
    const ddp__json *v = *out = ddp__json_get(o, key);

    if (!v || (v->kind == DDP__JSON_ARRAY && v->count <= room)) return DDP_OK;
    return ddp__job_bad(r, v, "\"%s\" must be an array of at most %d values", key, room);
}

static ddp_status ddp__job_read_shape(const ddp__job_reader *r, const ddp__json *o, ddp_shape *out)
{
    const ddp__json *v;

    DDP__TRY(ddp__job_list(r, o, "shape", 4, &v));
    if (!v) return DDP_OK;
    out->dims = 0;
    for (v = v->first; v; v = v->next) {
        if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1 && v->number <= 1e9) || v->number != floor(v->number))
            return ddp__job_bad(r, v, "a dimension must be a whole number from 1 to 1e+09");
        out->dim[out->dims++] = (long)v->number;
    }
    return ddp_shape_count(out) <= 1000000000000 ? DDP_OK : ddp__job_bad(r, o, "\"shape\" has more than 1e+12 elements");
}

static ddp_status ddp__job_read_arrays(const ddp__job_reader *r, const ddp__json *o, const char *key, ddp_param *out, int room,
                                       int *count)
{
    const ddp__json *v;

    DDP__TRY(ddp__job_list(r, o, key, room, &v));
    *count = v ? 0 : -1;
    for (v = v ? v->first : NULL; v; v = v->next) {
        double scale = 0;
        int init = DDP_INIT_ZERO;
        DDP__TRY(ddp__job_read_shape(r, v, &out->shape));
        DDP__TRY(ddp__job_choice(r, v, "init", ddp__job_inits, 4, &init));
        DDP__TRY(ddp__job_number(r, v, "scale", 0, 1e30, 0, &scale));
        out->name = "weight";
        out->init = (ddp_init)init;
        out++->scale = (float)scale;
        ++*count;
    }
    return DDP_OK;
}

static ddp_status ddp__job_read_rule(const ddp__job_reader *r, const ddp__json *o, ddp_job_rule *out)
{
    const ddp__json *v = ddp__json_get(o, "optimizer");

    if (!v) return DDP_OK;
    if (v->kind != DDP__JSON_OBJECT) return ddp__job_bad(r, v, "\"optimizer\" must be an object with name and lr");
    DDP__TRY(ddp__job_string(r, v, "name", out->name, sizeof out->name));
    DDP__TRY(ddp__job_number(r, v, "lr", 0, 1e6, 0, &out->lr));
    DDP__TRY(ddp__job_number(r, v, "momentum", 0, 1, 0, &out->momentum));
    return ddp__job_number(r, v, "weight_decay", 0, 1e6, 0, &out->weight_decay);
}

/* The operator of that name before `before`. */
static ddp_status ddp__job_find(const ddp__job_reader *r, const ddp__json *v, int before, int *out)
{
    if (v->kind != DDP__JSON_STRING) return ddp__job_bad(r, v, "the name of an operator is needed");
    for (int i = 0; i < before; i++)
        if (!strcmp(r->j->op[i].name, v->string)) return *out = i, DDP_OK;
    return ddp__job_bad(r, v, "no operator %.100s stands before its user", v->string);
}

static ddp_status ddp__job_read_args(const ddp__job_reader *r, const ddp__json *v, int i)
{
    ddp_job_op *o = &r->j->op[i];
    const ddp__json *list, *tied = ddp__json_get(v, "tied");

    DDP__TRY(ddp__job_list(r, v, "args", DDP_OP_INPUTS, &list));
    for (list = list ? list->first : NULL; list; list = list->next)
        DDP__TRY(ddp__job_find(r, list, i, &o->args[o->arg_count++]));
    if (tied) DDP__TRY(ddp__job_find(r, tied, i, &o->tied));
    DDP__TRY(ddp__job_list(r, v, "attributes", DDP_OP_ARGS, &list));
    list = list ? list->first : NULL;
    for (int k = 0; list; list = list->next) {
        if (list->kind != DDP__JSON_NUMBER || !(fabs(list->number) <= 1e9))
            return ddp__job_bad(r, list, "an attribute must be a number from -1e+09 to 1e+09");
        o->attribute[k++] = list->number;
    }
    return DDP_OK;
}

static ddp_status ddp__job_read_op(const ddp__job_reader *r, const ddp__json *v, int i)
{
    ddp_job_op *o = &r->j->op[i];
    double node = -1;
    int type = -1, dtype = DDP_F32, same;

    if (v->kind != DDP__JSON_OBJECT) return ddp__job_bad(r, v, "an operator must be an object with name and op");
    o->tied = -1;
    o->shape.dims = -1;
    DDP__TRY(ddp__job_string(r, v, "name", o->name, sizeof o->name));
    if (!o->name[0]) return ddp__job_bad(r, v, "an operator needs a name");
    if (ddp__job_find(r, ddp__json_get(v, "name"), i, &same) == DDP_OK)
        return ddp__job_bad(r, v, "two operators have this name");
    DDP__TRY(ddp__job_string(r, v, "op", o->op, sizeof o->op));
    DDP__TRY(ddp__job_string(r, v, "layer", o->layer, sizeof o->layer));
    DDP__TRY(ddp__job_choice(r, v, "type", ddp__job_types, 5, &type));
    DDP__TRY(ddp__job_choice(r, v, "dtype", ddp__job_dtypes, 2, &dtype));
    DDP__TRY(ddp__job_number(r, v, "node", 0, (double)r->j->nodes - 1, 1, &node));
    o->type = type >= 0 ? (ddp_job_type)type : o->op[0] ? DDP_JOB_NON_PARAMETRIC : DDP_JOB_PLACEHOLDER;
    o->dtype = (ddp_dtype)dtype;
    o->node = (int)node;
    DDP__TRY(ddp__job_read_args(r, v, i));
    DDP__TRY(ddp__job_read_shape(r, v, &o->shape));
    DDP__TRY(ddp__job_number(r, v, "flops", 0, DBL_MAX, 0, &o->flops));
    DDP__TRY(ddp__job_number(r, v, "backward_flops", 0, DBL_MAX, 0, &o->backward_flops));
    DDP__TRY(ddp__job_read_arrays(r, v, "parameters", o->param, DDP_OP_PARAMS, &o->params));
    DDP__TRY(ddp__job_read_arrays(r, v, "buffers", o->buffer, DDP_OP_BUFFERS, &o->buffers));
    DDP__TRY(ddp__job_read_rule(r, v, &o->rule));
    if (o->type == DDP_JOB_PLACEHOLDER && (o->op[0] || o->arg_count || o->shape.dims < 0))
        return ddp__job_bad(r, v, "a placeholder needs a shape, and has no op and no args");
    if (o->type != DDP_JOB_PLACEHOLDER && !o->op[0]) return ddp__job_bad(r, v, "an operator needs \"op\", the name of its kernel");
    return DDP_OK;
}

/* What stands before the hash is the version's, and needs none. */
static ddp_status ddp__job_check_hash(const ddp__job_reader *r, const ddp__json *root, const char *text, size_t n)
{
    const ddp__json *v = ddp__json_get(root, "hash");
    char is[17];

    if (!v) return DDP_OK;
    for (size_t at = 0; v->kind == DDP__JSON_STRING && strlen(v->string) == 16 && at + 18 < n; at++) {
        if (memcmp(text + at, v->string, 16)) continue;
        snprintf(is, sizeof is, "%016llx", (unsigned long long)ddp__hash(DDP__HASH_START, text + at + 17, n - at - 17));
        if (!strcmp(is, v->string)) return DDP_OK;
        break;
    }
    return ddp__job_bad(r, v, "the description was changed or damaged on its way: its hash does not fit (a description that "
                        "was edited goes without one)");
}

static ddp_status ddp__job_read_all(ddp__job_reader *r, const ddp__json *root, const char *text, size_t n)
{
    const ddp__json *v = ddp__json_get(root, "dreamddp_job"), *list;
    double steps = 1, micro = 1, seed = 0, nodes = 0, node = -1;
    char schedule[16] = "", wire[64] = "";
    int i = 0;

    if (!v || v->kind != DDP__JSON_NUMBER)
        return ddp__fail(r->err, DDP_FORMAT, "%s: no job description: the member \"dreamddp_job\", its version, is missing",
                         r->name);
    if (v->number != (double)DDP_JOB_VERSION)
        return ddp__fail(r->err, DDP_FORMAT, "%s: a job description of version %g, this program reads version %d: use the same "
                         "release for the broker and all nodes", r->name, v->number, DDP_JOB_VERSION);
    DDP__TRY(ddp__job_check_hash(r, root, text, n));
    DDP__TRY(ddp__job_number(r, root, "steps", 1, 1e12, 1, &steps));
    DDP__TRY(ddp__job_number(r, root, "micro_batches", 1, 1e6, 1, &micro));
    DDP__TRY(ddp__job_number(r, root, "seed", 0, 9007199254740992.0, 1, &seed));
    DDP__TRY(ddp__job_number(r, root, "nodes", 0, 1024, 1, &nodes));
    DDP__TRY(ddp__job_number(r, root, "node", -1, nodes - 1, 1, &node));
    DDP__TRY(ddp__job_string(r, root, "pipeline", schedule, sizeof schedule));
    DDP__TRY(ddp__job_string(r, root, "edge_wire", wire, sizeof wire));
    DDP__TRY(ddp__job_read_rule(r, root, &r->j->rule));
    if (wire[0]) DDP__TRY(ddp_job_wire(r->j, wire, r->err));
    if (schedule[0]) DDP__TRY(ddp_pipeline_named(schedule, &r->j->schedule, r->err));
    r->j->steps = (long)steps, r->j->micro_batches = (int)micro, r->j->seed = (uint64_t)seed;
    r->j->nodes = (int)nodes, r->j->node = (int)node;
    DDP__TRY(ddp__json_need(r->name, root, "operators", DDP__JSON_ARRAY, &list, r->err));
    if (!list->count) return ddp__job_bad(r, list, "a job needs operators");
    r->j->op = (ddp_job_op *)ddp__calloc((size_t)list->count, sizeof *r->j->op);
    if (!r->j->op) return ddp__fail(r->err, DDP_MEMORY, "%s: out of memory for %ld operators", r->name, list->count);
    r->j->ops = (int)list->count;
    for (v = list->first; v; v = v->next) DDP__TRY(ddp__job_read_op(r, v, i++));
    DDP__TRY(ddp__json_need(r->name, root, "loss", DDP__JSON_STRING, &v, r->err));
    return ddp__job_find(r, v, r->j->ops, &r->j->loss);
}

ddp_status ddp_job_read(const char *name, const char *text, size_t n, ddp_job *out, ddp_error *err)
{
    ddp_job j;
    ddp__job_reader r = {name, &j, err};
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
