/* dreamddp.h 0.1.0 - train neural networks over slow links. MIT licence.
 *
 * Do this in ONE C or C++ file of your program, before any libc header:
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp.h"
 */
#ifndef DREAMDDP_H
#define DREAMDDP_H

#include "base/config.h"
#include "base/status.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/log.h"

#endif /* DREAMDDP_H */

#ifdef DREAMDDP_IMPLEMENTATION
#ifndef DDP__IMPLEMENTED
#define DDP__IMPLEMENTED

#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/text.h"
#include "base/status.c"
#include "base/memory.c"
#include "base/clock.c"
#include "base/thread.c"
#include "base/rng.c"
#include "base/log.c"
#include "base/text.c"

#endif /* DDP__IMPLEMENTED */
#endif /* DREAMDDP_IMPLEMENTATION */
