/* [asan] int8 blocks on the wire: bit-identical to a plain reference, the quantisation residual, training on
 * every transport, checkpoints. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "compress/wire_lab.h"
#include "exchange.h"

enum { BLOCK = 64, MOST = 100003 };

/* ---- reference ---- */

/* Quantises a block with one division per value, in place. */
static void plain_block(float *x, size_t n)
{
    float largest = 0, s;

    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
    s = (float)((double)largest / 127);
    while ((float)((double)s * 127) < largest) s = nextafterf(s, INFINITY);
    while (s > 0 && (float)((double)nextafterf(s, 0) * 127) >= largest) s = nextafterf(s, 0);
    if (s < FLT_MIN) s = 0;
    for (size_t i = 0; i < n; i++) {
        double q = s > 0 ? round((double)x[i] / (double)s) : 0;
        x[i] = (float)(q * (double)s) + 0.0f;
    }
}

static void plain_round(float *x, size_t n)
{
    for (size_t at = 0; at < n; at += BLOCK) plain_block(x + at, n - at < BLOCK ? n - at : BLOCK);
}

/* The quantised mean of quantised contributions. rest[r] receives the residual of the result in rank r's
 * segment. */
static void plain_mean(float *const *x, float *const *rest, int world, size_t n, float scale)
{
    const size_t w = (size_t)world;
    float *sum = (float *)malloc((n + 1) * sizeof *sum);

    for (int r = 0; r < world; r++) {
        plain_round(x[r], n);
        for (size_t i = 0; i < n; i++) sum[i] = r ? sum[i] + x[r][i] : x[r][i];
    }
    for (size_t i = 0; i < n; i++) x[0][i] = sum[i] = sum[i] * scale;
    plain_round(x[0], n);
    for (size_t r = 0; r < w; r++) {
        size_t from = n / w * r + n % w * r / w, to = n / w * (r + 1) + n % w * (r + 1) / w;
        from -= from % BLOCK;
        if (to < n) to -= to % BLOCK;
        for (size_t i = from; rest && i < to; i++) rest[r][i] += (sum[i] - x[0][i]) / scale;
        if (r) memcpy(x[r], x[0], n * sizeof **x);
    }
    free(sum);
}

/* ---- all-reduce ---- */

typedef struct int8_case {
    size_t n;
    int pieces, tiny;
    float scale;
} int8_case;

static float int8_value(const int8_case *c, int rank, size_t i)
{
    float x = net_value(rank, i, 9);

    if (i / BLOCK % 5 == 3) return 0; /* one block of zeros */
    return c->tiny ? x * 3e-43f : x;  /* with denormals */
}

static void int8_once(net_rank *me, void *user)
{
    const int8_case *c = (const int8_case *)user;
    float *data = (float *)calloc(c->n + (size_t)c->pieces + 1, sizeof *data), *want[5], *rest[5];
    float *own_rest = (float *)calloc(c->n + 1, sizeof *own_rest);
    ddp_piece pieces[8];
    ddp__net_stats stats;
    ddp_message m;
    size_t i = 0;

    for (int r = 0; r < me->world; r++) {
        want[r] = (float *)malloc((c->n + 1) * sizeof(float));
        rest[r] = (float *)malloc((c->n + 1) * sizeof(float));
        for (i = 0; i < c->n; i++) {
            want[r][i] = int8_value(c, r, i);
            rest[r][i] = 1;
        }
    }
    plain_mean(want, rest, me->world, c->n, c->scale);
    cut(pieces, c->pieces, data, c->n);
    i = 0;
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++) {
            pieces[p].data[k] = int8_value(c, me->rank, i);
            own_rest[i] = 1;
        }
    net_message(&m, DDP_ALL_REDUCE, pieces, c->pieces);
    m.scale = c->scale;
    m.coding = DDP_AS_INT8;
    m.residual = own_rest;
    net_ok(me, net_do(me, &m));
    i = 0;
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++)
            if (memcmp(&want[0][i], &pieces[p].data[k], sizeof(float)))
                net_fail(me, "n %lu value %lu: %a, not %a", (unsigned long)c->n, (unsigned long)i,
                         (double)pieces[p].data[k], (double)want[0][i]);
    if (memcmp(own_rest, rest[me->rank], c->n * sizeof(float)))
        net_fail(me, "n %lu: the residual differs", (unsigned long)c->n);
    ddp__engine_stats(me->engine, &stats);
    /* contributions and results: at most 1 + 1/16 bytes per value, plus a scale for the last block of each
     * segment */
    if ((double)stats.payload_sent > 2 * 1.0625 * (double)c->n * (me->world - 1) + 40 * me->world ||
        stats.algorithm != 'd')
        net_fail(me, "n %lu: %ld bytes; algorithm %c", (unsigned long)c->n, (long)stats.payload_sent,
                 stats.algorithm);
    for (int r = 0; r < me->world; r++) {
        free(want[r]);
        free(rest[r]);
    }
    free(own_rest);
    free(data);
}

