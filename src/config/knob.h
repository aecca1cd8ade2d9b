/* One row of the table of settings: a field of ddp_config by name, as text and as a number. */
#pragma once

#include "base/core.h"
#include "config/settings.h"

typedef enum ddp__kind { /* not a number, whole numbers, real numbers */
                         DDP__K_TEXT,
                         DDP__K_PAIR,
                         DDP__K_FLAG,
                         DDP__K_WHOLE,
                         DDP__K_CHOICE,
                         DDP__K_WIRE,
                         DDP__K_STRATEGY,
                         DDP__K_SERVERS,
                         DDP__K_REAL,
                         DDP__K_DEFER
} ddp__kind;

enum {
    DDP__ALL = 1,       /* must be equal on all ranks */
    DDP__MATCH = 3,     /* and is compared as a number by ddp__settings */
    DDP__JOINED = 7,    /* and is compared with a joining worker's */
    DDP__FILL = 8,      /* 0 becomes the default before the strategy settles */
    DDP__ZERO = 16,     /* text 0 is a value, stored as -1 */
    DDP__LAUNCHED = 32, /* read by ddp__env_read, with the launchers' variables */
    DDP__KEYS = 64      /* variables of keys are used only if the program has set none of them */
};

typedef struct ddp__knob {
    const char *member;   /* "server.staleness" */
    const char *name;     /* "staleness": for ddp_config_set, Python keywords and messages */
    const char *variable; /* "DREAMDDP_STALENESS". The flag of a program is "--staleness". */
    ddp__kind kind;
    unsigned flags;
    size_t at, size;
    double least, most;               /* in addition to the default; most 0: no limit */
    const char *unit, *preset, *help; /* unit of servers, defer and pairs: the accepted values */
    const char *const *names;         /* of a choice, by value; names[0] is the default */
} ddp__knob;

#define DDP__ABOVE_0 DBL_MIN /* lower limit of a range without 0 */
#define DDP__BELOW_1 (1 - DBL_EPSILON)

/* Stores the value of a name in the enum at out. Returns 0 if the name is unknown. */
DDP_LIB int ddp__chosen(const char *const *names, const char *name, void *out);

/* Address of the field in c. A text field has the number 0. */
DDP_LIB void *ddp__knob_at(const ddp__knob *r, const ddp_config *c);
DDP_LIB int ddp__knob_unset(const ddp__knob *r, const ddp_config *c);
DDP_LIB double ddp__knob_number(const ddp__knob *r, const ddp_config *c);
DDP_LIB int ddp__knob_fits(const ddp__knob *r, double x);

/* Sets the field from text, which a text field borrows. "" is the default. said: the name in errors, of the
 * setting or of its variable. */
DDP_LIB ddp_status ddp__knob_set(const ddp__strategies *list, const ddp__knob *r, ddp_config *c,
                                 const char *said, const char *text, ddp_error *err);
/* The error for a value: "period=-3 is out of range: choose 1 to 1000000 steps (default: 5)". */
DDP_LIB ddp_status ddp__knob_refuse(const ddp__strategies *list, const ddp__knob *r, const char *said,
                                    char between, const char *text, const char *fault, ddp_error *err);

/* For ddp_config_describe: the default, the accepted values, the value of c in the form that ddp__knob_set
 * reads, the chapter, and the flag of programs. */
DDP_LIB const char *ddp__knob_preset(const ddp__strategies *list, const ddp__knob *r);
DDP_LIB void ddp__knob_values(const ddp__strategies *list, const ddp__knob *r, char *out, size_t room);
DDP_LIB void ddp__knob_text(const ddp__strategies *list, const ddp__knob *r, const ddp_config *c, char *out,
                            size_t room);
DDP_LIB void ddp__knob_chapter(const ddp__knob *r, char *out, size_t room);
DDP_LIB void ddp__knob_flag(const ddp__knob *r, char *out, size_t room);
