/* The whole GPU companion in one translation unit, as a user compiles it. Without a GPU it prints a
 * message. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#include <stdio.h>

int main(void)
{
    ddp_error err;
    ddp__cuda *dev = ddp__cuda_open(0, DDP_CUDA_F32, NULL, &err);

    if (!dev) {
        fprintf(stderr, "%s\n", err.msg);
        return 77;
    }
    ddp__cuda_close(dev);
    return 0;
}
