/* The second private copy. Only the first one may instantiate stb_ds. */
#define DREAMDDP_IMPLEMENTATION
#define DREAMDDP_NO_STB_DS_IMPLEMENTATION
#define DDP_STATIC
#include "dreamddp.h"

#ifdef __cplusplus
extern "C"
#endif
    const char *
    other_copy(void);

const char *other_copy(void) { return ddp_status_text(DDP_OK); }
