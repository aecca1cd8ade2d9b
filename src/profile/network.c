/* Networks of devices: checks, random variation, and reading and writing JSON. */
#include "io/json.h"
#include "profile/network.h"

#define DDP__NETWORK_MOST 16384 /* most devices: two matrices of 2 GiB */

ddp_status ddp_network_new(int devices, ddp_network *out, ddp_error *err)
{
    ddp_network n = DDP__ZEROS;
    size_t cells;
    if (devices < 1 || devices > DDP__NETWORK_MOST)
        return ddp__fail(err, DDP_ARG, "a network of %d devices is impossible; it has 1 to %d", devices,
                         DDP__NETWORK_MOST);
    n.devices = devices;
    cells = (size_t)devices * (size_t)devices;
    n.delay_s = (double *)ddp__calloc(cells, sizeof(double));
    n.rate = (double *)ddp__calloc(cells, sizeof(double));
    if (!n.delay_s || !n.rate) {
        ddp_network_free(&n);
        return ddp__fail(err, DDP_MEMORY, "no memory for a network of %d devices", devices);
    }
    *out = n;
    return DDP_OK;
}

void ddp_network_free(ddp_network *n)
{
    if (!n) return;
    for (int g = 0; n->group_name && g < n->groups; g++) DDP_FREE(n->group_name[g]);
    DDP_FREE(n->group_name);
    DDP_FREE(n->group);
    DDP_FREE(n->jitter_s);
    DDP_FREE(n->host_rate);
    DDP_FREE(n->memory_bytes);
    DDP_FREE(n->speed);
    DDP_FREE(n->rate);
    DDP_FREE(n->delay_s);
    memset(n, 0, sizeof *n);
}

/* ---- checking ---- */

static ddp_status ddp__network_check_pair(const ddp_network *n, int i, int j, ddp_error *err)
{
    size_t at = (size_t)i * (size_t)n->devices + (size_t)j;
    DDP__TRY(ddp__check_finite(n->delay_s[at], 0, err, "the delay from device %d to device %d is %g s", i, j,
                               n->delay_s[at]));
    if (n->jitter_s)
        DDP__TRY(ddp__check_finite(n->jitter_s[at], 0, err, "the jitter from device %d to device %d is %g s",
                                   i, j, n->jitter_s[at]));
    if (!(ddp__finite(n->rate[at]) && n->rate[at] > 0))
        return ddp__fail(err, DDP_ARG,
                         "the link from device %d to device %d carries %g bytes/s; every pair must be "
                         "connected by a finite rate above 0",
                         i, j, n->rate[at]);
    return DDP_OK;
}

static ddp_status ddp__network_check_device(const ddp_network *n, int i, ddp_error *err)
{
    if (n->speed)
        DDP__TRY(
            ddp__check_finite(n->speed[i], 1, err, "the speed of device %d is %g FLOP/s", i, n->speed[i]));
    if (n->memory_bytes)
        DDP__TRY(ddp__check_finite(n->memory_bytes[i], 0, err, "the memory of device %d is %g bytes", i,
                                   n->memory_bytes[i]));
    if (n->host_rate)
        DDP__TRY(ddp__check_finite(n->host_rate[i], 1, err, "the access link of device %d carries %g bytes/s",
                                   i, n->host_rate[i]));
    if (n->group && (n->group[i] < 0 || n->group[i] >= n->groups))
        return ddp__fail(err, DDP_ARG, "device %d is in group %d; the groups are 0 to %d", i, n->group[i],
                         n->groups - 1);
    return DDP_OK;
}

