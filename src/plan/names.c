/* Converts between the values of an option and their names. */
#include "plan/names.h"

const char *ddp__name_of(const char *const *names, int value)
{
    for (int i = 0; names[i]; i++)
        if (i == value) return names[i];
    return "unknown";
}

ddp_status ddp__named(const char *const *names, int first, const char *what, const char *name, void *out,
                      ddp_error *err)
{
    ddp__text list = DDP__ZEROS;
    if (!out) return ddp__fail(err, DDP_ARG, "the %s of a name: out is NULL", what);
    for (int i = first; names[i]; i++)
        if (name && !strcmp(names[i], name)) {
            DDP_STATIC_ASSERT(sizeof(ddp_status) == sizeof i, "an enum is an int");
            memcpy(out, &i, sizeof i);
            return DDP_OK;
        }
    for (int i = first; names[i]; i++)
        ddp__text_addf(&list, "%s%s", i == first ? "" : names[i + 1] ? ", " : " or ", names[i]);
    ddp__fail(err, DDP_ARG, "%s '%.60s' is unknown; use %s", what, name ? name : "",
              list.data ? list.data : "another");
    ddp__text_free(&list);
    return DDP_ARG;
}
