/* Measures links with the fewest transfers, for tests that do not depend on their rates. Include it once,
 * after the headers of the library. Its link_probe.c then replaces the one in the archive. */
#ifndef QUICK_METER_H
#define QUICK_METER_H

#undef DDP__METER_AGREE
#undef DDP__PROBE_LAST_S
#define DDP__METER_AGREE  1e9
#define DDP__PROBE_LAST_S 1e-6
#include "measure/link_probe.c"

#endif /* QUICK_METER_H */
