/* The library as one file, for `make lib` and CMake. Only the public functions are exported. */
#define DDP_API extern __attribute__((visibility("default")))
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
