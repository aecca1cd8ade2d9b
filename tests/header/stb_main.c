/* A program that uses stb_ds itself. With STB_DS_IMPLEMENTATION defined it instantiates stb_ds. */
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