static void int8_setup(net_setup *set, int world, int tcp)
{
    net_defaults(set, world);
    set->tcp = tcp;
    set->cfg.coding = DDP_AS_INT8;
    set->cfg.coder = ddp__blocks_coder();
}

static void sums_of_blocks_match_a_plain_loop(void **state)
{
    static const size_t sizes[] = {0, 1, 3, 64, 65, 1000, MOST};
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 2; world <= 5; world++)
            for (int s = 0; s < 14; s++) {
                int8_case c;
                net_setup set;
                c.n = sizes[s % 7];
                if (c.n == MOST && world % 2) c.n = 20011;
                c.pieces = s % 3 == 1 ? 7 : 1;
                c.scale = s % 2 ? 1.0f / (float)world : 1;
                c.tiny = s >= 10;
                int8_setup(&set, world, tcp);
                set.cfg.check_writes = s == 4;
                set.cfg.max_count = MOST;
                if (c.n == 1000) set.cfg.chunk_bytes = 64; /* small chunks become one block */
                if (s == 6) set.rate = 1e8;
                if (s == 12) set.delay_s = 0.001;
                set.cfg.deterministic = s % 2;
                if (s % 2 == 0) set.cfg.ring_bytes = 1; /* but never a ring */
                net_run(&set, int8_once, &c);
            }
}

/* Messages in blocks and floats alternate, many in flight. */
static void blocks_and_floats(net_rank *me, void *user)
{
    enum { MESSAGES = 40, N = 5003 };
    float *data = (float *)calloc((size_t)MESSAGES * N, sizeof *data), *want[3];
    long ticket[MESSAGES];
    ddp_piece piece;
    ddp_message m;

    (void)user;
    for (int i = 0; i < MESSAGES; i++) {
        piece.data = data + (size_t)i * N;
        piece.count = N;
        for (size_t k = 0; k < N; k++) piece.data[k] = net_value(me->rank, k, (unsigned)i);
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        m.coding = i % 2 ? DDP_AS_INT8 : DDP_AS_FLOAT;
        m.priority = i * 7 % 5;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[i], &me->err));
    }
    for (int r = 0; r < 3; r++) want[r] = (float *)malloc(N * sizeof(float));
    for (int i = 0; i < MESSAGES; i++) {
        net_ok(me, ddp__engine_wait(me->engine, ticket[i], &me->err));
        for (int r = 0; r < 3; r++)
            for (size_t k = 0; k < N; k++) want[r][k] = net_value(r, k, (unsigned)i);
        if (i % 2)
            plain_mean(want, NULL, 3, N, 1);
        else
            for (size_t k = 0; k < N; k++) want[0][k] = want[0][k] + want[1][k] + want[2][k];
        if (memcmp(want[0], data + (size_t)i * N, N * sizeof(float))) net_fail(me, "message %d", i);
    }
    for (int r = 0; r < 3; r++) free(want[r]);
    free(data);
}

static void blocks_and_floats_are_in_flight_together(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        net_setup set;
        int8_setup(&set, 3, kind % 2);
        set.cfg.chunk_bytes = 1024;
        if (kind / 2) set.rate = 5e7;
        net_run(&set, blocks_and_floats, NULL);
    }
}