ddp_status ddp_network_check(const ddp_network *n, ddp_error *err)
{
    if (!n || n->devices < 1)
        return ddp__fail(err, DDP_ARG, "the network has %d devices; it needs at least 1", n ? n->devices : 0);
    if (!n->delay_s || !n->rate)
        return ddp__fail(err, DDP_ARG, "the network has no %s; it is needed for every pair",
                         n->rate ? "delay_s" : "rate");
    if (n->pipelines < 0 || n->stages < 0)
        return ddp__fail(err, DDP_ARG,
                         "%d pipelines of %d stages are impossible; both are at least 1, or 0 where "
                         "unknown",
                         n->pipelines, n->stages);
    if (n->pipelines && n->stages && (double)n->pipelines * n->stages != (double)n->devices)
        return ddp__fail(err, DDP_ARG, "%d devices are not D_dp x D_pp = %d x %d = %.0f; change one of them",
                         n->devices, n->pipelines, n->stages, (double)n->pipelines * n->stages);
    DDP__TRY(ddp__check_finite(n->dp_bytes, 0, err, "the data messages are of %g bytes", n->dp_bytes));
    DDP__TRY(ddp__check_finite(n->pp_bytes, 0, err, "the pipeline's messages are of %g bytes", n->pp_bytes));
    for (int i = 0; i < n->devices; i++) {
        DDP__TRY(ddp__network_check_device(n, i, err));
        for (int j = 0; j < n->devices; j++)
            if (j != i) DDP__TRY(ddp__network_check_pair(n, i, j, err));
    }
    return DDP_OK;
}

ddp_status ddp_network_noise(ddp_network *n, uint64_t seed, double rate_sigma, double delay_sigma,
                             ddp_error *err)
{
    ddp_rng r = ddp_rng_seed(seed, 77);
    size_t N;
    if (!n || !n->rate || !n->delay_s)
        return ddp__fail(err, DDP_ARG, "ddp_network_noise: the network or one of its matrices is NULL");
    N = (size_t)n->devices;
    if (!(rate_sigma >= 0 && rate_sigma <= 4) || !(delay_sigma >= 0 && delay_sigma <= 4))
        return ddp__fail(err, DDP_ARG, "noise of sigma %g on rates and %g on delays; both are 0 to 4",
                         rate_sigma, delay_sigma);
    for (size_t i = 0; i < N; i++)
        for (size_t j = i + 1; j < N; j++) {
            double rate = exp(rate_sigma * ddp_rng_normal(&r));
            double delay = exp(delay_sigma * ddp_rng_normal(&r));
            n->rate[i * N + j] *= rate;
            n->rate[j * N + i] *= rate;
            n->delay_s[i * N + j] *= delay;
            n->delay_s[j * N + i] *= delay;
        }
    return DDP_OK;
}

/* ---- reading ---- */

typedef struct ddp__network_file {
    const char *path;
    const ddp__json *root, *variant; /* members of variant replace those of root */
    ddp_error *err;
} ddp__network_file;

static const ddp__json *ddp__network_get(const ddp__network_file *f, const char *key)
{
    const ddp__json *v = ddp__json_get(f->variant, key);
    return v ? v : ddp__json_get(f->root, key);
}

static ddp_status ddp__network_need(const ddp__network_file *f, const char *key, ddp__json_kind kind,
                                    const ddp__json **out)
{
    const ddp__json *from = ddp__json_get(f->variant, key) ? f->variant : f->root;
    return ddp__json_need(f->path, from, key, kind, out, f->err);
}

static ddp_status ddp__network_bad(const ddp__network_file *f, const ddp__json *at, const char *key,
                                   const char *what)
{
    return ddp__fail(f->err, DDP_FORMAT, "%s, line %d, column %d: \"%s\" %s", f->path, at->line, at->column,
                     key, what);
}

/* Reads an integer of at least 1. If the key is missing, *out is unchanged. */
static ddp_status ddp__network_count(const ddp__network_file *f, const char *key, int *out)
{
    const ddp__json *v = ddp__network_get(f, key);
    if (!v) return DDP_OK;
    if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1 && v->number <= 1e9) || v->number != floor(v->number))
        return ddp__network_bad(f, v, key, "must be a whole number of at least 1");
    *out = (int)v->number;
    return DDP_OK;
}

static ddp_status ddp__network_bytes(const ddp__network_file *f, const char *key, int needed, double *out)
{
    const ddp__json *v = ddp__network_get(f, key);
    if (!v && !needed) return DDP_OK;
    DDP__TRY(ddp__network_need(f, key, DDP__JSON_NUMBER, &v));
    if (!(v->number >= 0)) return ddp__network_bad(f, v, key, "must not be negative");
    *out = v->number;
    return DDP_OK;
}

