/* A second translation unit: declarations only. */
#include "dreamddp.h"
#include "dreamddp.h"

int main(void) { return ddp_status_text(DDP_OK)[0] != 'o' || !(ddp_now() > 0); }
