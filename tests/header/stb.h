/* Includes stb_ds as a program does (once: its implementation has no guard). */
#ifndef TEST_STB_H
#define TEST_STB_H
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#else
#include <stb/stb_ds.h>
#endif
#endif
