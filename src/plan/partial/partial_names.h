/* The names of the solvers, costs and fillings of partial averaging, indexed by value. */
#pragma once

#define DDP__SOLVERS "scatter", "optimal", "dfs", "enp", "brute", "scatter"
#define DDP__COSTS   "window", "timeline", "sum", "window"
#define DDP__FILLS   "none", "exact", "eq12"