/* Reads groups and devices_per_group, optional in a file with N x N matrices. */
static ddp_status ddp__network_groups(const ddp__network_file *f, ddp_network *n)
{
    const ddp__json *sizes = ddp__network_get(f, "devices_per_group"), *names, *v;
    double total = 0;
    int g = 0, i = 0, k;

    if (!sizes) return DDP_OK;
    DDP__TRY(ddp__network_need(f, "devices_per_group", DDP__JSON_ARRAY, &sizes));
    for (v = sizes->first; v; v = v->next) {
        if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1) || v->number != floor(v->number))
            return ddp__network_bad(f, v, "devices_per_group", "must hold whole numbers of at least 1");
        total += v->number;
    }
    if (!sizes->count || total > DDP__NETWORK_MOST)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d: \"devices_per_group\" adds up to %.0f devices; a network "
                         "has 1 to %d",
                         f->path, sizes->line, total, DDP__NETWORK_MOST);
    n->groups = (int)sizes->count;
    n->devices = (int)total;
    n->group = (int *)ddp__calloc((size_t)n->devices, sizeof(int));
    if (!n->group) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    for (v = sizes->first; v; v = v->next, g++)
        for (k = 0; k < (int)v->number; k++) n->group[i++] = g;

    names = ddp__network_get(f, "groups");
    if (!names) return DDP_OK;
    if (names->kind != DDP__JSON_ARRAY || names->count != sizes->count)
        return ddp__network_bad(f, names, "groups", "must name each group of \"devices_per_group\"");
    n->group_name = (char **)ddp__calloc((size_t)n->groups, sizeof(char *));
    for (v = names->first, g = 0; v && n->group_name; v = v->next, g++) {
        if (v->kind != DDP__JSON_STRING) return ddp__network_bad(f, v, "groups", "must hold names in quotes");
        n->group_name[g] = ddp__strdup(v->string);
        if (!n->group_name[g]) break;
    }
    if (!n->group_name || g < n->groups)
        return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    return DDP_OK;
}

/* The number of devices: N of the file, otherwise derived from the groups or the matrices. */
static ddp_status ddp__network_size(const ddp__network_file *f, ddp_network *n)
{
    const ddp__json *rates;
    int given = 0;
    DDP__TRY(ddp__network_need(f, "bandwidth_gbps", DDP__JSON_ARRAY, &rates));
    DDP__TRY(ddp__network_count(f, "N", &given));
    if (!n->devices) {
        if (!rates->count || rates->count > DDP__NETWORK_MOST)
            return ddp__network_bad(f, rates, "bandwidth_gbps", "must have 1 to 16384 rows");
        n->devices = (int)rates->count;
    }
    if (given && given != n->devices)
        return ddp__fail(f->err, DDP_ARG, "%s: N is %d, but the %s %d devices; make them agree", f->path,
                         given, n->group ? "groups have" : "matrices are of", n->devices);
    return DDP_OK;
}

/* Reads row i of a square matrix of `size` into row[size]. The diagonal of an N x N matrix may be any
 * number or null. */
static ddp_status ddp__network_row(const ddp__network_file *f, const ddp__json *line, const char *key, int i,
                                   int size, int skip_diagonal, double *row)
{
    const ddp__json *v;
    int j = 0;
    if (line->kind != DDP__JSON_ARRAY || line->count != size)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d, column %d: \"%s\" is not square: row %d has %ld numbers, not %d",
                         f->path, line->line, line->column, key, i,
                         line->kind == DDP__JSON_ARRAY ? line->count : 0, size);
    for (v = line->first; v; v = v->next, j++) {
        row[j] = 0;
        if (i == j && skip_diagonal) continue;
        if (v->kind != DDP__JSON_NUMBER) return ddp__network_bad(f, v, key, "must hold numbers");
        row[j] = v->number;
    }
    return DDP_OK;
}

