/* The program requests stb_ds's implementation but includes stb_ds after this library. */
#define STB_DS_IMPLEMENTATION
#define DREAMDDP_IMPLEMENTATION
#include "stb_main.c"
