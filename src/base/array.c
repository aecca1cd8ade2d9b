/* Instantiates stb_ds, once per program: here, unless DREAMDDP_NO_STB_DS_IMPLEMENTATION says
 * that another file does (define it beside a program's own instantiation, and in all but one of
 * several DDP_STATIC files), or unless this very file has STB_DS_IMPLEMENTATION defined. */
#include "base/platform.h"
#include "base/array.h"

#if !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && !defined(STB_DS_IMPLEMENTATION)
#define STB_DS_IMPLEMENTATION
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#else
#include <stb/stb_ds.h>
#endif
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif
#undef STB_DS_IMPLEMENTATION
#endif
