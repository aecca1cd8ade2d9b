/* The arrays that a joining worker receives after its entry, from members that are threads of this test: they
 * end a transfer, damage bytes, are silent or have no copy. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "member/rest.h"

enum { LAYERS = 3, VALUES = 200000, ARRAYS = LAYERS + 1, MEMBERS = 2, ALWAYS = 1000 };
static const uint64_t number = 77;

typedef enum fault { FINE, ENDS, DAMAGES, SILENT, REFUSES } fault;

typedef struct member {
    int listen_fd, times; /* times: connections with the fault, then none */
    fault how;
    const ddp__worker *s;
    int visits;  /* atomic */
    size_t from; /* offset of the last request */
    int stop;    /* atomic */
    pthread_t thread;
} member;

/* ---- the state ---- */

static float value(int array, int i) { return (float)(array * 1000 + i % 997); }

/* Arrays of layers 0 to LAYERS - 1 that are needed later, in the order 2, 0, 1, and one that is needed
 * now. */
static void state_open(ddp__worker *s, float *memory)
{
    static const long turn[LAYERS] = {2, 3, 1};
    ddp_error err;

    assert_int_equal(ddp__worker_open(s, LAYERS, ARRAYS, &err), DDP_OK);
    for (int l = 0; l < LAYERS; l++) s->layer[l] = "layer";
    for (int l = 0; l < LAYERS; l++) {
        ddp__worker_add(s, "anchor", l, -1, memory + (size_t)l * VALUES, VALUES,
                        DDP__WORKER_TOLD | DDP__WORKER_LATER);
        s->tensor[l].turn = turn[l];
    }
    ddp__worker_add(s, "late", LAYERS, -1, memory + (size_t)LAYERS * VALUES, VALUES, DDP__WORKER_TOLD);
    s->rest = number;
}

static float *members_memory(void)
{
    float *x = (float *)malloc(ARRAYS * (size_t)VALUES * sizeof *x);

    for (int k = 0; k < ARRAYS; k++)
        for (int i = 0; i < VALUES; i++) x[(size_t)k * VALUES + (size_t)i] = value(k, i);
    return x;
}

static int is_complete(const float *x, int array)
{
    for (int i = 0; i < VALUES; i++)
        if (x[(size_t)array * VALUES + (size_t)i] != value(array, i)) return 0;
    return 1;
}

/* ---- a member ---- */

static void serve(member *m, int fd)
{
    const fault how = m->visits <= m->times ? m->how : FINE;
    unsigned char in[DDP__HELLO_BYTES + DDP__JOIN_REQUEST], b[DDP__JOIN_CLONE] = {0}, head[DDP__REST_HEAD];
    unsigned char *bytes = NULL;
    size_t total = 0, at, n;
    ddp_error err;
    int pieces = 0, bad;

    if (how == REFUSES || ddp__stream_recv_all(NULL, fd, in, sizeof in, NULL, ddp_now() + 5)) return;
    if (ddp__hello_get(in + DDP__HELLO_BYTES, 4) != DDP__JOIN_REST) return;
    while (how == SILENT && !ddp__atomic_load(&m->stop)) ddp__sleep_until(ddp_now() + 0.02);
    if (how == SILENT || ddp__worker_rest_pack(m->s, &bytes, &total, &err)) return;
    m->from = at = (size_t)ddp__hello_get(in + DDP__HELLO_BYTES + 8, 8);
    ddp__hello_put(b, ddp__hello_get(in + DDP__HELLO_BYTES + 16, 8), 8);
    ddp__hello_put(b + 8, total, 8);
    ddp__hello_put(b + 16, at, 8);
    bad = ddp__stream_send_all(NULL, fd, b, sizeof b, ddp_now() + 5);
    for (; !bad && at < total; at += n, pieces++) {
        n = ddp__rest_piece(total, at);
        ddp__hello_put(head, ddp__crc32c(0, bytes + at, n), 4);
        if (how == DAMAGES && pieces == 1) bytes[at + n / 2] ^= 1;
        if (how == ENDS && pieces == 1) n /= 2;
        bad = ddp__stream_send_all(NULL, fd, head, sizeof head, ddp_now() + 5) ||
              ddp__stream_send_all(NULL, fd, bytes + at, n, ddp_now() + 5);
        if (how == ENDS && pieces == 1) break;
    }
    if (how == FINE || how == DAMAGES) (void)ddp__stream_wait(NULL, fd, ddp_now() + 2);
    free(bytes);
}

