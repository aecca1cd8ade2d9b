#include "base/platform.h"
#include "base/text.h"
#include "emulate/links.h"
#include "emulate/netspec.h"

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

int ddp__netspec_fits(double rate, double delay_s)
{
    return (rate == 0 || (rate >= 1 && rate <= 1.25e14)) && delay_s >= 0 && delay_s <= 3600;
}

int ddp__netspec_rate(const char *text, size_t n, double *bytes_per_s)
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
                     "network '%.100s': the %s '%.*s' is not a number up to an hour with us, ms "
                     "or s; for example 100mbit,20ms",
                     spec, what, n > 60 ? 60 : (int)n, text);
}

ddp_status ddp__netspec_parse(const char *spec, ddp__netspec *out, ddp_error *err)
{
    ddp__netspec s;
    size_t n = strcspn(spec, ",");
    const char *rest = spec + n;

    memset(&s, 0, sizeof s);
    if (!ddp__netspec_rate(spec, n, &s.rate))
        return ddp__fail(err, DDP_ARG,
                         "network '%.100s': the rate '%.*s' is not a number from 8 bit/s to a million gbit/s "
                         "with bit, kbit, mbit or gbit; for example 100mbit,20ms, or none",
                         spec, n > 60 ? 60 : (int)n, spec);
    if (*rest) {
        n = strcspn(++rest, ",");
        DDP__TRY(ddp__netspec_time(spec, "delay", rest, n, &s.delay_s, err));
        rest += n;
    }
    if (*rest) {
        rest++;
        DDP__TRY(ddp__netspec_time(spec, "jitter", rest, strlen(rest), &s.jitter_s, err));
    }
    *out = s;
    return DDP_OK;
}

ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err)
{
    ddp__netspec s;
    size_t n;

    if (!spec || !bytes_per_s || !delay_s)
        return ddp__fail(err, DDP_ARG, "ddp_net_parse: a NULL argument");
    n = strlen(spec);
    if (strchr(spec, '/') || (n > 5 && !strcmp(spec + n - 5, ".json")))
        return ddp__fail(err, DDP_ARG,
                         "network '%.100s' looks like a file: one worker's link is given as "
                         "RATE,DELAY, for example 100mbit,20ms",
                         spec);
    DDP__TRY(ddp__netspec_parse(spec, &s, err));
    *bytes_per_s = s.rate;
    *delay_s = s.delay_s + s.jitter_s / 2;
    return DDP_OK;
}
