/* The library as one file, for `make lib` and CMake: only the public functions can be seen from outside. */
#define DDP_API extern __attribute__((visibility("default")))
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
