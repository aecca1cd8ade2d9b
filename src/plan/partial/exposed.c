/* Computes the exposed time of a plan whose messages share a link. */
#include "plan/partial/exposed.h"

/* Returns the exposed seconds of step h. With cost window, layers near the input have the higher priority. */
static double ddp__step_exposed(const ddp_profile *p, const ddp_plan *plan, int h, const ddp__message_cost *m,
                                int width, ddp__shared_message *x)
{
    const int window = plan->cost == DDP_COST_WINDOW;
    ddp__shared_link link;
    double backward = 0, forward = 0, end;

    ddp__shared_start(&link, x, plan->layers, width);
    for (int l = plan->layers - 1; l >= 0; l--) {
        backward += p->backward_s[l];
        if (plan->step_of[l] == h && m[l].takes > 0)
            ddp__shared_send(&link, l, &m[l], backward, -1, window ? l : 0);
    }
    end = backward;
    for (int l = 0; l < plan->layers; l++) {
        end = fmax(end, ddp__shared_arrival(&link, l) - forward);
        forward += window && p->forward_s ? p->forward_s[l] : 0;
    }
    return end - backward;
}

double ddp__plan_exposed(const ddp_profile *p, const ddp_plan *plan, const ddp__message_cost *message,
                         int width, ddp__shared_message *x)
{
    double exposed = 0;

    for (int h = 0; h < plan->period; h++) exposed += ddp__step_exposed(p, plan, h, message, width, x);
    return exposed;
}
