/* Growing arrays for bookkeeping: stb_ds, arrays only (its maps share a process-wide seed).
 * Never in the public API, never on the comm thread, never in a training step.
 *     int *list = NULL;  stbds_arrput(list, 7);  stbds_arrlen(list);  stbds_arrfree(list);
 * (stbds_arrins and stbds_arraddnindex do not compile under gcc -Wconversion: use arrsetlen.)
 *
 * It is the installed package, not a copy. A program that uses stb_ds too may include it before
 * or after this header, in the same file or in others; base/core.c says who instantiates it. */
#ifndef DDP_BASE_ARRAY_H
#define DDP_BASE_ARRAY_H

#include "base/platform.h"

/* Somebody who includes stb_ds.h himself wants its short names (arrput); nobody else does. */
#if !defined(INCLUDE_STB_DS_H) && !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && \
    !defined(STB_DS_IMPLEMENTATION) && !defined(STBDS_NO_SHORT_NAMES)
#define STBDS_NO_SHORT_NAMES
#define DDP__STBDS_NO_SHORT_NAMES
#endif

/* Here only its declarations. If the program has asked for the implementation and not yet
 * included it, its own #include below ours still gets it. */
#ifndef INCLUDE_STB_DS_H
#pragma push_macro("STB_DS_IMPLEMENTATION")
#undef STB_DS_IMPLEMENTATION
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#elif __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#error                                                                                             \
    "dreamddp: stb_ds.h was not found; install libstb-dev (Debian, Ubuntu), stb-devel (Fedora) or put stb_ds.h on the include path"
#endif
#pragma pop_macro("STB_DS_IMPLEMENTATION")
#endif

#ifdef DDP__STBDS_NO_SHORT_NAMES
#undef STBDS_NO_SHORT_NAMES
#endif

#endif /* DDP_BASE_ARRAY_H */
