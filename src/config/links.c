/* Creates the emulated links from the configuration: one text for all links or a topology file, and the
 * script. */
#include "config/settings.h"
#include "profile/network.h"

/* Returns the length of the path if the network is a file, else 0. The path may be followed by a variant
 * (":as_in_code") and the devices ("@0,16,32"). */
static size_t ddp__net_path(const char *net, size_t *variant)
{
    const char *devices = strrchr(net, '@');
    const size_t n = devices ? (size_t)(devices - net) : strlen(net);

    *variant = 0;
    for (size_t i = n; i > 5; i--) {
        if (i < n && net[i] != ':') continue;
        if (memcmp(net + i - 5, ".json", 5) && (i <= 8 || memcmp(net + i - 8, ".json.gz", 8))) continue;
        if (i < n) *variant = n - i - 1;
        return i;
    }
    return memchr(net, '/', n) ? n : 0;
}

/* Finds the device of each worker: the list after "@", or the first devices. */
static ddp_status ddp__net_devices(const ddp_config *c, const char *list, int devices, int *device,
                                   ddp_error *err)
{
    int r;

    for (r = 0; r < c->world; r++) device[r] = r;
    if (!*list) {
        if (c->world <= devices) return DDP_OK;
        return ddp__fail(
            err, DDP_ARG,
            "network '%.200s' has %d devices for %d workers: start at most %d workers, or add devices",
            c->net, devices, c->world, devices);
    }
    for (r = 0; *list; r++) {
        const size_t n = strcspn(++list, ",");
        const long v = n > 0 && n < 10 && strspn(list, "0123456789") == n ? atol(list) : -1;
        if (v < 0 || v >= devices)
            return ddp__fail(err, DDP_ARG, "network '%.200s': '%.*s' is not one of its devices, 0 to %d",
                             c->net, n > 40 ? 40 : (int)n, list, devices - 1);
        if (r < c->world) device[r] = (int)v;
        list += n;
    }
    if (r != c->world)
        return ddp__fail(err, DDP_ARG,
                         "network '%.200s' lists %d devices for %d workers: list one device per worker",
                         c->net, r, c->world);
    return DDP_OK;
}

static double ddp__least_rate(double a, double b) { return a > 0 && (!(b > 0) || a < b) ? a : b; }

/* Extracts the part of the network between the workers' devices, for this rank. */
static void ddp__links_cut(const ddp_network *n, const int *device, const ddp_config *c, ddp__links *l)
{
    size_t N = (size_t)n->devices;
    double pair = 0, host = 0;

    l->by_pair = 1;
    l->own.one_at_a_time = n->one_at_a_time;
    l->own.rate = n->host_rate ? n->host_rate[device[c->rank]] : 0;
    for (int a = 0; a < c->world; a++) {
        const double own = n->host_rate ? n->host_rate[device[a]] : 0;
        host = ddp__least_rate(host, own);
        for (int b = 0; b < c->world; b++) {
            size_t at = (size_t)device[a] * N + (size_t)device[b];
            double delay = n->delay_s[at], jitter = n->jitter_s ? n->jitter_s[at] : 0, flight;
            ddp__path *p = &l->path[a == c->rank ? b : a];
            if (a == b) continue;
            /* a file cannot describe a link between two workers on one device */
            pair = ddp__least_rate(pair, n->rate[at]);
            if (delay + jitter > l->farthest) l->farthest = delay + jitter;
            if (delay + jitter / 2 > l->plan_delay_s) l->plan_delay_s = delay + jitter / 2;
            if (a == c->rank) p->rate = n->rate[at];
            if (b != c->rank) continue;
            p->delay_s = delay;
            p->jitter_s = jitter;
            p->rng = ddp__jitter_rng(c->seed, a, b);
            flight = ddp__least_rate(n->rate[at], ddp__least_rate(own, l->own.rate)) * (delay + jitter);
            if (flight > l->flight) l->flight = flight;
        }
    }
    l->slowest = ddp__least_rate(pair, host);
    l->plan_rate = ddp__least_rate(n->one_at_a_time ? pair : pair * (c->world - 1), host);
}

/* Checks that each worker has its own device, and that times and rates can be emulated. */
static ddp_status ddp__links_check(const ddp_network *n, const int *device, const ddp_config *c,
                                   ddp_error *err)
{
    for (int a = 0; a < c->world; a++) {
        const double host = n->host_rate ? n->host_rate[device[a]] : 0;
        if (!ddp__netspec_fits(host, 0))
            return ddp__fail(err, DDP_ARG,
                             "network '%.200s': worker %d has host_gbps %g; use 8 bit/s to a million gbit/s",
                             c->net, a, host * 8e-9);
        for (int b = 0; b < c->world; b++) {
            const size_t at = (size_t)device[a] * (size_t)n->devices + (size_t)device[b];
            const double delay = n->delay_s[at], jitter = n->jitter_s ? n->jitter_s[at] : 0;
            if (b < a && device[a] == device[b])
                return ddp__fail(err, DDP_ARG,
                                 "network '%.200s': device %d is used by workers %d and %d; use a different "
                                 "device for each",
                                 c->net, device[a], b, a);
            if (a != b && !(ddp__netspec_fits(n->rate[at], delay) && ddp__netspec_fits(0, jitter)))
                return ddp__fail(err, DDP_ARG,
                                 "network '%.200s': the path from worker %d to worker %d has %g gbit/s, %g s "
                                 "and %g s of jitter: use 8 bit/s to a million gbit/s, and at most an hour",
                                 c->net, a, b, n->rate[at] * 8e-9, delay, jitter);
        }
    }
    return DDP_OK;
}

