/* The name of a row of a choice, for messages. */
#pragma once

#include "plan/choose.h"

/* Writes the strategy and the options of a row: "dreamddp --period 5". */
DDP_LIB void ddp__row_name(const ddp_choice_row *r, char out[96]);