static void one_value(net_rank *me, void *user)
{
    float data[600], bad = *(float *)user;
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    memset(data, 0, sizeof data);
    if (me->rank == 1) data[5] = bad;
    piece.data = data;
    piece.count = 600;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.coding = me->rank == 0 && bad == 0 ? DDP_AS_FLOAT : DDP_AS_INT8;
    s = net_do(me, &m);
    if (bad == 0 && (s != DDP_MISMATCH || !strstr(me->err.msg, "averages in int8 blocks") ||
                     !strstr(me->err.msg, "averages layer")))
        net_fail(me, "status %d, %.200s", (int)s, me->err.msg);
    if (bad != 0 && (s != DDP_NUMERIC || !strstr(me->err.msg, "all-reduce of layer h.0.mlp") ||
                     !strstr(me->err.msg, "value 5 is inf")))
        net_fail(me, "status %d, %.200s", (int)s, me->err.msg);
}

static void unquantisable_values_and_different_wires_fail_on_all_ranks(void **state)
{
    float bad;
    net_setup set;
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int i = 0; i < 2; i++) {
            int8_setup(&set, 2, tcp);
            bad = i ? INFINITY : 0;
            net_run(&set, one_value, &bad);
        }
}

static void int8_frames_declare_their_coding(void **state)
{
    unsigned char head[DDP__FRAME_BYTES];
    ddp__frame f, g;
    (void)state;
    memset(&f, 0, sizeof f);
    memset(&g, 0, sizeof g);
    f.type = DDP__FRAME_PART;
    f.coding = (int)DDP_AS_INT8;
    for (size_t n = 1; n < 300; n++) {
        f.length = (uint32_t)ddp__frame_payload(f.coding, n);
        assert_int_equal(f.length, n + (n + 63) / 64 * 4);
        assert_int_equal(ddp__frame_values(&f), n);
    }
    for (f.length = 68; f.length <= 72; f.length++) /* a scale without values */
        assert_true((ddp__frame_values(&f) == SIZE_MAX) == (f.length > 68));
    ddp__frame_encode(&f, head);
    assert_int_equal(ddp__frame_decode(head, &g), 1);
    assert_memory_equal(&f, &g, sizeof f);
}

/* ---- public calls ---- */

static int call_int8(ddp_ctx *d, void *user)
{
    float x[2] = {1, 1.001f}, y[2] = {1, 1.001f};
    int int8 = *(int *)user, bad;

    bad = ddp_all_reduce(d, x, 2, 1);
    if (bad || x[1] != 1.001f + 1.001f) return 99;
    bad = exchange(d, DDP_ALL_REDUCE, coded(DDP_AS_INT8), y, 2, 1, 0);
    if (int8 && (bad || y[0] == x[0] || y[0] != y[1])) return 99; /* one quantisation level */
    if (!int8 &&
        (bad != (int)DDP_ARG || !strstr(ddp_last_error(d)->msg, "opened for bfloat16; open it with wire = "
                                                                "DDP_WIRE_INT8")))
        return 99;
    return bad;
}

static void plain_sums_stay_exact(void **state)
{
    ddp_config cfg;
    ddp_error err;
    (void)state;
    for (int int8 = 0; int8 < 2; int8++) {
        memset(&cfg, 0, sizeof cfg);
        cfg.no_env = 1;
        cfg.world = 2;
        cfg.transport = DDP_THREADS;
        cfg.wire = int8 ? DDP_WIRE_INT8 : DDP_WIRE_BF16;
        assert_int_equal(ddp_launch(&cfg, call_int8, &int8, &err), int8 ? DDP_OK : DDP_ARG);
    }
}

/* ---- strategies, compared with a plain loop ---- */

enum { HAND = 1300, HAND_STEPS = 12 };

typedef struct hand {
    ddp_config cfg;
    int break_at; /* step in which a gradient is not finite, or 0 for never */
    float w[3][HAND];
} hand;

static float hand_gradient(float w, int rank, size_t i, int step)
{
    return 0.1f * w + net_value(rank, i, (unsigned)step) * (i % 64 == 7 ? 1e-2f : 1e-6f);
}

