/* The cost of an average over a link, from the rate and the delay of the link. */
#include "profile/average.h"

ddp_link ddp_link_average(double rate, double delay_s, int workers)
{
    ddp_link k;

    k.beta_s = 2.0 * (workers - 1) / workers / rate;
    k.alpha_s = workers > 1 ? 2 * delay_s : 0;
    return k;
}

void ddp__lines_derive(ddp_link direct, int members, ddp_link line[DDP__LINES])
{
    line[DDP__LINE_DIRECT] = line[DDP__LINE_FULL] = line[DDP__LINE_RING] = direct;
    line[DDP__LINE_FULL].alpha_s = direct.alpha_s / 2;
    line[DDP__LINE_FULL].beta_s = direct.beta_s * members / 2;
    line[DDP__LINE_RING].alpha_s = direct.alpha_s * (members > 2 ? members - 1 : 1);
}

ddp_link ddp__line_of(const ddp_link line[DDP__LINES], char letter)
{
    ddp_link gather = line[DDP__LINE_DIRECT]; /* a size is the size of an all-reduce that takes as long */

    gather.alpha_s = line[DDP__LINE_FULL].alpha_s;
    if (letter == 'f') return line[DDP__LINE_FULL];
    if (letter == 'r') return line[DDP__LINE_RING];
    return letter == 'p' ? gather : line[DDP__LINE_DIRECT];
}
