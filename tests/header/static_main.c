/* A private copy of the library; static_other.c has another one. */
#define DREAMDDP_IMPLEMENTATION
#define DDP_STATIC
#include "dreamddp.h"

#ifdef __cplusplus
extern "C"
#endif
    const char *
    other_copy(void);

int main(void) { return other_copy()[0] != ddp_status_text(DDP_OK)[0]; }