/* Three layers. The middle one has two blocks with a buffer between them. */
static int hand_worker(ddp_ctx *d, void *user)
{
    static const size_t from[] = {0, 100, 170, 900, HAND};
    hand *h = (hand *)user;
    float *w = (float *)calloc(2 * HAND, sizeof *w), *g = w + HAND, buffer[3] = {0, 0, 0};
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_block block[3];
    ddp_layer layer[3];
    int bad = 0;

    memset(layer, 0, sizeof layer);
    memset(block, 0, sizeof block);
    for (int l = 0; l < 4; l++) {
        ddp_layer *to = l == 3 ? &layer[2] : &layer[l];
        if (l == 1 || l == 2) {
            block[2 * l - 2].params = w + from[l];
            block[2 * l - 2].grads = g + from[l];
            block[2 * l - 2].count = from[l + 1] - from[l];
            continue;
        }
        to->params = w + from[l];
        to->grads = g + from[l];
        to->count = from[l + 1] - from[l];
    }
    block[1].params = buffer;
    block[1].count = 3;
    block[1].kind = DDP_BUFFERS;
    layer[1].blocks = block;
    layer[1].block_count = 3;
    for (int i = 0; i < HAND; i++) w[i] = net_value(7, (size_t)i, 1) * 1e-4f;
    for (int l = 0; !bad && l < 3; l++) bad = ddp_add_layer(d, &layer[l]);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (int step = 0; !bad && step < HAND_STEPS; step++) {
        for (int l = 0; !bad && l < 3; l++) bad = ddp_forward_begin(d, l);
        for (int i = 0; i < HAND; i++) g[i] = hand_gradient(w[i], ddp_rank(d), (size_t)i, step);
        if (h->break_at && step == h->break_at && ddp_rank(d) == 1) g[101] = NAN;
        /* would round to 0 in one block with the large values */
        buffer[0] = 1e-30f * (float)(ddp_rank(d) + 1);
        buffer[1] = 1000;
        for (int l = 2; !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    if (!bad && h->cfg.strategy == DDP_LOCALSGD &&
        (buffer[0] != (1e-30f + 2e-30f + 3e-30f) * (1.0f / 3) || buffer[1] != 1000))
        bad = 99;
    memcpy(h->w[ddp_rank(d)], w, HAND * sizeof *w);
    free(w);
    return bad;
}

/* Applies the messages of a strategy to values from..to, for gradients with the last layer first. */
static void hand_plain(ddp_strategy strategy, int period, float (*w)[HAND])
{
    static const size_t from[] = {0, 100, 900, HAND};
    static float g[3][HAND], rest[3][HAND], base[HAND], x[3][HAND];
    float *term[3], *keep[3];

    memset(rest, 0, sizeof rest);
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < HAND; i++) w[r][i] = base[i] = net_value(7, (size_t)i, 1) * 1e-4f;
    for (int step = 0; step < HAND_STEPS; step++) {
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < HAND; i++) g[r][i] = hand_gradient(w[r][i], r, (size_t)i, step);
        if (strategy == DDP_SSGD) { /* one message with layers 2, 1, 0 */
            for (int r = 0; r < 3; r++) {
                size_t n = 0;
                for (int l = 2; l >= 0; l--)
                    for (size_t i = from[l]; i < from[l + 1]; i++) x[r][n++] = g[r][i];
                for (size_t i = 0; i < HAND; i++) rest[r][i] += x[r][i];
                memcpy(x[r], rest[r], sizeof x[r]);
                plain_round(x[r], HAND);
                for (size_t i = 0; i < HAND; i++) rest[r][i] -= x[r][i];
                term[r] = x[r];
                keep[r] = rest[r];
            }
            plain_mean(term, keep, 3, HAND, 1.0f / 3);
            for (int r = 0; r < 3; r++) {
                size_t n = 0;
                for (int l = 2; l >= 0; l--)
                    for (size_t i = from[l]; i < from[l + 1]; i++) g[r][i] = x[r][n++];
            }
        }
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < HAND; i++) w[r][i] -= 0.1f * g[r][i];
        if (strategy == DDP_SSGD || (step + 1) % period) continue;
        for (int l = 0; l < 3; l++) {
            size_t n = from[l + 1] - from[l];
            for (int r = 0; r < 3; r++) {
                term[r] = x[r] + from[l];
                keep[r] = rest[r] + from[l];
                for (size_t i = 0; i < n; i++) keep[r][i] += w[r][from[l] + i] - base[from[l] + i];
                memcpy(term[r], keep[r], n * sizeof(float));
                plain_round(term[r], n);
                for (size_t i = 0; i < n; i++) keep[r][i] -= term[r][i];
            }
            plain_mean(term, keep, 3, n, 1.0f / 3);
            for (size_t i = from[l]; i < from[l + 1]; i++) {
                base[i] += x[0][i];
                for (int r = 0; r < 3; r++) w[r][i] = base[i];
            }
        }
    }
}

