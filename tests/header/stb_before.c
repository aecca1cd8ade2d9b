/* stb_ds and this library in one file, stb_ds first. */
#define _GNU_SOURCE 1
#define STB_DS_IMPLEMENTATION
#include "stb.h"
#define DREAMDDP_IMPLEMENTATION
#include "stb_main.c"