static void *member_main(void *arg)
{
    member *m = (member *)arg;

    while (!ddp__atomic_load(&m->stop)) {
        int fd;
        if (!ddp__stream_wait(NULL, m->listen_fd, ddp_now() + 0.05)) continue;
        fd = accept(m->listen_fd, NULL, NULL);
        if (fd < 0) continue;
        ddp__atomic_add(&m->visits, 1);
        serve(m, fd);
        close(fd);
    }
    close(m->listen_fd);
    return NULL;
}

static void member_start(member *m, const ddp__worker *s, fault how, int times, ddp__addr *address)
{
    ddp_error err;
    ddp__addr any;
    int count = 0;

    memset(m, 0, sizeof *m);
    m->s = s;
    m->how = how;
    m->times = times;
    assert_int_equal(ddp__addr_parse("127.0.0.1:0", &any, 1, &count, &err), DDP_OK);
    assert_int_equal(ddp__tcp_listen(&any, &m->listen_fd, address, &err), DDP_OK);
    assert_int_equal(pthread_create(&m->thread, NULL, member_main, m), 0);
}

static void member_stop(member *m)
{
    ddp__atomic_store(&m->stop, 1);
    pthread_join(m->thread, NULL);
}

/* ---- the tests ---- */

typedef struct lab {
    member m[MEMBERS];
    ddp__worker there, here;
    float *memory, *own;
    ddp__rest *rest;
    ddp__join_config c;
    ddp__join_place place;
} lab;

/* The member with the higher id is asked first. */
static void lab_open(lab *x, fault first, int times, fault second, int times2, double peer_s)
{
    ddp_error err;

    memset(x, 0, sizeof *x);
    x->memory = members_memory();
    x->own = (float *)calloc(ARRAYS * (size_t)VALUES, sizeof *x->own);
    state_open(&x->there, x->memory);
    state_open(&x->here, x->own);
    member_start(&x->m[1], &x->there, first, times, &x->place.address[1]);
    member_start(&x->m[0], &x->there, second, times2, &x->place.address[0]);
    x->place.world = 3;
    x->place.id = 2;
    x->place.live = 3;
    x->c.peer_timeout_s = peer_s;
    x->c.op_timeout_s = 20;
    x->c.insecure = 1;
    assert_int_equal(ddp__rest_open(&x->c, &x->place, NULL, &x->here, &x->rest, &err), DDP_OK);
    assert_non_null(x->rest);
}

static void lab_close(lab *x)
{
    ddp__rest_close(x->rest);
    for (int i = 0; i < MEMBERS; i++) member_stop(&x->m[i]);
    ddp__worker_free(&x->there);
    ddp__worker_free(&x->here);
    free(x->memory);
    free(x->own);
}

/* Takes the array that is needed now, then each layer. */
static void takes_all(lab *x)
{
    ddp_error err;
    int over = 0;

    assert_int_equal(ddp__rest_take(x->rest, NULL, DDP__REST_NOW, &over, &err), DDP_OK);
    assert_true(is_complete(x->own, LAYERS));
    assert_int_equal(over, 0);
    for (int l = 0; l < LAYERS; l++) {
        assert_int_equal(x->own[(size_t)l * VALUES + 1] > 0, 0);
        assert_int_equal(ddp__rest_take(x->rest, NULL, l, &over, &err), DDP_OK);
        assert_true(is_complete(x->own, l));
        assert_int_equal(over, l + 1 == LAYERS);
    }
}

