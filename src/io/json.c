/* JSON: parses with exact error positions, looks up values, and writes strings and numbers. */
#include "io/json.h"

#define DDP__JSON_DEPTH 64

typedef struct ddp__json_reader {
    const char *name, *at, *end;
    ddp__json *node; /* next free value */
    char *chars;     /* next free byte for strings */
    int depth;
    int line;
    const char *begin; /* start of the current line */
    ddp_error *err;
} ddp__json_reader;

/* Column of `where` in the current line, in bytes. */
static int ddp__json_column(const ddp__json_reader *r, const char *where)
{
    return (int)(where - r->begin) + 1;
}

static ddp_status ddp__json_bad(const ddp__json_reader *r, const char *where, const char *what)
{
    return ddp__fail(r->err, DDP_FORMAT, "%s, line %d, column %d: %s", r->name, r->line,
                     ddp__json_column(r, where), what);
}

/* ---- strings ---- */

int ddp__utf8_length(const unsigned char *p, size_t left)
{
    uint32_t code;
    int n;

    if (p[0] < 0x80) return 1;
    n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || left < (size_t)n) return 0;
    code = p[0] & (0x7fu >> n);
    for (int k = 1; k < n; k++) {
        if ((p[k] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[k] & 0x3fu);
    }
    if ((n == 3 && code < 0x800) || (n == 4 && code < 0x10000)) return 0;
    return code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? 0 : n;
}

static char *ddp__utf8_write(char *out, uint32_t code)
{
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;

    *out++ = (char)(lead[more] | code >> 6 * more);
    while (more--) *out++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return out;
}

/* Parses the four hexadecimal digits after \u at p into *code. Returns 0 if they are invalid. */
static int ddp__json_hex(const char *p, const char *end, uint32_t *code)
{
    if (end - p < 4) return 0;
    *code = 0;
    for (int k = 0; k < 4; k++) {
        int c = (unsigned char)p[k];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return 0;
        *code = *code << 4 | (uint32_t)digit;
    }
    return 1;
}

