/* Includes the declarations first, and the implementation later in the same file. */
#include "dreamddp.h"
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
