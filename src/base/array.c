/* Allocates and frees growing arrays, and instantiates stb_ds. */
#include "base/array.h"

enum { DDP__ARRAY_LEAST = 8 }; /* elements of the first allocation */

int ddp__array_reserve(void *at, size_t n, size_t size)
{
    stbds_array_header *head = NULL;
    void *list;
    size_t room = 0;

    memcpy(&list, at, sizeof list); /* a T * must not be accessed as a void * */
    if (list) {
        head = stbds_header(list);
        room = head->capacity;
    }
    if (n <= room) return 1;
    room = room < SIZE_MAX / 2 ? 2 * room : n;
    if (room < n) room = n;
    if (room < DDP__ARRAY_LEAST) room = DDP__ARRAY_LEAST;
    if (room > (SIZE_MAX - sizeof *head) / size) return 0;
    head = (stbds_array_header *)DDP_REALLOC(head, sizeof *head + room * size);
    if (!head) return 0;
    if (!list) memset(head, 0, sizeof *head);
    head->capacity = room;
    list = head + 1;
    memcpy(at, &list, sizeof list);
    return 1;
}

void ddp__array_release(const void *list)
{
    if (list) DDP_FREE(stbds_header(list));
}

/* Instantiates stb_ds once per program: here, unless this file already defines STB_DS_IMPLEMENTATION or
 * the program defines DREAMDDP_NO_STB_DS_IMPLEMENTATION. Define the latter if another file of the program
 * instantiates stb_ds, and in all but one of several DDP_STATIC files. */
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
