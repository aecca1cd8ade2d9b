/* The one file of a program that contains the implementation. A second #include has no effect. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "dreamddp.h"
