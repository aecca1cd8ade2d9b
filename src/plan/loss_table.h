/* Measured losses, generated from bench/loss_table.csv by tools/loss_table.py; do not edit. */
#pragma once

#include "profile/losses.h"

/* strategy, stream, period, workers, format, steps, loss */
static const ddp_loss_point ddp__loss_points[] = {
    /* gpt, rate 0.004, 2 seeds */
    {"deft", 0, 0, 4, DDP_AS_FLOAT, 400, 2.5332},
    /* gpt, rate 0.008, 2 seeds */
    {"diloco", 0, 2, 4, DDP_AS_FLOAT, 400, 2.1666},
    {"diloco", 0, 5, 2, DDP_AS_FLOAT, 400, 2.3308},
    {"diloco", 0, 5, 4, DDP_AS_BFLOAT, 400, 2.1726},
    {"diloco", 0, 5, 4, DDP_AS_FLOAT, 400, 2.1727},
    {"diloco", 0, 5, 4, DDP_AS_FLOAT, 2000, 1.6467},
    {"diloco", 0, 5, 4, DDP_AS_INT4, 400, 2.1713},
    {"diloco", 0, 5, 4, DDP_AS_INT8, 400, 2.1733},
    {"diloco", 0, 5, 8, DDP_AS_FLOAT, 400, 2.0972},
    {"diloco", 0, 10, 4, DDP_AS_FLOAT, 400, 2.2066},
    {"diloco", 0, 20, 4, DDP_AS_FLOAT, 400, 2.2866},
    {"diloco", 0, 20, 4, DDP_AS_FLOAT, 2000, 1.6954},
    /* gpt, rate 0.004, 2 seeds */
    {"diloco", 0, 50, 4, DDP_AS_FLOAT, 400, 2.3549},
    {"diloco", 0, 50, 4, DDP_AS_FLOAT, 2000, 1.7888},
    /* gpt, rate 0.008, 2 seeds */
    {"diloco", 1, 2, 4, DDP_AS_FLOAT, 400, 2.3791},
    {"diloco", 1, 5, 2, DDP_AS_FLOAT, 400, 2.3437},
    {"diloco", 1, 5, 4, DDP_AS_BFLOAT, 400, 2.2073},
    {"diloco", 1, 5, 4, DDP_AS_FLOAT, 400, 2.2080},
    {"diloco", 1, 5, 4, DDP_AS_FLOAT, 2000, 1.6703},
    {"diloco", 1, 5, 4, DDP_AS_INT4, 400, 2.2089},
    {"diloco", 1, 5, 4, DDP_AS_INT8, 400, 2.2078},
    {"diloco", 1, 5, 8, DDP_AS_FLOAT, 400, 2.1533},
    {"diloco", 1, 10, 4, DDP_AS_FLOAT, 400, 2.2926},
    {"diloco", 1, 20, 4, DDP_AS_FLOAT, 400, 2.3260},
    {"diloco", 1, 20, 4, DDP_AS_FLOAT, 2000, 1.7005},
    /* gpt, rate 0.004, 2 seeds */
    {"diloco", 1, 50, 4, DDP_AS_FLOAT, 400, 2.3657},
    {"diloco", 1, 50, 4, DDP_AS_FLOAT, 2000, 1.7725},
    /* gpt, rate 0.016, 2 seeds */
    {"dreamddp", 0, 2, 4, DDP_AS_FLOAT, 400, 2.1126},
    {"dreamddp", 0, 5, 2, DDP_AS_FLOAT, 400, 2.3851},
    {"dreamddp", 0, 5, 4, DDP_AS_BFLOAT, 400, 2.1400},
    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 400, 2.1413},
    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 2000, 1.6375},
    {"dreamddp", 0, 5, 4, DDP_AS_INT8, 400, 2.1443},
    {"dreamddp", 0, 5, 8, DDP_AS_FLOAT, 400, 2.0617},
    /* gpt, rate 0.008, 2 seeds */
    {"dreamddp", 0, 10, 4, DDP_AS_FLOAT, 400, 2.1894},
    {"dreamddp", 0, 20, 4, DDP_AS_FLOAT, 400, 2.2788},
    {"dreamddp", 0, 20, 4, DDP_AS_FLOAT, 2000, 1.7256},
    {"dreamddp", 0, 50, 4, DDP_AS_FLOAT, 400, 2.3642},
    {"dreamddp", 0, 50, 4, DDP_AS_FLOAT, 2000, 1.7815},
    {"enp", 0, 2, 4, DDP_AS_FLOAT, 400, 2.1190},
    {"enp", 0, 5, 4, DDP_AS_FLOAT, 400, 2.1461},
    {"enp", 0, 10, 4, DDP_AS_FLOAT, 400, 2.2007},
    {"enp", 0, 20, 4, DDP_AS_FLOAT, 400, 2.2898},
    {"enp", 0, 50, 4, DDP_AS_FLOAT, 400, 2.3665},
    /* gpt, rate 0.016, 2 seeds */
    {"localsgd", 0, 2, 4, DDP_AS_FLOAT, 400, 2.1110},
    /* gpt, rate 0.008, 2 seeds */
    {"localsgd", 0, 5, 2, DDP_AS_FLOAT, 400, 2.2908},
    {"localsgd", 0, 5, 4, DDP_AS_BFLOAT, 400, 2.1604},
    {"localsgd", 0, 5, 4, DDP_AS_FLOAT, 400, 2.1567},
    {"localsgd", 0, 5, 4, DDP_AS_FLOAT, 2000, 1.6458},
    {"localsgd", 0, 5, 4, DDP_AS_INT8, 400, 2.1567},
    {"localsgd", 0, 5, 8, DDP_AS_FLOAT, 400, 2.1075},
    {"localsgd", 0, 10, 4, DDP_AS_FLOAT, 400, 2.2159},
    {"localsgd", 0, 20, 4, DDP_AS_FLOAT, 400, 2.3072},
    {"localsgd", 0, 50, 4, DDP_AS_FLOAT, 400, 2.3700},
    {"osp", 0, 0, 4, DDP_AS_FLOAT, 400, 2.0663},
    /* gpt, rate 0.032, 2 seeds */
    {"sparseloco", 0, 2, 4, DDP_AS_FLOAT, 400, 2.1484},
    /* gpt, rate 0.016, 2 seeds */
    {"sparseloco", 0, 5, 4, DDP_AS_FLOAT, 400, 2.2848},
    /* gpt, rate 0.008, 2 seeds */
    {"sparseloco", 0, 10, 4, DDP_AS_FLOAT, 400, 2.3905},
    {"sparseloco", 0, 20, 4, DDP_AS_FLOAT, 400, 2.4577},
    {"sparseloco", 0, 50, 4, DDP_AS_FLOAT, 400, 2.5422},
    {"ssgd", 0, 0, 2, DDP_AS_FLOAT, 400, 2.2441},
    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 400, 2.0487},
    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 2000, 1.6149},
    {"ssgd", 0, 0, 8, DDP_AS_FLOAT, 400, 1.9781},
};