/* Decodes an escape sequence and appends the character to r->chars. */
static ddp_status ddp__json_escape(ddp__json_reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *start = r->at, *found;
    uint32_t code, low;

    if (r->end - r->at < 2) return ddp__json_bad(r, r->at, "the text ends inside an escape");
    if (r->at[1] != 'u') {
        found = r->at[1] ? strchr(from, r->at[1]) : NULL;
        if (!found)
            return ddp__json_bad(r, r->at,
                                 "unknown escape; \\\" \\\\ \\/ \\b \\f \\n \\r \\t and \\u are known");
        *r->chars++ = to[found - from];
        r->at += 2;
        return DDP_OK;
    }
    if (!ddp__json_hex(r->at + 2, r->end, &code))
        return ddp__json_bad(r, start, "\\u needs four hexadecimal digits");
    r->at += 6;
    if (code >= 0xd800 && code < 0xdc00) { /* first half of a surrogate pair */
        if (r->end - r->at < 6 || r->at[0] != '\\' || r->at[1] != 'u' ||
            !ddp__json_hex(r->at + 2, r->end, &low) || low < 0xdc00 || low > 0xdfff)
            return ddp__json_bad(r, start, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        r->at += 6;
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return ddp__json_bad(r, start, "half of a surrogate pair");
    }
    if (code == 0) return ddp__json_bad(r, start, "a string may not hold \\u0000");
    r->chars = ddp__utf8_write(r->chars, code);
    return DDP_OK;
}

/* A decoded string with its NUL is never longer than its source with quotes. */
static ddp_status ddp__json_text(ddp__json_reader *r, const char **out)
{
    const char *start = r->at++;
    int n;

    *out = r->chars;
    while (r->at < r->end && *r->at != '"') {
        if (*r->at == '\\') {
            DDP__TRY(ddp__json_escape(r));
            continue;
        }
        if ((unsigned char)*r->at < 0x20)
            return ddp__json_bad(r, r->at,
                                 "a control character (a line end?) inside a string; write it as an escape");
        n = ddp__utf8_length((const unsigned char *)r->at, (size_t)(r->end - r->at));
        if (!n) return ddp__json_bad(r, r->at, "a byte that is not UTF-8 inside a string");
        memcpy(r->chars, r->at, (size_t)n);
        r->chars += n;
        r->at += n;
    }
    if (r->at == r->end) return ddp__json_bad(r, start, "a string without its closing quote");
    r->at++;
    *r->chars++ = 0;
    return DDP_OK;
}

/* ---- numbers ---- */

static int ddp__json_digits(ddp__json_reader *r)
{
    const char *start = r->at;

    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return r->at > start;
}

/* Checks the grammar, because ddp__number only converts. */
static ddp_status ddp__json_digits_to_number(ddp__json_reader *r, double *out)
{
    const char *start = r->at, *whole;
    size_t n;
    char text[400];
    int ok;

    if (*r->at == '-') r->at++;
    whole = r->at;
    ok = ddp__json_digits(r) && (*whole != '0' || r->at == whole + 1);
    if (ok && r->at < r->end && *r->at == '.') {
        r->at++;
        ok = ddp__json_digits(r);
    }
    if (ok && r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        ok = ddp__json_digits(r);
    }
    if (!ok) return ddp__json_bad(r, start, "not a JSON number (as 12, -0.5 or 1e9)");
    n = (size_t)(r->at - start);
    if (n >= sizeof text) return ddp__json_bad(r, start, "a number of more than 399 characters");
    memcpy(text, start, n);
    text[n] = 0;
    *out = ddp__number(text, NULL);
    if (!ddp__finite(*out)) return ddp__json_bad(r, start, "a number beyond the range of a double");
    return DDP_OK;
}

/* ---- values ---- */

static void ddp__json_blank(ddp__json_reader *r)
{
    for (; r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'); r->at++)
        if (*r->at == '\n') {
            r->line++;
            r->begin = r->at + 1;
        }
}

/* Skips blanks, and then c if it is next. */
static int ddp__json_next(ddp__json_reader *r, char c)
{
    ddp__json_blank(r);
    if (r->at == r->end || *r->at != c) return 0;
    r->at++;
    return 1;
}

static ddp_status ddp__json_word(ddp__json_reader *r, ddp__json *v)
{
    static const char *const word[] = {"null", "false", "true"};
    size_t n, left = (size_t)(r->end - r->at);

    for (int k = 0; k < 3; k++) {
        n = strlen(word[k]);
        if (left < n || memcmp(r->at, word[k], n)) continue;
        v->kind = (ddp__json_kind)k;
        r->at += n;
        return DDP_OK;
    }
    return ddp__json_bad(r, r->at, "a value is needed: object, array, string, number, true, false or null");
}

static ddp_status ddp__json_value(ddp__json_reader *r, ddp__json *v);

/* Parses the name and the colon of a member, and sets *key. */
static ddp_status ddp__json_key(ddp__json_reader *r, const char **key)
{
    ddp__json_blank(r);
    if (r->at == r->end || *r->at != '"')
        return ddp__json_bad(r, r->at, "a member's name in quotes is needed");
    DDP__TRY(ddp__json_text(r, key));
    if (!ddp__json_next(r, ':')) return ddp__json_bad(r, r->at, "a colon is needed after a member's name");
    return DDP_OK;
}

static int ddp__json_by_key(const void *a, const void *b)
{
    const ddp__json *x = *(const ddp__json *const *)a, *y = *(const ddp__json *const *)b;
    const int order = strcmp(x->key, y->key);

    return order ? order : (x > y) - (x < y); /* values are in the order of the text */
}

/* Fails if a key occurs twice. */
static ddp_status ddp__json_unlike(ddp__json_reader *r, const ddp__json *object)
{
    const size_t n = (size_t)object->count;
    const ddp__json *v, **list = (const ddp__json **)ddp__calloc(n, sizeof(const ddp__json *));
    ddp_status s = DDP_OK;
    size_t i;

    if (!list) return ddp__fail(r->err, DDP_MEMORY, "%s: out of memory for %zu keys", r->name, n);
    for (v = object->first, i = 0; v; v = v->next) list[i++] = v;
    qsort(list, n, sizeof *list, ddp__json_by_key);
    for (i = 1; i < n && s == DDP_OK; i++)
        if (!strcmp(list[i - 1]->key, list[i]->key))
            s = ddp__fail(r->err, DDP_FORMAT,
                          "%s, line %d, column %d: \"%.60s\" is given twice in this object", r->name,
                          list[i]->line, list[i]->column, list[i]->key);
    DDP_FREE(list);
    return s;
}

/* Parses the children after the opening bracket, up to and including the closing one. */
static ddp_status ddp__json_children(ddp__json_reader *r, ddp__json *v, char close)
{
    ddp__json **link = &v->first, *child;
    const char *key = NULL;

    if (++r->depth > DDP__JSON_DEPTH) return ddp__json_bad(r, r->at, "more than 64 values inside each other");
    if (!ddp__json_next(r, close)) {
        do {
            if (close == '}') DDP__TRY(ddp__json_key(r, &key));
            child = r->node++;
            DDP__TRY(ddp__json_value(r, child));
            child->key = key;
            *link = child;
            link = &child->next;
            v->count++;
        } while (ddp__json_next(r, ','));
        if (!ddp__json_next(r, close))
            return ddp__json_bad(r, r->at,
                                 close == '}' ? "a comma or } is needed" : "a comma or ] is needed");
        if (close == '}') DDP__TRY(ddp__json_unlike(r, v));
    }
    r->depth--;
    return DDP_OK;
}

static ddp_status ddp__json_value(ddp__json_reader *r, ddp__json *v)
{
    ddp__json_blank(r);
    if (r->at == r->end) return ddp__json_bad(r, r->at, "the text ends where a value is needed");
    v->line = r->line;
    v->column = ddp__json_column(r, r->at);
    switch (*r->at) {
    case '{':
    case '[':
        v->kind = *r->at == '{' ? DDP__JSON_OBJECT : DDP__JSON_ARRAY;
        return ddp__json_children(r, v, *r->at++ == '{' ? '}' : ']');
    case '"':
        v->kind = DDP__JSON_STRING;
        return ddp__json_text(r, &v->string);
    default:
        if (*r->at != '-' && (*r->at < '0' || *r->at > '9')) return ddp__json_word(r, v);
        v->kind = DDP__JSON_NUMBER;
        return ddp__json_digits_to_number(r, &v->number);
    }
}

/* Upper bound of the number of values: each value except the first follows a bracket or a comma. */
static size_t ddp__json_most_values(const char *text, size_t n)
{
    size_t most = 1;

    for (size_t i = 0; i < n; i++) most += text[i] == '[' || text[i] == '{' || text[i] == ',';
    return most;
}

ddp__json *ddp__json_parse(const char *name, const char *text, size_t n, ddp_error *err)
{
    size_t most = ddp__json_most_values(text, n);
    ddp__json *root = NULL;
    ddp__json_reader r = DDP__ZEROS;

    if (most <= (SIZE_MAX - n - 1) / sizeof *root)
        root = (ddp__json *)ddp__calloc(1, most * sizeof *root + n + 1);
    if (!root) {
        ddp__fail(err, DDP_MEMORY, "%s: out of memory for %zu JSON values", name, most);
        return NULL;
    }
    r.name = name;
    r.at = r.begin = text + ddp__bom_bytes(text, n);
    r.line = 1;
    r.end = text + n;
    r.node = root + 1;
    r.chars = (char *)(root + most);
    r.err = err;
    if (n >= 2 && (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2))) {
        ddp__json_bad(&r, text, "the file is UTF-16 text: save it as UTF-8");
    } else if (ddp__json_value(&r, root) == DDP_OK) {
        ddp__json_blank(&r);
        if (r.at == r.end) return root;
        ddp__json_bad(&r, r.at, "something follows the value; one value is all a file may hold");
    }
    DDP_FREE(root);
    return NULL;
}

ddp__json *ddp__json_read(const char *path, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    ddp__json *root = NULL;

    if (ddp__file_read(path, &t, err) == DDP_OK)
        root = ddp__json_parse(path, t.data ? t.data : "", t.size, err);
    ddp__text_free(&t);
    return root;
}

void ddp__json_free(ddp__json *root)
{
    if (root) DDP_FREE(root);
}

/* ---- lookup ---- */

const ddp__json *ddp__json_get(const ddp__json *object, const char *key)
{
    const ddp__json *v;

    if (!object || object->kind != DDP__JSON_OBJECT) return NULL;
    for (v = object->first; v && strcmp(v->key, key); v = v->next) {
    }
    return v;
}

ddp_status ddp__json_need(const char *name, const ddp__json *object, const char *key, ddp__json_kind kind,
                          const ddp__json **out, ddp_error *err)
{
    static const char *const kinds[] = {"null",     "false",    "true",     "a number",
                                        "a string", "an array", "an object"};
    const ddp__json *v = ddp__json_get(object, key);

    if (!v)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: \"%s\" is missing; it must be %s", name,
                         object->line, object->column, key, kinds[kind]);
    if (v->kind != kind)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: \"%s\" is %s; it must be %s", name,
                         v->line, v->column, key, kinds[v->kind], kinds[kind]);
    *out = v;
    return DDP_OK;
}

/* ---- writing ---- */

void ddp__json_string(ddp__text *t, const char *s)
{
    size_t left = s ? strlen(s) : 0;

    if (!s) {
        ddp__text_add(t, "null", 4);
        return;
    }
    ddp__text_add(t, "\"", 1);
    while (left) {
        int n = ddp__utf8_length((const unsigned char *)s, left);
        if (!n)
            ddp__text_add(t, "\\ufffd", 6);
        else if (*s == '"' || *s == '\\')
            ddp__text_addf(t, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            ddp__text_addf(t, "\\u%04x", (unsigned)*s);
        else
            ddp__text_add(t, s, (size_t)n);
        n = n ? n : 1;
        s += n;
        left -= (size_t)n;
    }
    ddp__text_add(t, "\"", 1);
}

void ddp__json_number(ddp__text *t, double x)
{
    char text[40];
    int digits = 15;

    if (!ddp__finite(x)) {
        ddp__text_add(t, "null", 4);
        return;
    }
    do ddp__format(text, sizeof text, "%.*g", digits, x);
    while (ddp__number(text, NULL) != x && digits++ < 17);
    ddp__text_add(t, text, strlen(text));
}
