/* One row of the table of settings: reading, checking and writing a field of ddp_config. */
#include "config/knob.h"
#include "plan/names.h"

/* Converts a name to its value. The name of the default has its own value if it has one. */
int ddp__chosen(const char *const *names, const char *name, void *out)
{
    int i = 1;

    while (name && names[i] && strcmp(names[i], name)) i++;
    if (!name || !names[i]) i = name && !strcmp(names[0], name) ? 0 : -1;
    if (i >= 0) memcpy(out, &i, sizeof i); /* the enum has the size of an int */
    return i >= 0;
}

void *ddp__knob_at(const ddp__knob *r, const ddp_config *c) { return (char *)(uintptr_t)c + r->at; }

int ddp__knob_unset(const ddp__knob *r, const ddp_config *c)
{
    static const unsigned char zero[16] = {0};

    return !memcmp(ddp__knob_at(r, c), zero, r->size);
}

double ddp__knob_number(const ddp__knob *r, const ddp_config *c)
{
    const void *at = ddp__knob_at(r, c);
    uint64_t large;

    if (r->kind <= DDP__K_PAIR) return 0;
    if (r->kind >= DDP__K_REAL)
        return r->size == sizeof(float) ? (double)*(const float *)at : *(const double *)at;
    if (r->size == sizeof(int)) return *(const int *)at;
    memcpy(&large, at, sizeof large);
    return (double)large;
}

static void ddp__knob_put(const ddp__knob *r, ddp_config *c, double x, long n)
{
    void *at = ddp__knob_at(r, c);
    const uint64_t large = (uint64_t)n;

    if (r->kind >= DDP__K_REAL && r->size == sizeof(float))
        *(float *)at = (float)x;
    else if (r->kind >= DDP__K_REAL)
        *(double *)at = x;
    else if (r->size == sizeof(int))
        *(int *)at = (int)n;
    else
        memcpy(at, &large, sizeof large);
}

/* Returns why a float cannot represent the number, or NULL. */
static const char *ddp__knob_float(const ddp__knob *r, double x)
{
    if (r->kind < DDP__K_REAL || r->size != sizeof(float)) return NULL;
    if (x > FLT_MAX) return "above 3.4e38";
    return x != 0 && (float)x == 0 ? "too small" : NULL; /* 0 means the default */
}

int ddp__knob_fits(const ddp__knob *r, double x)
{
    return x >= r->least && x <= (r->most == 0 ? DBL_MAX : r->most) && !ddp__knob_float(r, x);
}

void ddp__strategy_names(const ddp__strategies *list, char *out, size_t room)
{
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; list->number(i) != DDP_STRATEGY_DEFAULT && n + 1 < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s",
                              i == 0                                        ? ""
                              : list->number(i + 1) == DDP_STRATEGY_DEFAULT ? " or "
                                                                            : ", ",
                              list->name(list->number(i)));
}

/* "tcp, threads or mpi": the default first. */
static void ddp__choices(const char *const *names, ddp__text *out)
{
    const char *held = names[0];

    for (int i = 1; names[i]; i++) { /* write one name behind, because the last follows "or" */
        if (!strcmp(names[i], names[0])) continue;
        ddp__text_addf(out, "%s%s", held == names[0] ? "" : ", ", held);
        held = names[i];
    }
    ddp__text_addf(out, " or %s", held);
}

