/* The one file of a program that holds the implementation; a second #include is harmless. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "dreamddp.h"
