/* Growing lists: arrays of stb_ds whose memory comes from DDP_REALLOC, and is checked.
 *
 *     int *list = NULL;
 *     if (!ddp__reserve(list, stbds_arrlenu(list) + 1)) return DDP_MEMORY;
 *     stbds_arrput(list, 7);
 *     ddp__array_free(list);
 *
 * stb_ds neither checks its realloc nor uses DDP_REALLOC. Therefore reserve room before each
 * stbds_arrput, stbds_arraddnptr or stbds_arrsetlen, which then do not allocate, and never use
 * stbds_arrfree. (stbds_arrins and stbds_arraddnindex do not compile under gcc -Wconversion.) Use arrays
 * only: the maps of stb_ds share a process-wide seed and allocate by themselves. Never in the public API.
 *
 * stb_ds is the installed package, not a copy. A program that uses stb_ds too may include it before or after
 * this header, in the same file or in others; base/array.c instantiates it. */
#pragma once

#include "base/platform.h"

/* Only a program that includes stb_ds.h itself gets its short names (arrput). */
#if !defined(INCLUDE_STB_DS_H) && !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && \
    !defined(STB_DS_IMPLEMENTATION) && !defined(STBDS_NO_SHORT_NAMES)
#define STBDS_NO_SHORT_NAMES
#define DDP__STBDS_NO_SHORT_NAMES
#endif

/* Here only its declarations: a program that asked for the implementation gets it by its own #include below
 * ours. */
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

/* The elements of a list, an int. */
#define ddp__count(list) ((int)stbds_arrlen(list))

/* Makes room for n elements in all, and at least doubles the room where it grows; the elements and their
 * number stay. list: a T * that is NULL at first. 1; or 0 when memory is short or n elements exceed the
 * address space: the list stays as it was. New elements are not initialised. */
#define ddp__reserve(list, n) ddp__array_reserve(&(list), (size_t)(n), sizeof *(list))
/* Frees a list and sets it to NULL. */
#define ddp__array_free(list) (ddp__array_release(list), (list) = NULL)

/* What the macros above call. at: where the pointer to the first element is. */
DDP_LIB int ddp__array_reserve(void *at, size_t n, size_t size);
DDP_LIB void ddp__array_release(const void *list);
