/* Model of how callers of blocking calls and the comm thread pass the engine to each other: ddp__engine_run
 * (src/comm/submit.c) and ddp__park (src/comm/thread.c). spin tries every order of their steps.
 *
 *   spin -a park.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan
 *
 * CALLERS threads make CALLS calls each. Then all are idle, and the comm thread must run another round, which sends
 * heartbeats. Then the engine closes.
 *
 * Checked properties: only one thread at a time is in the engine; every call returns; the idle comm thread runs; closing ends it.
 *
 * Seeded faults: FORGET (a caller that returns the engine signals only if a message waits), BARGE (the comm thread does not
 * check whether a caller drives), HASTY (a caller drives although the comm thread is awake).
 *
 * A wait with a time-out may end at any time. The wait of the wire (ddp__sleep) has a time-out, so it is omitted. */
#ifndef CALLERS
#define CALLERS 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#define NOT_PARKED   0
#define FOR_A_MOMENT 1
#define UNTIL_SIGNAL 2

byte parked, inside, idle, messages;
bool driven, stop, waits, open_ended, ended;
bool pending[CALLERS];
byte rounds_when_idle;

#define NEEDED (stop || messages > 0)

/* A round completes any of the messages, or none because the peers have not answered. */
inline run_round()
{
    inside++;
    assert(inside == 1);
    if
    :: atomic { pending[0] -> pending[0] = false; messages-- }
    :: atomic { pending[CALLERS - 1] -> pending[CALLERS - 1] = false; messages-- }
    :: true
    fi;
    inside--
}

inline signal_park() { waits = false }

/* ddp__notify */
inline notify()
{
    if
    :: parked != NOT_PARKED && !driven -> signal_park()
    :: else
    fi
}

active proctype comm()
{
    bool early;

    do
    :: run_round();
       if
       :: idle == CALLERS && rounds_when_idle == 0 -> rounds_when_idle = 1
       :: else
       fi;
       if
       :: stop -> break
       :: else
       fi;
       /* ddp__park: each iteration of this loop holds the lock once */
       do
       :: atomic {
              if
              :: early = true
              :: early = false
              fi;
              if
#ifdef BARGE
              :: early && !NEEDED ->
#else
              :: driven || (early && !NEEDED) ->
#endif
                 open_ended = driven;
                 parked = (driven -> UNTIL_SIGNAL : FOR_A_MOMENT);
                 waits = true
              :: else ->
                 parked = NOT_PARKED;
                 break
              fi
          };
          if
          :: !waits
          :: waits && !open_ended -> waits = false
          fi
       od
    od;
    ended = true
}

active [CALLERS] proctype caller()
{
    byte me = _pid - 1, calls;
    bool drives;

    do
    :: calls == CALLS -> break
    :: else ->
       calls++;
       atomic { /* the start of ddp__engine_run */
#ifdef HASTY
           drives = !driven && !NEEDED;
#else
           drives = parked != NOT_PARKED && !driven && !NEEDED;
#endif
           if
           :: drives -> driven = true
           :: else
           fi
       };
       atomic { /* ddp__engine_submit */
           pending[me] = true;
           messages++;
           notify()
       };
       if
       :: drives ->
          do
          :: pending[me] -> run_round()
          :: true -> break /* the message is done, or takes longer than a caller may drive */
          od;
          atomic {
              driven = false;
#ifdef FORGET
              if
              :: NEEDED -> signal_park()
#else
              if
              :: NEEDED || parked == UNTIL_SIGNAL -> signal_park()
#endif
              :: else
              fi
          }
       :: else
       fi;
       !pending[me] /* ddp__engine_wait */
    od;
    atomic { idle++ }
}

active proctype owner()
{
    idle == CALLERS;
    rounds_when_idle == 1; /* heartbeats are sent */
    atomic { /* ddp__engine_close */
        stop = true;
        notify()
    };
    ended
}
