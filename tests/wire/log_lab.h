/* Captures the log lines of the ranks of a rendezvous. Include after dreamddp.h and cmocka.h. */
#ifndef LOG_LAB_H
#define LOG_LAB_H

#include "wire/meet.h"
#include "wire/meet_check.h"

static void keep_lines(void *user, ddp_log_level level, const char *line)
{
    char *text = (char *)user;
    size_t n = strlen(text);
    (void)level;
    snprintf(text + n, 8000 - n, "%s\n", line);
}

static void listen_in(meet_rank *m, char *text)
{
    text[0] = 0;
    m->how.wire.log.fn = keep_lines;
    m->how.wire.log.user = text;
    m->how.wire.log.level = DDP_LOG_INFO;
}

#endif /* LOG_LAB_H */
