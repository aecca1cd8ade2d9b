/* The wire between ranks that are threads of one process. */
#ifndef DDP_WIRE_THREADS_H
#define DDP_WIRE_THREADS_H

#include "wire/wire.h"

typedef struct ddp__hub ddp__hub;

/* ddp__hub_new - the meeting place of `world` ranks; NULL when memory is short. Each open wire
 * holds a reference, so ddp__hub_free and the wires' close may come in any order, from any
 * thread. Each ordered pair of ranks has a ring of DDP__RING_BYTES, touched only when used.
 * ddp__wire_threads - the end of one rank; a rank can be taken once.
 * ddp__hub_second - another meeting place of the same ranks, freed with the first; NULL when memory
 * is short, or if it was never asked for before the ranks began (then make = 0).
 * ddp__hub_leave - what closing the wire of that rank does, for a rank that never got one: the
 * others see it gone at once.
 * Errors: DDP_ARG if the rank is outside 0..world-1 or taken; DDP_MEMORY. */
DDP_LIB ddp__hub  *ddp__hub_new(int world);
DDP_LIB ddp__hub  *ddp__hub_second(ddp__hub *hub, int make);
DDP_LIB ddp_status ddp__wire_threads(ddp__hub *hub, int rank, ddp__wire **out, ddp_error *err);
DDP_LIB void       ddp__hub_leave(ddp__hub *hub, int rank);
DDP_LIB void       ddp__hub_free(ddp__hub *hub);

#endif /* DDP_WIRE_THREADS_H */
