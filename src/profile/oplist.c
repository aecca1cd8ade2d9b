/* Operator lists: construction, checks, and reading and writing JSON. */
#include "io/json.h"
#include "profile/profile.h"

ddp_status ddp_oplist_new(int count, ddp_oplist *out, ddp_error *err)
{
    ddp_oplist_entry *op;
    if (count < 1)
        return ddp__fail(err, DDP_ARG, "a list of %d operators is impossible; it needs at least 1", count);
    op = (ddp_oplist_entry *)ddp__calloc((size_t)count, sizeof *op);
    if (!op) return ddp__fail(err, DDP_MEMORY, "no memory for a list of %d operators", count);
    out->count = count;
    out->op = op;
    return DDP_OK;
}

void ddp_oplist_free(ddp_oplist *list)
{
    if (!list) return;
    for (int i = 0; list->op && i < list->count; i++) {
        DDP_FREE(list->op[i].name);
        DDP_FREE(list->op[i].args);
    }
    DDP_FREE(list->op);
    memset(list, 0, sizeof *list);
}

static const char *ddp__oplist_name(const ddp_oplist_entry *e) { return e->name ? e->name : "unnamed"; }

static ddp_status ddp__oplist_args_check(int i, const char *name, const int *args, int arg_count,
                                         ddp_error *err)
{
    if (arg_count < 0 || (arg_count > 0 && !args))
        return ddp__fail(err, DDP_ARG, "operator %d (%s): %d args%s", i, name, arg_count,
                         arg_count < 0 ? " are impossible" : " need an array of indexes");
    for (int k = 0; k < arg_count; k++)
        if (args[k] < 0 || args[k] >= i)
            return ddp__fail(err, DDP_ARG,
                             "operator %d (%s): argument %d is operator %d, which does not precede it; "
                             "list the operators in topological order",
                             i, name, k, args[k]);
    return DDP_OK;
}

ddp_status ddp_oplist_set(ddp_oplist *list, int i, const char *name, const int *args, int arg_count,
                          double flops, double output_bytes, double param_bytes, ddp_error *err)
{
    ddp_oplist_entry e = DDP__ZEROS;
    if (!list || i < 0 || i >= list->count)
        return ddp__fail(err, DDP_ARG, "operator %d is not in the list, which has %d", i,
                         list ? list->count : 0);
    DDP__TRY(ddp__oplist_args_check(i, name ? name : "unnamed", args, arg_count, err));
    e.arg_count = arg_count;
    e.flops = flops;
    e.output_bytes = output_bytes;
    e.param_bytes = param_bytes;
    e.module = list->op[i].module;
    e.name = name ? ddp__strdup(name) : NULL;
    e.args = (int *)ddp__calloc((size_t)arg_count, sizeof *e.args);
    if (!e.args || (name && !e.name)) {
        DDP_FREE(e.name);
        DDP_FREE(e.args);
        return ddp__fail(err, DDP_MEMORY, "no memory for operator %d", i);
    }
    if (arg_count) memcpy(e.args, args, (size_t)arg_count * sizeof *args);
    DDP_FREE(list->op[i].name);
    DDP_FREE(list->op[i].args);
    list->op[i] = e;
    return DDP_OK;
}

static const char *const ddp__oplist_costs[3] = {"flops", "output_bytes", "param_bytes"};

ddp_status ddp_oplist_check(const ddp_oplist *list, ddp_error *err)
{
    double sum[3] = {0, 0, 0};
    if (!list || list->count < 1 || !list->op)
        return ddp__fail(err, DDP_ARG, "the operator list is empty; it needs at least 1 operator");
    for (int i = 0; i < list->count; i++) {
        const ddp_oplist_entry *e = &list->op[i];
        DDP__TRY(ddp__oplist_args_check(i, ddp__oplist_name(e), e->args, e->arg_count, err));
        const double value[3] = {e->flops, e->output_bytes, e->param_bytes};
        for (int k = 0; k < 3; k++) {
            DDP__TRY(ddp__check_finite(value[k], 0, err, "operator %d (%s): %s is %g", i, ddp__oplist_name(e),
                                       ddp__oplist_costs[k], value[k]));
            sum[k] += value[k];
        }
    }
    for (int k = 0; k < 3; k++)
        if (!(sum[k] <= 1e200))
            return ddp__fail(err, DDP_NUMERIC,
                             "%s of all operators add up to %g; no plan can be computed beyond 1e200",
                             ddp__oplist_costs[k], sum[k]);
    return DDP_OK;
}

