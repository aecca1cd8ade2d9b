#include "base/platform.h"
#include "base/fail.h"

const char *ddp_status_text(ddp_status code)
{
    switch (code) {
#define DDP__STATUS_TEXT(name, exit_code, text) case DDP_##name: return text;
    DDP_STATUS_LIST(DDP__STATUS_TEXT)
#undef DDP__STATUS_TEXT
    case DDP_STATUS_COUNT: break;
    }
    return "unknown status";
}

int ddp_status_exit_code(ddp_status code)
{
    switch (code) {
#define DDP__STATUS_EXIT(name, exit_code, text) case DDP_##name: return exit_code;
    DDP_STATUS_LIST(DDP__STATUS_EXIT)
#undef DDP__STATUS_EXIT
    case DDP_STATUS_COUNT: break;
    }
    return 1;
}

ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...)
{
    va_list ap;

    if (!err) return code;
    err->code = code;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}
