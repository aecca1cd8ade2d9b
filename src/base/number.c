/* Converts numbers to and from text with a decimal point in every locale. */
#include "base/core.h"

/* Switches this thread to the C locale. glibc and musl return a constant and do not allocate. */
static locale_t ddp__locale_enter(locale_t *plain)
{
    *plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *plain ? uselocale(*plain) : (locale_t)0;
}

static void ddp__locale_leave(locale_t plain, locale_t before)
{
    if (!plain) return;
    (void)uselocale(before);
    freelocale(plain);
}

int ddp__format_list(char *out, size_t room, const char *fmt, va_list list)
{
    locale_t plain;
    const locale_t before = ddp__locale_enter(&plain);
    const int n = vsnprintf(out, room, fmt, list);

    ddp__locale_leave(plain, before);
    return n;
}

int ddp__format(char *out, size_t room, const char *fmt, ...)
{
    va_list list;
    int n;

    va_start(list, fmt);
    n = ddp__format_list(out, room, fmt, list);
    va_end(list);
    return n;
}

double ddp__number(const char *s, char **end)
{
    locale_t plain;
    const locale_t before = ddp__locale_enter(&plain);
    const double v = strtod(s, end);

    ddp__locale_leave(plain, before);
    return v;
}
