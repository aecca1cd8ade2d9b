/* Declarations first, the implementation further down the same file. */
#include "dreamddp.h"
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
