/* Compiles by default, and under -std=c11 says why it cannot. */
#include <stdio.h>
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