static void strategies_with_int8_match_a_plain_loop(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD};
    static float want[3][HAND];
    hand *h = (hand *)lab_share(sizeof *h);
    ddp_error err;
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int tcp = 0; tcp < 2; tcp++) {
            memset(h, 0, sizeof *h);
            h->cfg.no_env = 1;
            h->cfg.world = 3;
            h->cfg.transport = tcp ? DDP_TCP : DDP_THREADS;
            h->cfg.deterministic = 1;
            h->cfg.strategy = strategies[s];
            h->cfg.period = 3;
            h->cfg.wire = DDP_WIRE_INT8;
            h->cfg.timeout.peer_s = 60;
            if (ddp_launch(&h->cfg, hand_worker, h, &err)) fail_msg("%s", err.msg);
            hand_plain(strategies[s] == DDP_WFBP ? DDP_SSGD : strategies[s], 3, want);
            for (int r = 0; r < 3; r++) assert_memory_equal(h->w[r], want[0], sizeof want[0]);
        }
    for (int s = 0; s < 3; s += 2) {
        h->break_at = 4;
        h->cfg.debug.no_finite_check = 1;
        h->cfg.strategy = strategies[s];
        assert_int_equal(ddp_launch(&h->cfg, hand_worker, h, &err), DDP_NUMERIC);
        assert_non_null(
            strstr(err.msg, s ? "cannot encode the parameter delta of layer 1 as int8" : "as int8 blocks"));
    }
    munmap(h, sizeof *h);
}

/* ---- training ---- */

static void int8_training_is_bit_identical_on_every_transport(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP, DDP_ENP};
    lab first, other, exact;
    (void)state;
    for (int s = 0; s < 5; s++) {
        lab_new(&first, 3, strategies[s], 3);
        lab_new(&other, 3, strategies[s], 3);
        lab_new(&exact, 3, strategies[s], 3);
        first.model = other.model = exact.model = s % 2 ? LAB_GPT : LAB_ODD;
        first.rule = other.rule = exact.rule = s == 2 ? LAB_ADAMW : LAB_MOMENTUM;
        first.cfg.average.state = other.cfg.average.state = exact.cfg.average.state = s == 2;
        first.cfg.wire = other.cfg.wire = DDP_WIRE_INT8;
        first.cfg.threads = 2;
        other.cfg.transport = DDP_TCP;
        first.cfg.gradient.bucket_bytes = other.cfg.gradient.bucket_bytes = 5000;
        lab_run(&first);
        lab_run(&other);
        lab_run(&exact);
        for (int r = 0; r < 3; r++) {
            assert_memory_equal(first.params[r], first.params[0], *first.values * sizeof(float));
            assert_memory_equal(first.params[r], other.params[r], *first.values * sizeof(float));
        }
        assert_true(lab_distance(&exact, &first) > 0);
        /* smaller messages lead to another plan */
        assert_true(lab_distance(&exact, &first) < (s >= 3 ? 0.1 : 0.002));
        if (s == 0) /* for the other strategies ddp_sync_all, in float32, is a large part of the traffic */
            assert_true(first.stats[0].bytes_sent < exact.stats[0].bytes_sent / 2);
        lab_free(&first);
        lab_free(&other);
        lab_free(&exact);
    }
}

/* ---- checkpoints ---- */

typedef struct saved {
    ddp_config cfg;
    char folder[64];
    int from, save, to; /* number of steps; save < 0: load first */
    float w[3][HAND];
} saved;

