/* Splits CSV text into lines and fields. */
#include "profile/csv.h"

char *ddp__csv_field(char **at)
{
    char *s = *at + strspn(*at, " \t"), *end, *to;
    if (*s != '"') {
        end = s + strcspn(s, ",");
        *at = *end ? end + 1 : NULL;
        while (end > s && (end[-1] == ' ' || end[-1] == '\t')) end--;
        *end = 0;
        return s;
    }
    for (to = s, end = s + 1; *end && (*end != '"' || end[1] == '"'); *to++ = *end++)
        if (*end == '"') end++;
    if (!*end) return NULL;
    end += 1 + strspn(end + 1, " \t");
    if (*end && *end != ',') return NULL;
    *at = *end ? end + 1 : NULL;
    *to = 0;
    return s;
}

char *ddp__csv_line(char **at)
{
    char *s = *at, *end;
    if (!*s) return NULL;
    end = s + strcspn(s, "\r\n");
    *at = end + (*end == '\r' && end[1] == '\n') + (*end != 0);
    *end = 0;
    return s;
}
