#include "base/platform.h"
#include "base/text.h"
#include "net/netspec.h"

typedef struct ddp__rate_unit {
    const char *name;
    double value;
} ddp__rate_unit;

static const ddp__rate_unit ddp__rate_units[] = {
    {"bit", 1 / 8.0}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {NULL, 0}
};
static const ddp__rate_unit ddp__delay_units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};

/* A number of digits and at most one point, then a unit; 1 if text[0..n) is just that. */
static int ddp__quantity(const char *text, size_t n, const ddp__rate_unit *units, double *out)
{
    char number[40];
    size_t i = 0;
    double v;

    while (i < n && (isdigit((unsigned char)text[i]) || text[i] == '.')) i++;
    if (i == 0 || i >= sizeof number) return 0;
    memcpy(number, text, i);
    number[i] = 0;
    if (!ddp__parse_double(number, &v)) return 0;
    for (; units->name; units++) {
        if (strlen(units->name) != n - i || strncmp(units->name, text + i, n - i)) continue;
        *out = v * units->value;
        return 1;
    }
    return 0;
}

ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err)
{
    const char *comma, *late;
    double rate = 0, delay = 0;
    size_t n;

    if (!spec || !bytes_per_s || !delay_s)
        return ddp__fail(err, DDP_ARG, "ddp_net_parse: a NULL argument");
    comma = strchr(spec, ',');
    n = comma ? (size_t)(comma - spec) : strlen(spec);
    if (!(n == 1 && *spec == '0') && !(n == 4 && !strncmp(spec, "none", 4)) &&
        (!ddp__quantity(spec, n, ddp__rate_units, &rate) || rate < 1)) {
        if (strchr(spec, '/') || (n > 5 && !strncmp(spec + n - 5, ".json", 5)))
            return ddp__fail(err, DDP_ARG,
                             "network '%.100s' looks like a file: one worker's link is given as "
                             "RATE,DELAY, for example 100mbit,20ms",
                             spec);
        return ddp__fail(err, DDP_ARG,
                         "network '%.100s': the rate '%.*s' is not a number of at least 8 bit/s "
                         "with bit, kbit, mbit or gbit; for example 100mbit,20ms, or none",
                         spec, n > 60 ? 60 : (int)n, spec);
    }
    if (comma) {
        late = comma + 1;
        if (!ddp__quantity(late, strlen(late), ddp__delay_units, &delay) || delay > 3600)
            return ddp__fail(err, DDP_ARG,
                             "network '%.100s': the delay '%.60s' is not a number up to an hour "
                             "with us, ms or s; for example 100mbit,20ms",
                             spec, late);
    }
    *bytes_per_s = rate;
    *delay_s = delay;
    return DDP_OK;
}