/* ---- the graph file ---- */

/* Names sorted by strcmp, with their index in the file, for a binary search of arguments. */
typedef struct ddp__oplist_key {
    const char *name;
    int i;
} ddp__oplist_key;

static int ddp__oplist_by_name(const void *a, const void *b)
{
    return strcmp(((const ddp__oplist_key *)a)->name, ((const ddp__oplist_key *)b)->name);
}

/* Sorts the names and checks that no two operators have the same one. */
static ddp_status ddp__oplist_sort(const char *path, ddp__oplist_key *key, int n, ddp_status code,
                                   ddp_error *err)
{
    qsort(key, (size_t)n, sizeof *key, ddp__oplist_by_name);
    for (int i = 1; i < n; i++) {
        int one = key[i - 1].i, two = key[i].i;
        if (!strcmp(key[i - 1].name, key[i].name))
            return ddp__fail(err, code, "%s: operators %d and %d are both named '%.80s'; names must differ",
                             path, one < two ? one : two, one < two ? two : one, key[i].name);
    }
    return DDP_OK;
}

static ddp_status ddp__oplist_number(const char *path, const ddp__json *v, const char *key, int needed,
                                     double *out, ddp_error *err)
{
    const ddp__json *number = ddp__json_get(v, key);
    *out = 0;
    if (!number && !needed) return DDP_OK;
    DDP__TRY(ddp__json_need(path, v, key, DDP__JSON_NUMBER, &number, err));
    if (number->number < 0)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: %s is %g; it must be at least 0", path,
                         number->line, number->column, key, number->number);
    *out = number->number;
    return DDP_OK;
}

/* Looks up the arguments of operator i by name and writes them to args (with room for all of them). */
static ddp_status ddp__oplist_args(const char *path, const ddp__json *list, int i, const ddp__oplist_key *key,
                                   int n, int *args, ddp_error *err)
{
    const ddp__oplist_key *found;
    for (const ddp__json *v = list->first; v; v = v->next) {
        const ddp__oplist_key wanted = {v->string, 0};
        if (v->kind != DDP__JSON_STRING)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d, column %d: args holds the names of operators in quotes", path,
                             v->line, v->column);
        found = (const ddp__oplist_key *)bsearch(&wanted, key, (size_t)n, sizeof *key, ddp__oplist_by_name);
        if (!found || found->i >= i)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: argument '%.80s' %s", path, v->line,
                             v->column, v->string,
                             found ? "does not precede its user; list the operators in topological order"
                                   : "names no operator of the list");
        *args++ = found->i;
    }
    return DDP_OK;
}

/* Sets the module number of operator i: the number of its predecessor if they have the same module name. */
static ddp_status ddp__oplist_module(const char *path, const ddp__json *v, int i, const char **before,
                                     ddp_oplist *list, ddp_error *err)
{
    const ddp__json *module = ddp__json_get(v, "module");
    if (module) {
        DDP__TRY(ddp__json_need(path, v, "module", DDP__JSON_STRING, &module, err));
        list->op[i].module = *before && !strcmp(*before, module->string) ? list->op[i - 1].module : i + 1;
    }
    *before = module ? module->string : NULL;
    return DDP_OK;
}