/* Describes the texts that the row accepts. */
void ddp__knob_values(const ddp__strategies *list, const ddp__knob *r, char *out, size_t room)
{
    const char *unit = r->unit, *from = r->flags & DDP__ZERO || r->least == 0 ? "from 0" : "above 0";
    ddp__text t = DDP__ZEROS;

    t.data = out;
    t.room = room;
    t.fixed = 1;
    out[0] = 0;
    if (r->kind == DDP__K_STRATEGY)
        ddp__strategy_names(list, out, room);
    else if (r->kind == DDP__K_FLAG)
        ddp__text_addf(&t, "1 or 0");
    else if (r->names)
        ddp__choices(r->names, &t);
    else if (r->kind == DDP__K_TEXT)
        ddp__text_addf(&t, "text");
    else if (r->kind == DDP__K_SERVERS || r->kind == DDP__K_DEFER || r->kind == DDP__K_PAIR)
        ddp__text_addf(&t, "%s", unit);
    else if (r->kind == DDP__K_WHOLE) {
        if (r->most > 0)
            ddp__text_addf(&t, "%.0f to %.0f", r->least, r->most);
        else
            ddp__text_addf(&t, "%.0f or more", r->least);
        ddp__text_addf(&t, "%s%s", *unit ? " " : "", unit);
    } else {
        ddp__text_addf(&t, "a number %s", from);
        if (r->most == DDP__BELOW_1)
            ddp__text_addf(&t, ", below 1");
        else if (r->most > 0)
            ddp__text_addf(&t, ", at most %g", r->most);
        if (*unit) ddp__text_addf(&t, ", in %s", unit);
    }
    if (r->kind == DDP__K_WIRE) ddp__text_addf(&t, ":FRACTION");
}

/* Writes the value of the field in the form that ddp__knob_set reads. */
void ddp__knob_text(const ddp__strategies *list, const ddp__knob *r, const ddp_config *c, char *out,
                    size_t room)
{
    const int *n = (const int *)ddp__knob_at(r, c);
    const double x = ddp__knob_number(r, c);

    if (ddp__knob_unset(r, c))
        snprintf(out, room, "%s", "");
    else if (r->kind == DDP__K_TEXT)
        snprintf(out, room, "%s", *(const char *const *)ddp__knob_at(r, c));
    else if (r->kind == DDP__K_STRATEGY)
        snprintf(out, room, "%s", list->name((ddp_strategy)*n));
    else if (r->names)
        snprintf(out, room, "%s", ddp__name_of(r->names, *n));
    else if (r->kind == DDP__K_PAIR)
        snprintf(out, room, "%d,%d", n[0], n[1]);
    else if (r->kind == DDP__K_SERVERS && x < 0)
        snprintf(out, room, "colocated");
    else if (r->flags & DDP__ZERO && x < 0)
        snprintf(out, room, "0");
    else if (r->kind < DDP__K_REAL)
        ddp__format(out, room, "%.0f", x);
    else
        ddp__format(out, room, r->size == sizeof(float) ? "%.7g" : "%.15g", x);
}

const char *ddp__knob_preset(const ddp__strategies *list, const ddp__knob *r)
{
    return r->preset ? r->preset : r->names ? r->names[0] : list->name(list->number(0));
}

/* "0,5": writes "0.5" to point. Returns 0 if the text is not a number with a decimal comma. */
static int ddp__decimal_comma(const char *text, char *point, size_t room)
{
    double x;

    if (strlen(text) >= room || !strchr(text, ',')) return 0;
    snprintf(point, room, "%s", text);
    *strchr(point, ',') = '.';
    return ddp__parse_ratio(point, &x);
}

/* Returns why the row does not accept the text, or NULL. */
static const char *ddp__knob_fault(const ddp__knob *r, const char *text)
{
    const char *digits = text + (*text == '-'), *unheld;
    double x;

    if (r->kind == DDP__K_REAL) {
        if (!ddp__parse_ratio(text, &x)) return "not a number";
        unheld = ddp__knob_float(r, x);
        return unheld ? unheld : "out of range";
    }
    if (r->kind != DDP__K_WHOLE) return r->names || r->kind == DDP__K_STRATEGY ? "unknown" : "invalid";
    if (!*digits || digits[strspn(digits, "0123456789")]) return "not a whole number";
    if (digits > text || r->most > 0) return "out of range";
    if (ddp__parse_ratio(text, &x) && x < r->least) return "out of range";
    return r->size > sizeof(int) ? "above 9223372036854775807" : "above 2147483647";
}