static ddp_status ddp__links_events(const char *path, int world, ddp__incidents *s, ddp_error *err)
{
    ddp__json *root = ddp__json_read(path, err);
    const ddp__json *events, *v;
    ddp_status status = DDP_OK;

    if (!root) return err->code;
    events = ddp__json_get(root, "events");
    if (events && events->kind != DDP__JSON_ARRAY)
        status = ddp__fail(err, DDP_FORMAT, "%s, line %d: \"events\" must be a list of strings", path,
                           events->line);
    for (v = events ? events->first : NULL; v && status == DDP_OK; v = v->next)
        status = v->kind == DDP__JSON_STRING
                     ? ddp__script_line(path, v->line, v->string, strlen(v->string), world, s, err)
                     : ddp__fail(err, DDP_FORMAT, "%s, line %d: \"events\" must contain only strings", path,
                                 v->line);
    ddp__json_free(root);
    return status;
}

static ddp_status ddp__links_file(const ddp_config *c, size_t path_size, size_t variant, ddp__links *l,
                                  ddp__incidents *s, ddp_error *err)
{
    ddp_network n = DDP__ZEROS;
    int *device = (int *)ddp__calloc((size_t)c->world, sizeof *device);
    char *path = ddp__strdup(c->net);
    const char *list = c->net + path_size + (variant ? variant + 1 : 0);
    ddp_status status;

    l->path = (ddp__path *)ddp__calloc((size_t)c->world, sizeof *l->path);
    if (!device || !path || !l->path) {
        status = ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d workers", c->world);
    } else {
        path[path_size] = path[path_size + (variant ? variant + 1 : 0)] = 0;
        status = ddp_network_read(path, variant ? path + path_size + 1 : NULL, &n, err);
    }
    if (status == DDP_OK) status = ddp__net_devices(c, list, n.devices, device, err);
    if (status == DDP_OK) status = ddp__links_check(&n, device, c, err);
    if (status == DDP_OK) ddp__links_cut(&n, device, c, l);
    if (status == DDP_OK) status = ddp__links_events(path, c->world, s, err);
    ddp_network_free(&n);
    DDP_FREE(path);
    DDP_FREE(device);
    return status;
}

static ddp_status ddp__links_allowed(const ddp_config *c, const ddp__incidents *s, ddp_error *err)
{
    for (int k = 0; k < ddp__count(s->list); k++)
        if (s->list[k].kind == DDP__KILL && c->transport == DDP_THREADS && !ddp__time()) /* a simulated worker
                                                                                          * can die */
            return ddp__fail(err, DDP_ARG,
                             "the script kills worker %d at t=%g, but on the threads transport all "
                             "workers are one process: use tcp",
                             s->list[k].a, s->list[k].at);
    return DDP_OK;
}

ddp_status ddp__links_open(const ddp_config *given, int link, ddp__links *out, ddp_error *err)
{
    ddp_config second = *given;
    const ddp_config *c = link ? &second : given;
    ddp__netspec spec = DDP__ZEROS;
    ddp__incidents s = DDP__ZEROS;
    ddp__links l = DDP__ZEROS;
    ddp_status status = DDP_OK;
    size_t variant = 0, path;

    second.net = given->network.net2;
    second.network.net_script = NULL;
    second.seed++;
    path = c->net ? ddp__net_path(c->net, &variant) : 0;
    memset(out, 0, sizeof *out);
    if (!c->net && !c->network.net_script) return DDP_OK;
    if (path) {
        status = ddp__links_file(c, path, variant, &l, &s, err);
    } else {
        if (c->net) DDP__TRY(ddp__netspec_parse(c->net, &spec, err));
        status = ddp__links_alike(&spec, c->rank, c->world, c->seed, &l, err);
    }
    if (status == DDP_OK && c->network.net_script)
        status = ddp__script_read(c->network.net_script, c->world, &s, err);
    if (status == DDP_OK) status = ddp__links_allowed(c, &s, err);
    if (status == DDP_OK) status = ddp__script_apply(&s, c->rank, &l, err);
    ddp__incidents_free(&s);
    if (status == DDP_OK)
        *out = l;
    else
        ddp__links_free(&l);
    return status;
}
