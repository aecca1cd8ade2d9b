/* A program that uses stb_ds itself; with STB_DS_IMPLEMENTATION defined it instantiates it. */
#include "dreamddp.h"
#include "stb.h"

int main(void)
{
    int *list = NULL, bad;

    arrput(list, 7);
    bad = arrlen(list) != 1 || ddp_status_text(DDP_OK)[0] != 'o';
    arrfree(list);
    return bad;
}
