/* The wire between processes that an MPI launcher started; behind DDP_USE_MPI. */
#ifndef DDP_WIRE_MPI_H
#define DDP_WIRE_MPI_H

#include "wire/wire.h"

/* ddp__wire_mpi - byte streams over MPI_Isend and MPI_Irecv on a copy of MPI_COMM_WORLD. Makes no
 * MPI call: all of them, MPI_Init_thread and MPI_Finalize included where the program has not
 * initialised MPI itself, come from the engine's comm thread, in begin to end.
 * begin fails with DDP_UNSUPPORTED if MPI's thread level is below MPI_THREAD_SERIALIZED, DDP_USAGE
 * if MPI was finalised before, DDP_ARG if MPI counts other ranks than rank and world say, DDP_NET
 * with MPI's own words. end after a failure calls MPI_Abort if begin has initialised MPI, since
 * the other ranks would wait in MPI_Finalize; the failure goes to stderr first.
 * Errors: DDP_MEMORY; DDP_UNSUPPORTED without DDP_USE_MPI. */
DDP_LIB ddp_status ddp__wire_mpi(int rank, int world, ddp__wire **out, ddp_error *err);

/* DDP_OK if this program was built with MPI. */
DDP_LIB ddp_status ddp__mpi_built(ddp_error *err);
/* 1, with rank and world of MPI_COMM_WORLD, where the program has initialised MPI; else 0. */
DDP_LIB int ddp__mpi_ranks(int *rank, int *world);

#endif /* DDP_WIRE_MPI_H */