/* Reads a matrix per group or per device, multiplied by scale, into out [N x N]. */
static ddp_status ddp__network_matrix(const ddp__network_file *f, const ddp_network *n, const char *key,
                                      double scale, double *out)
{
    const ddp__json *m, *line;
    double *row;
    size_t N = (size_t)n->devices, i, j;
    int size, per_group, r = 0;
    ddp_status status = DDP_OK;

    DDP__TRY(ddp__network_need(f, key, DDP__JSON_ARRAY, &m));
    per_group = n->group && m->count == n->groups;
    size = per_group ? n->groups : n->devices;
    if (m->count != size)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d, column %d: \"%s\" has %ld rows; it needs %d, one per %s", f->path,
                         m->line, m->column, key, m->count, n->group ? n->groups : size,
                         n->group ? "group" : "device");
    row = (double *)ddp__calloc((size_t)size, sizeof *row);
    if (!row) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    for (line = m->first; line && status == DDP_OK; line = line->next, r++) {
        status = ddp__network_row(f, line, key, r, size, !per_group || n->groups == n->devices, row);
        for (i = 0; status == DDP_OK && i < N; i++) {
            if ((per_group ? n->group[i] : (int)i) != r) continue;
            for (j = 0; j < N; j++)
                out[i * N + j] = i == j ? 0 : row[per_group ? (size_t)n->group[j] : j] * scale;
        }
    }
    DDP_FREE(row);
    return status;
}

/* Reads one number per device or per group, multiplied by scale. *out stays NULL if the key is missing. */
static ddp_status ddp__network_vector(const ddp__network_file *f, const ddp_network *n, const char *key,
                                      double scale, double **out)
{
    const ddp__json *list = ddp__network_get(f, key), *v;
    int per_group, k = 0, i;
    if (!list) return DDP_OK;
    DDP__TRY(ddp__network_need(f, key, DDP__JSON_ARRAY, &list));
    per_group = n->group && list->count == n->groups;
    if (!per_group && list->count != n->devices)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d, column %d: \"%s\" has %ld numbers; it needs one per device%s", f->path,
                         list->line, list->column, key, list->count, n->group ? " or per group" : "");
    *out = (double *)ddp__calloc((size_t)n->devices, sizeof(double));
    if (!*out) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    for (v = list->first; v; v = v->next, k++) {
        if (v->kind != DDP__JSON_NUMBER) return ddp__network_bad(f, v, key, "must hold numbers");
        for (i = 0; i < n->devices; i++)
            if ((per_group ? n->group[i] : i) == k) (*out)[i] = v->number * scale;
    }
    return DDP_OK;
}

static ddp_status ddp__network_fill(const ddp__network_file *f, ddp_network *n)
{
    const ddp__json *one;
    ddp_network whole;
    int meant;
    DDP__TRY(ddp__network_groups(f, n));
    DDP__TRY(ddp__network_size(f, n));
    DDP__TRY(ddp__network_count(f, "D_dp", &n->pipelines));
    DDP__TRY(ddp__network_count(f, "D_pp", &n->stages));
    meant = n->pipelines || n->stages; /* a file for placement: a missing size is an error, not zero */
    DDP__TRY(ddp__network_bytes(f, "c_dp_bytes", meant, &n->dp_bytes));
    DDP__TRY(ddp__network_bytes(f, "c_pp_bytes", meant, &n->pp_bytes));
    DDP__TRY(ddp_network_new(n->devices, &whole, f->err));
    n->delay_s = whole.delay_s;
    n->rate = whole.rate;
    DDP__TRY(ddp__network_matrix(f, n, "delay_ms", 1e-3, n->delay_s));
    DDP__TRY(ddp__network_matrix(f, n, "bandwidth_gbps", 1e9 / 8, n->rate));
    DDP__TRY(ddp__network_vector(f, n, "tflops", 1e12, &n->speed));
    DDP__TRY(ddp__network_vector(f, n, "memory_gb", 1e9, &n->memory_bytes));
    DDP__TRY(ddp__network_vector(f, n, "host_gbps", 1e9 / 8, &n->host_rate));
    if (ddp__network_get(f, "jitter_ms")) {
        n->jitter_s = (double *)ddp__calloc((size_t)n->devices * (size_t)n->devices, sizeof(double));
        if (!n->jitter_s) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
        DDP__TRY(ddp__network_matrix(f, n, "jitter_ms", 1e-3, n->jitter_s));
    }
    one = ddp__network_get(f, "one_at_a_time");
    if (one && one->kind != DDP__JSON_TRUE && one->kind != DDP__JSON_FALSE)
        return ddp__network_bad(f, one, "one_at_a_time", "must be true or false");
    n->one_at_a_time = one && one->kind == DDP__JSON_TRUE;
    return ddp_network_check(n, f->err);
}