static void arrays_are_stored_when_they_are_needed(void **state)
{
    lab x;

    (void)state;
    lab_open(&x, FINE, 0, FINE, 0, 20);
    takes_all(&x);
    assert_int_equal(x.m[0].visits, 0);
    lab_close(&x);
}

static void another_member_continues_after_a_lost_one(void **state)
{
    lab x;

    (void)state;
    for (int how = ENDS; how <= DAMAGES; how++) {
        lab_open(&x, (fault)how, 1, FINE, 0, 20);
        x.own[0] = 0;
        takes_all(&x);
        assert_int_equal(x.m[1].visits + x.m[0].visits, 2);
        assert_int_equal(x.m[0].from + x.m[1].from, DDP__REST_PIECE); /* only whole, intact pieces count */
        lab_close(&x);
    }
    lab_open(&x, REFUSES, ALWAYS, ENDS, 1, 20);
    takes_all(&x);
    lab_close(&x);
}

static void transfer_fails_if_no_member_sends(void **state)
{
    ddp_error err;
    int over = 0;
    lab x;

    (void)state;
    lab_open(&x, REFUSES, ALWAYS, REFUSES, ALWAYS, 0.3);
    assert_int_equal(ddp__rest_take(x.rest, NULL, DDP__REST_ALL, &over, &err), DDP_PEER_LOST);
    assert_non_null(strstr(err.msg, "no member has sent the state of the run"));
    lab_close(&x);
}

static void closing_ends_a_transfer(void **state)
{
    lab x;

    (void)state;
    lab_open(&x, SILENT, ALWAYS, SILENT, ALWAYS, 100);
    while (!ddp__atomic_load(&x.m[1].visits)) ddp__sleep_until(ddp_now() + 0.01);
    lab_close(&x);
}

/* Under strategies whose averages arrive late, members train some periods before the worker asks. */
static void members_keep_their_copy_for_the_time_out(void **state)
{
    float *memory = members_memory();
    ddp__worker s;
    ddp__join j;
    ddp_error err;

    (void)state;
    memset(&s, 0, sizeof s);
    memset(&j, 0, sizeof j);
    state_open(&s, memory);
    j.c.peer_timeout_s = 60;
    assert_int_equal(pthread_mutex_init(&j.lock, NULL), 0);
    assert_int_equal(ddp__cond_init(&j.changed), 0);
    assert_int_equal(ddp__join_rest(&j, &s, &err), DDP_OK);
    for (int period = 0; period < 3; period++) ddp__join_aged(&j);
    assert_non_null(j.rest);
    j.rest_until = ddp_now();
    ddp__join_aged(&j);
    assert_null(j.rest);
    j.c.peer_timeout_s = 0;
    assert_int_equal(ddp__join_rest(&j, &s, &err), DDP_OK);
    ddp__join_aged(&j);
    assert_non_null(j.rest); /* the worker may need it in the first period */
    ddp__join_aged(&j);
    assert_null(j.rest);
    pthread_cond_destroy(&j.changed);
    pthread_mutex_destroy(&j.lock);
    ddp__worker_free(&s);
    free(memory);
}

static void clones_omit_the_arrays(void **state)
{
    float *x = members_memory();
    ddp__worker s;
    int order[ARRAYS];

    (void)state;
    state_open(&s, x);
    assert_int_equal(ddp__worker_rest_list(&s, order), ARRAYS);
    assert_int_equal(order[0], LAYERS);
    assert_int_equal(order[1], 2);
    assert_int_equal(order[2], 0);
    assert_int_equal(order[3], 1);
    ddp__worker_rest_drop(&s);
    assert_int_equal(s.tensors, 0);
    ddp__worker_free(&s);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_stored_when_they_are_needed),
        cmocka_unit_test(another_member_continues_after_a_lost_one),
        cmocka_unit_test(transfer_fails_if_no_member_sends),
        cmocka_unit_test(closing_ends_a_transfer),
        cmocka_unit_test(members_keep_their_copy_for_the_time_out),
        cmocka_unit_test(clones_omit_the_arrays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
