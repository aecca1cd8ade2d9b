/* Checks the result of a rendezvous. Include after meet.h and cmocka.h. */
#ifndef MEET_CHECK_H
#define MEET_CHECK_H

#include "wire/meet.h"

static DDP__UNUSED void assert_says(const meet_rank *m, ddp_status status, const char *part)
{
    if (m->status != status || !strstr(m->err.msg, part))
        fail_msg("rank %d: status %d, '%s'; expected status %d with '%s'", m->how.wire.rank, (int)m->status,
                 m->err.msg, (int)status, part);
}

static DDP__UNUSED void assert_all_met(meet_rank *m, int count)
{
    int r;
    for (r = 0; r < count; r++) {
        assert_says(&m[r], DDP_OK, "");
        assert_non_null(m[r].wire);
    }
    for (r = 0; r < count; r++) m[r].wire->table->close(m[r].wire);
}

/* Sends one byte in each direction between every pair. */
static DDP__UNUSED void assert_pairs_are_right(meet_rank *m, int world)
{
    int a, b;
    for (a = 0; a < world; a++) {
        for (b = 0; b < world; b++) {
            unsigned char c = (unsigned char)(a * 16 + b);
            struct iovec iov;
            iov.iov_base = &c;
            iov.iov_len = 1;
            if (a != b) assert_int_equal(m[a].wire->table->send(m[a].wire, b, &iov, 1), 1);
        }
    }
    for (a = 0; a < world; a++) {
        for (b = 0; b < world; b++) {
            unsigned char c = 0;
            double end = ddp_now() + 60;
            if (a == b) continue;
            while (m[a].wire->table->recv(m[a].wire, b, &c, 1) == 0 && ddp_now() < end)
                m[a].wire->table->wait(m[a].wire, NULL, NULL, end);
            assert_int_equal(c, b * 16 + a);
        }
    }
}

#endif /* MEET_CHECK_H */
