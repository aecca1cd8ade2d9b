/* The part of a context that belongs to src/measure. */
#pragma once

#include "context/context.h"
#include "device/device.h"

enum { DDP__NOTES = 64 };

/* What a rank tells the others every few periods. */
typedef struct ddp__pace_word {
    double compute_s; /* mean of its steps since the last one, without waits */
    double lr;        /* of this step */
    double present;   /* 1; 0: it is lost */
} ddp__pace_word;

struct ddp__measure {
    ddp_link link[2];   /* measured */
    double gap_s[2];    /* of either: see ddp_profile; 0 where nothing was measured */
    ddp_linkfit fit[2]; /* follows each link while training */
    double mean_layer_bytes;
    int follows;          /* the plan came from clocks */
    double compute_sum_s; /* of this rank, waits left out */
    long compute_steps;
    ddp__pace_word *pace;      /* [world] */
    double *pace_sorted;       /* [world] room for their times */
    long pace_ticket;          /* the exchange of these, or -1 */
    double pace_told;          /* the ratio that was logged last; 0 = nobody is slow */
    int pace_place;            /* in the team, of whom that was */
    ddp_note note[DDP__NOTES]; /* ring */
    long notes;                /* ever */
    uint64_t noted_live;       /* the workers at the last look; 0 = none yet */
    ddp_span *merge;           /* [merge_room] scratch of the hidden share */
    ddp__op_span *op_scratch;  /* [op_room] for statistics and traces */
    int op_room, merge_room;
    double step_begin, sum_step_s, sum_wait_s; /* the first: end of the previous step */
};

/* part.c. open: 0: out of memory. start: when the layers are known. */
DDP_LIB int ddp__measure_open(ddp_ctx *d);
DDP_LIB ddp_status ddp__measure_start(ddp_ctx *d, ddp_error *err);
/* 1: the plan came from clocks: the links are followed while training. */
DDP_LIB int ddp__follows(const ddp_ctx *d);
DDP_LIB void ddp__follows_set(ddp_ctx *d, int follows);
DDP_LIB ddp_link ddp__link_followed(const ddp_ctx *d, int link);
DDP_LIB double ddp__mean_layer_bytes(const ddp_ctx *d);
/* Operations of link 0 that began since then, in *out until the next call; how many. */
DDP_LIB int ddp__operations_since(ddp_ctx *d, double begun, const ddp__op_span **out);