static int saved_worker(ddp_ctx *d, void *user)
{
    saved *x = (saved *)user;
    float *w = (float *)calloc(2 * HAND, sizeof *w), *g = w + HAND;
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    ddp_layer layer[2];
    int bad = 0;

    memset(layer, 0, sizeof layer);
    layer[0].params = w;
    layer[0].grads = g;
    layer[0].count = 500;
    layer[1].params = w + 500;
    layer[1].grads = g + 500;
    layer[1].count = HAND - 500;
    for (int i = 0; i < HAND; i++) w[i] = net_value(7, (size_t)i, 1) * 1e-4f;
    for (int l = 0; !bad && l < 2; l++) bad = ddp_add_layer(d, &layer[l]);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && x->from) bad = ddp_checkpoint_load(d, x->folder, NULL);
    for (int step = x->from; !bad && step < x->to; step++) {
        if (step == x->save) bad = ddp_checkpoint_save(d, x->folder, 1);
        for (int l = 0; !bad && l < 2; l++) bad = ddp_forward_begin(d, l);
        for (int i = 0; i < HAND; i++) g[i] = hand_gradient(w[i], ddp_rank(d), (size_t)i, step);
        for (int l = 1; !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    memcpy(x->w[ddp_rank(d)], w, HAND * sizeof *w);
    free(w);
    return bad;
}

/* Saves within a period. The checkpoint includes each rank's anchor of the parameter deltas and its
 * residual. */
static void int8_training_resumes_bit_identical(void **state)
{
    static const ddp_strategy strategies[] = {DDP_WFBP, DDP_LOCALSGD, DDP_ENP};
    saved *x = (saved *)lab_share(sizeof *x);
    static float want[3][HAND];
    char command[100];
    ddp_error err;
    (void)state;
    for (int s = 0; s < 3; s++) {
        memset(x, 0, sizeof *x);
        x->cfg.no_env = 1;
        x->cfg.world = 3;
        x->cfg.transport = DDP_THREADS;
        x->cfg.deterministic = 1;
        x->cfg.strategy = strategies[s];
        x->cfg.period = 3;
        x->cfg.wire = DDP_WIRE_INT8;
        x->cfg.timeout.peer_s = 60;
        snprintf(x->folder, sizeof x->folder, "/tmp/test_int8_XXXXXX");
        assert_non_null(mkdtemp(x->folder));
        x->save = 7;
        x->to = 12;
        if (ddp_launch(&x->cfg, saved_worker, x, &err)) fail_msg("%s", err.msg);
        memcpy(want, x->w, sizeof want);
        memset(x->w, 0, sizeof x->w);
        x->from = 7;
        x->save = -1;
        if (ddp_launch(&x->cfg, saved_worker, x, &err)) fail_msg("%s", err.msg);
        assert_memory_equal(x->w, want, sizeof want);
        x->cfg.wire = DDP_WIRE_F32;
        assert_int_equal(ddp_launch(&x->cfg, saved_worker, x, &err), DDP_MISMATCH);
        assert_non_null(strstr(err.msg, "wire format"));
        snprintf(command, sizeof command, "rm -r %s", x->folder);
        assert_int_equal(system(command), 0);
    }
    munmap(x, sizeof *x);
}

/* With gradients and parameter deltas in int8 blocks, training reaches the float32 loss. */
static void int8_training_reaches_the_float32_loss(void **state)
{
    double ssgd[2], local[2];
    (void)state;
    ssgd[0] = fit_run(DDP_SSGD, DDP_WIRE_F32);
    ssgd[1] = fit_run(DDP_SSGD, DDP_WIRE_INT8);
    local[0] = fit_run(DDP_LOCALSGD, DDP_WIRE_F32);
    local[1] = fit_run(DDP_LOCALSGD, DDP_WIRE_INT8);
    print_message("    loss over first loss: ssgd %.2g f32, %.2g int8; localsgd %.2g, %.2g\n", ssgd[0],
                  ssgd[1], local[0], local[1]);
    assert_true(ssgd[0] < 0.01 && ssgd[1] < 1.05 * ssgd[0] + 1e-6);
    assert_true(local[0] < 0.01 && local[1] < 1.05 * local[0] + 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_blocks_match_a_plain_loop),
        cmocka_unit_test(blocks_and_floats_are_in_flight_together),
        cmocka_unit_test(unquantisable_values_and_different_wires_fail_on_all_ranks),
        cmocka_unit_test(int8_frames_declare_their_coding),
        cmocka_unit_test(plain_sums_stay_exact),
        cmocka_unit_test(strategies_with_int8_match_a_plain_loop),
        cmocka_unit_test(int8_training_is_bit_identical_on_every_transport),
        cmocka_unit_test(int8_training_resumes_bit_identical),
        cmocka_unit_test(int8_training_reaches_the_float32_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
