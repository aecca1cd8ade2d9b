/* The program has asked for stb_ds's implementation but includes it after this library. */
#define STB_DS_IMPLEMENTATION
#define DREAMDDP_IMPLEMENTATION
#include "stb_main.c"
