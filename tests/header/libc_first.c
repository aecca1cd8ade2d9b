/* Must not compile under -std=c11, and must say why. */
#include <stdio.h>
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