/* Finds the object whose members replace members of the root. */
static ddp_status ddp__network_variant(ddp__network_file *f, const char *variant)
{
    const ddp__json *v;
    ddp__text known = DDP__ZEROS;
    ddp_status status;
    if (f->root->kind != DDP__JSON_OBJECT)
        return ddp__fail(f->err, DDP_FORMAT, "%s is not a JSON object; a network is { \"N\": ... }", f->path);
    if (!variant || !*variant) return DDP_OK;
    f->variant = ddp__json_get(f->root, variant);
    if (f->variant && f->variant->kind == DDP__JSON_OBJECT) return DDP_OK;
    for (v = f->root->first; v; v = v->next)
        if (v->kind == DDP__JSON_OBJECT) ddp__text_addf(&known, "%s%s", known.size ? ", " : "", v->key);
    status = ddp__fail(f->err, DDP_ARG, "%s has no variant '%.60s'; it has: %.200s", f->path, variant,
                       known.data ? known.data : "none");
    ddp__text_free(&known);
    return status;
}

ddp_status ddp_network_read(const char *path, const char *variant, ddp_network *out, ddp_error *err)
{
    ddp__network_file f = DDP__ZEROS;
    ddp__json *root;
    ddp_network n = DDP__ZEROS;
    ddp_error own;
    ddp_status status;

    if (!err) err = &own;
    root = ddp__json_read(path, err);
    if (!root) return err->code;
    f.path = path;
    f.root = root;
    f.err = err;
    status = ddp__network_variant(&f, variant);
    if (status == DDP_OK) status = ddp__network_fill(&f, &n);
    ddp__json_free(root);
    if (status == DDP_OK)
        *out = n;
    else
        ddp_network_free(&n);
    return status;
}

/* ---- writing ---- */

static void ddp__network_put(ddp__text *t, const char *key, const double *m, int size, double scale)
{
    ddp__text_addf(t, ",\n  \"%s\": [", key);
    for (int i = 0; i < size; i++) {
        ddp__text_addf(t, "%s\n    [", i ? "," : "");
        for (int j = 0; j < size; j++) {
            if (j) ddp__text_addf(t, ", ");
            ddp__json_number(t, i == j ? 0 : m[(size_t)i * (size_t)size + (size_t)j] * scale);
        }
        ddp__text_addf(t, "]");
    }
    ddp__text_addf(t, "\n  ]");
}

static void ddp__network_list(ddp__text *t, const char *key, const double *x, int size, double scale)
{
    for (int i = 0; x && i < size; i++) {
        if (i)
            ddp__text_addf(t, ", ");
        else
            ddp__text_addf(t, ",\n  \"%s\": [", key);
        ddp__json_number(t, x[i] * scale);
    }
    if (x) ddp__text_addf(t, "]");
}

ddp_status ddp_network_write(const ddp_network *n, const char *path, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    DDP__TRY(ddp_network_check(n, err));
    ddp__text_addf(&t, "{\n  \"N\": %d", n->devices);
    if (n->pipelines) ddp__text_addf(&t, ",\n  \"D_dp\": %d", n->pipelines);
    if (n->stages) ddp__text_addf(&t, ",\n  \"D_pp\": %d", n->stages);
    if (n->pipelines || n->stages || n->dp_bytes > 0 || n->pp_bytes > 0) {
        ddp__text_addf(&t, ",\n  \"c_dp_bytes\": ");
        ddp__json_number(&t, n->dp_bytes);
        ddp__text_addf(&t, ",\n  \"c_pp_bytes\": ");
        ddp__json_number(&t, n->pp_bytes);
    }
    ddp__network_list(&t, "tflops", n->speed, n->devices, 1e-12);
    ddp__network_list(&t, "memory_gb", n->memory_bytes, n->devices, 1e-9);
    ddp__network_put(&t, "delay_ms", n->delay_s, n->devices, 1e3);
    ddp__network_put(&t, "bandwidth_gbps", n->rate, n->devices, 8e-9);
    ddp__text_addf(&t, "\n}\n");
    return ddp__text_write(&t, path, err);
}
