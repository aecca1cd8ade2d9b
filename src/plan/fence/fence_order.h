/* Finds the order in which a pipeline visits the devices. */
#pragma once

#include "plan/fence/fence_tape.h"

/* Fills cluster [N] and order [N] for messages of `bytes` bytes: steps 1-3 of ddp_fence. */
DDP_LIB ddp_status ddp__fence_order(const ddp_network *net, double bytes, int backward, double resolution,
                                    int *cluster, int *clusters, int *order, ddp_error *err);

/* Searches, starting from order [N], for an order along which some cut fits into memory. Sets *found to 1
 * if `order` is now such an order, and *every to 1 if all orders were tried. */
DDP_LIB ddp_status ddp__fence_fit_order(const ddp__fence_tape *t, int idle, int *order, int *found,
                                        int *every, ddp_error *err);
