/* This library and stb_ds in one file, stb_ds last. */
#define DREAMDDP_IMPLEMENTATION
#define DREAMDDP_NO_STB_DS_IMPLEMENTATION
#include "dreamddp.h"
#define STB_DS_IMPLEMENTATION
#include "stb_main.c"