/* "period=-3 is out of range: choose 1 to 1000000 steps (default: 5)" */
ddp_status ddp__knob_refuse(const ddp__strategies *list, const ddp__knob *r, const char *said, char between,
                            const char *text, const char *fault, ddp_error *err)
{
    const char *wire = strncmp(text, "topk:", 5) ? "" : "topk:";
    char values[400], point[64];

    if ((r->kind >= DDP__K_REAL || r->kind == DDP__K_WIRE) &&
        ddp__decimal_comma(text + strlen(wire), point, sizeof point))
        return ddp__fail(err, DDP_ARG, "%s%c%.60s has a decimal comma: write %s%s", said, between, text, wire,
                         point);
    ddp__knob_values(list, r, values, sizeof values);
    return ddp__fail(err, DDP_ARG, "%s%c%.60s is %s: choose %s (default: %s)", said, between, text, fault,
                     values, ddp__knob_preset(list, r));
}

/* Sets the field from text; a text field borrows it. "" is the default. */
ddp_status ddp__knob_set(const ddp__strategies *list, const ddp__knob *r, ddp_config *c, const char *said,
                         const char *text, ddp_error *err)
{
    void *at = ddp__knob_at(r, c);
    double x = 0;
    long n = 0, second;
    char *comma;
    int ok = 1;

    if (r->kind == DDP__K_DEFER && !strcmp(text, "auto")) text = "";
    switch (*text ? r->kind : DDP__K_TEXT) {
    case DDP__K_TEXT:
        memset(at, 0, r->size);
        if (*text) memcpy(at, &text, sizeof text);
        break;
    case DDP__K_SERVERS:
    case DDP__K_FLAG:
    case DDP__K_WHOLE:
    case DDP__K_REAL:
    case DDP__K_DEFER:
        if (r->kind >= DDP__K_REAL)
            ok = ddp__parse_ratio(text, &x);
        else {
            ok = ddp__parse_long(text, &n) && (r->size > sizeof(int) || n <= INT_MAX);
            x = (double)n;
        }
        if (r->kind == DDP__K_FLAG && text[1]) ok = 0;
        if (r->kind == DDP__K_SERVERS && !strcmp(text, "colocated")) {
            n = DDP_SERVERS_COLOCATED;
            ok = 1;
        } else if (x == 0 && r->flags & DDP__ZERO) {
            n = -1;
            x = -1;
        } else
            ok = ok && ddp__knob_fits(r, x);
        if (ok) ddp__knob_put(r, c, x, n);
        break;
    case DDP__K_CHOICE:
    case DDP__K_WIRE:
        if (r->kind == DDP__K_WIRE && !strncmp(text, "topk:", 5)) {
            ok = ddp__parse_ratio(text + 5, &x) && x > 0 && x <= 1;
            if (ok) {
                c->topk_fraction = x;
                text = "topk";
            }
        }
        ok = ok && ddp__chosen(r->names, text, at);
        break;
    case DDP__K_STRATEGY:
        ok = list->named(text) != DDP_STRATEGY_DEFAULT;
        if (ok) c->strategy = list->named(text);
        break;
    case DDP__K_PAIR:
        n = second = strtol(text, &comma, 10);
        ok = comma > text && (!*comma || (*comma == ',' && ddp__parse_long(comma + 1, &second)));
        ok = ok &&
             ((n == 0 && second == 0) || (ddp__knob_fits(r, (double)n) && ddp__knob_fits(r, (double)second)));
        if (ok) {
            ((int *)at)[0] = (int)n;
            ((int *)at)[1] = (int)second;
        }
        break;
    }
    return ok ? DDP_OK : ddp__knob_refuse(list, r, said, '=', text, ddp__knob_fault(r, text), err);
}

/* "server" of server.staleness; "core" of a member without a struct. */
void ddp__knob_chapter(const ddp__knob *r, char *out, size_t room)
{
    const char *dot = strchr(r->member, '.');

    if (dot)
        snprintf(out, room, "%.*s", (int)(dot - r->member), r->member);
    else
        snprintf(out, room, "core");
}

/* "--outer-lr" for DREAMDDP_OUTER_LR. */
void ddp__knob_flag(const ddp__knob *r, char *out, size_t room)
{
    if (!r->variable) return;
    snprintf(out, room, "--%s", r->variable + 9);
    for (char *c = out; *c; c++) *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
}
