/* Computes when messages leave a link and arrive. */
#include "plan/link_clock.h"

double ddp__link_take(double *free_at, double ready, double takes)
{
    double begin = *free_at > ready ? *free_at : ready;
    *free_at = begin + takes;
    return begin;
}

int ddp__link_first(int links, const double *free_at, double ready, const double *takes, const double *alpha)
{
    double arrives, first = DBL_MAX;
    int best = 0;
    for (int k = 0; k < links; k++) {
        arrives = free_at[k];
        ddp__link_take(&arrives, ready, takes[k]);
        arrives += alpha[k];
        if (arrives < first) {
            first = arrives;
            best = k;
        }
    }
    return best;
}

/* ---- a link that messages share ---- */

void ddp__shared_start(ddp__shared_link *k, ddp__shared_message *message, int n, int width)
{
    k->width = width < 1 ? 1 : width < (int)DDP__LINK_WIDTH ? width : (int)DDP__LINK_WIDTH;
    k->flights = 0;
    k->first = k->last = -1;
    k->now = 0;
    k->message = message;
    for (int i = 0; i < n; i++) message[i].arrives = 0;
}

void ddp__shared_send(ddp__shared_link *k, int m, const ddp__message_cost *cost, double ready, int after,
                      int priority)
{
    ddp__shared_message *x = &k->message[m];

    x->cost = *cost;
    x->ready = ready;
    x->arrives = DBL_MAX;
    x->after = after;
    x->priority = priority;
    x->next = -1;
    x->sent = 0;
    if (k->last >= 0)
        k->message[k->last].next = m;
    else
        k->first = m;
    k->last = m;
}

/* Removes messages that have arrived, and begins others. */
static void ddp__shared_begin(ddp__shared_link *k)
{
    int left = 0;

    for (int i = 0; i < k->flights; i++)
        if (k->message[k->flight[i]].arrives > k->now) k->flight[left++] = k->flight[i];
    k->flights = left;
    while (k->first >= 0 && k->flights < k->width) {
        const ddp__shared_message *x = &k->message[k->first];
        if (x->ready > k->now || (x->after >= 0 && k->message[x->after].arrives > k->now)) return;
        k->flight[k->flights++] = k->first;
        k->first = x->next;
        if (k->first < 0) k->last = -1;
    }
}

/* The time from which the next part of a message in flight can leave, or DBL_MAX if all have left.
 * Contributions leave before results. */
static double ddp__shared_leaves(const ddp__shared_message *x)
{
    const int parts = x->cost.parts;

    if (x->sent < parts) return 0;
    return x->cost.halves && x->sent < 2 * parts ? x->result[x->sent - parts] : DBL_MAX;
}

static void ddp__shared_part(ddp__shared_link *k, ddp__shared_message *x)
{
    const int parts = x->cost.parts, halves = x->cost.halves ? 2 : 1;
    const double delay = x->cost.alpha_s / halves;

    k->now += x->cost.takes / (parts * halves);
    if (x->sent < parts) x->result[x->sent] = k->now + delay;
    if (++x->sent == parts * halves) x->arrives = k->now + delay;
}

/* Advances to the time at which something can happen. */
static void ddp__shared_idle(ddp__shared_link *k)
{
    double soon = DBL_MAX;

    for (int i = 0; i < k->flights; i++) {
        const ddp__shared_message *x = &k->message[k->flight[i]];
        soon = fmin(soon, fmin(ddp__shared_leaves(x), x->arrives));
    }
    if (k->first >= 0) {
        const ddp__shared_message *x = &k->message[k->first];
        if (x->ready > k->now) soon = fmin(soon, x->ready);
    }
    k->now = soon;
}

/* Sends the next part, or waits for one. */
static void ddp__shared_step(ddp__shared_link *k)
{
    ddp__shared_message *best = NULL;

    ddp__shared_begin(k);
    for (int i = 0; i < k->flights; i++) {
        ddp__shared_message *x = &k->message[k->flight[i]];
        if (ddp__shared_leaves(x) <= k->now && (!best || x->priority < best->priority)) best = x;
    }
    if (best)
        ddp__shared_part(k, best);
    else
        ddp__shared_idle(k);
}

double ddp__shared_arrival(ddp__shared_link *k, int m)
{
    while (k->message[m].arrives > k->now) ddp__shared_step(k);
    ddp__shared_begin(k); /* message m is no longer in flight, so it can be sent again */
    return k->message[m].arrives;
}
