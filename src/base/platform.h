/* System headers of the implementation. Linux first; macOS is kept compiling. */
#ifndef DDP_BASE_PLATFORM_H
#define DDP_BASE_PLATFORM_H

#include "base/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_MONOTONIC
#error                                                                                             \
    "dreamddp: a libc header was included before dreamddp.h with POSIX hidden; include dreamddp.h first in the file that defines DREAMDDP_IMPLEMENTATION, or compile with -D_GNU_SOURCE"
#endif

#endif /* DDP_BASE_PLATFORM_H */
