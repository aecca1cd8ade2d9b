/* Growing arrays: stb_ds arrays whose memory comes from DDP_REALLOC and whose allocation failures are
 * reported.
 *
 *     int *list = NULL;
 *     if (!ddp__reserve(list, stbds_arrlenu(list) + 1)) return DDP_MEMORY;
 *     stbds_arrput(list, 7);
 *     ddp__array_free(list);
 *
 * stb_ds neither checks its realloc nor uses DDP_REALLOC. So call ddp__reserve before each stbds_arrput,
 * stbds_arraddnptr or stbds_arrsetlen, which then do not allocate, and never call stbds_arrfree.
 * stbds_arrins and stbds_arraddnindex do not compile under gcc -Wconversion. Use only the arrays of stb_ds:
 * its maps share a process-wide seed and allocate by themselves. Do not use these arrays in the public API.
 *
 * stb_ds is the installed package, not a copy. A program that uses stb_ds, too, may include it before or
 * after this header, in the same file or in others. base/array.c instantiates it. */
#pragma once

#include "base/platform.h"

/* Hides the short names of stb_ds (arrput) unless the program includes stb_ds.h itself. */
#if !defined(INCLUDE_STB_DS_H) && !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && \
    !defined(STB_DS_IMPLEMENTATION) && !defined(STBDS_NO_SHORT_NAMES)
#define STBDS_NO_SHORT_NAMES
#define DDP__STBDS_NO_SHORT_NAMES
#endif

/* Includes only the declarations. A program that defined STB_DS_IMPLEMENTATION gets the implementation
 * from its own #include after this header. */
#ifndef INCLUDE_STB_DS_H
#pragma push_macro("STB_DS_IMPLEMENTATION")
#undef STB_DS_IMPLEMENTATION
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#elif __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#error "dreamddp: stb_ds.h was not found; install libstb-dev (Debian) or stb-devel (Fedora), or add its -I"
#endif
#pragma pop_macro("STB_DS_IMPLEMENTATION")
#endif

#ifdef DDP__STBDS_NO_SHORT_NAMES
#undef STBDS_NO_SHORT_NAMES
#endif

/* Number of elements of a list, as int. */
#define ddp__count(list) ((int)stbds_arrlen(list))

/* Reserves capacity for n elements in total. If the list grows, the capacity at least doubles. The elements
 * and their number do not change. list: a T *, NULL at first. Returns 1, or 0 if memory is short or n
 * elements exceed the address space. The list is then unchanged. New elements are not initialised. */
#define ddp__reserve(list, n) ddp__array_reserve(&(list), (size_t)(n), sizeof *(list))
/* Frees a list and sets it to NULL. */
#define ddp__array_free(list) (ddp__array_release(list), (list) = NULL)

/* Implementation of the macros above. at: address of the pointer to the first element. */
DDP_LIB int ddp__array_reserve(void *at, size_t n, size_t size);
DDP_LIB void ddp__array_release(const void *list);