static ddp_status ddp__oplist_fill(const char *path, const ddp__json *root, ddp__oplist_key *key,
                                   ddp_oplist *list, ddp_error *err)
{
    const ddp__json *v, *name, *given;
    const char *before = NULL;
    double cost[3];
    int i, *args;
    ddp_status status;

    for (v = root->first, i = 0; v; v = v->next, i++) {
        DDP__TRY(ddp__json_need(path, v, "name", DDP__JSON_STRING, &name, err));
        key[i].name = name->string;
        key[i].i = i;
    }
    DDP__TRY(ddp__oplist_sort(path, key, list->count, DDP_FORMAT, err));
    for (v = root->first, i = 0; v; v = v->next, i++) {
        DDP__TRY(ddp__json_need(path, v, "name", DDP__JSON_STRING, &name, err));
        DDP__TRY(ddp__json_need(path, v, "args", DDP__JSON_ARRAY, &given, err));
        for (int k = 0; k < 3; k++)
            DDP__TRY(ddp__oplist_number(path, v, ddp__oplist_costs[k], k < 2, &cost[k], err));
        DDP__TRY(ddp__oplist_module(path, v, i, &before, list, err));
        args = (int *)ddp__calloc((size_t)given->count, sizeof *args);
        if (!args) return ddp__fail(err, DDP_MEMORY, "no memory to read %s", path);
        status = ddp__oplist_args(path, given, i, key, list->count, args, err);
        if (status == DDP_OK)
            status = ddp_oplist_set(list, i, name->string, args, (int)given->count, cost[0], cost[1], cost[2],
                                    err);
        DDP_FREE(args);
        if (status != DDP_OK) return status;
    }
    return DDP_OK;
}

ddp_status ddp_oplist_read(const char *path, ddp_oplist *out, ddp_error *err)
{
    ddp__json *root = ddp__json_read(path, err);
    ddp__oplist_key *key = NULL;
    ddp_oplist list = DDP__ZEROS;
    ddp_status status = DDP_OK;

    if (!root) return err ? err->code : DDP_FORMAT;
    if (root->kind != DDP__JSON_ARRAY || root->count < 1 || root->count > INT_MAX)
        status = ddp__fail(err, DDP_FORMAT,
                           "%s: a graph is a list of at least one operator, [{\"name\": \"a\", "
                           "\"args\": [], \"flops\": 1, \"output_bytes\": 4}]",
                           path);
    if (status == DDP_OK) status = ddp_oplist_new((int)root->count, &list, err);
    if (status == DDP_OK) {
        key = (ddp__oplist_key *)ddp__calloc((size_t)list.count, sizeof *key);
        status = key ? ddp__oplist_fill(path, root, key, &list, err)
                     : ddp__fail(err, DDP_MEMORY, "no memory to read %s", path);
    }
    if (status == DDP_OK) status = ddp_oplist_check(&list, err);
    DDP_FREE(key);
    ddp__json_free(root);
    if (status == DDP_OK)
        *out = list;
    else
        ddp_oplist_free(&list);
    return status;
}

/* ---- writing ---- */

static void ddp__oplist_put(ddp__text *t, const ddp_oplist *list, int i)
{
    const ddp_oplist_entry *e = &list->op[i];
    const double cost[3] = {e->flops, e->output_bytes, e->param_bytes};

    ddp__text_addf(t, "%s{\"name\": ", i ? ",\n " : "[");
    ddp__json_string(t, e->name);
    if (e->module) ddp__text_addf(t, ", \"module\": \"%d\"", e->module);
    ddp__text_addf(t, ", \"args\": [");
    for (int k = 0; k < e->arg_count; k++) {
        if (k) ddp__text_addf(t, ", ");
        ddp__json_string(t, list->op[e->args[k]].name);
    }
    ddp__text_addf(t, "]");
    for (int k = 0; k < 3; k++) {
        ddp__text_addf(t, ", \"%s\": ", ddp__oplist_costs[k]);
        ddp__json_number(t, cost[k]);
    }
    ddp__text_addf(t, "}");
}

ddp_status ddp_oplist_write(const ddp_oplist *list, const char *path, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    ddp__oplist_key *key;
    ddp_status status = DDP_OK;

    DDP__TRY(ddp_oplist_check(list, err));
    key = (ddp__oplist_key *)ddp__calloc((size_t)list->count, sizeof *key);
    if (!key) return ddp__fail(err, DDP_MEMORY, "no memory to write %s", path);
    for (int i = 0; status == DDP_OK && i < list->count; i++) {
        key[i].name = list->op[i].name;
        key[i].i = i;
        if (!key[i].name)
            status = ddp__fail(err, DDP_ARG, "%s: operator %d has no name, by which its users could give it",
                               path, i);
    }
    if (status == DDP_OK) status = ddp__oplist_sort(path, key, list->count, DDP_ARG, err);
    DDP_FREE(key);
    if (status != DDP_OK) return status;
    for (int i = 0; i < list->count; i++) ddp__oplist_put(&t, list, i);
    ddp__text_addf(&t, "]\n");
    return ddp__text_write(&t, path, err);
}
