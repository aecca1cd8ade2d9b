/* Compiles by default. With -std=c11 it fails with the reason. */
#include <stdio.h>
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
