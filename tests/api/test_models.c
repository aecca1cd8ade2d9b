/* [asan] Graphs, models, data, files and reports of a program that only uses the header: two workers train
 * a small model of each family, save it and write reports. Wrong use gives an error. */
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* For workers: cmocka's own assertions only work in the main thread. */
#define CHECK(cond)                                                                              \
    do {                                                                                         \
        if (!(cond)) {                                                                           \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, ddp_rank(d), #cond, \
                    ddp_last_error(d)->msg);                                                     \
            return DDP_FAILED;                                                                   \
        }                                                                                        \
    } while (0)

static char folder[] = "/tmp/dreamddp-api-XXXXXX";

static const char *in_folder(char *out, size_t room, const char *name)
{
    snprintf(out, room, "%s/%s", folder, name);
    return out;
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ---- a hand-written graph with a user-defined operator ---- */

static ddp_status halve_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)err;
    s->out = s->in[0];
    s->flops = (double)ddp_shape_count(&s->out);
    return DDP_OK;
}

static void halve_forward(const ddp_op_call *c)
{
    long i;

    for (i = 0; i < ddp_shape_count(&c->spec->out); i++)
        ((float *)c->out)[i] = ((const float *)c->in[0])[i] / 2;
}

static void halve_backward(const ddp_op_call *c)
{
    float *to = (float *)c->grad_in[0];
    long i;

    for (i = 0; to && i < ddp_shape_count(&c->spec->out); i++)
        to[i] = (c->add_in[0] ? to[i] : 0) + ((const float *)c->grad_out)[i] / 2;
}

static const ddp_op halve = {"halve", halve_shape, halve_forward, halve_backward};

/* Learns whether the sum of four numbers is above 0. */
static int train_graph(ddp_ctx *d, void *user)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 16, 4), *y = ddp_input(g, "y", DDP_I32, 16, 1), *h, *loss;
    ddp_optimizer o = ddp_adamw(0.02f, 0.9f, 0.999f, 1e-8f, 0);
    ddp_rng r = ddp_rng_seed(3, (uint64_t)ddp_rank(d));
    ddp_node_info info;
    float first = 0, *out = (float *)user;
    size_t count;
    int step, i, k;

    CHECK(ddp_register_op(g, &halve) == DDP_OK);
    ddp_layer_begin(g, "hidden");
    h = ddp_relu(g, ddp_linear(g, x, 24));
    h = ddp_apply(g, "halve", 1, &h, 0, NULL, NULL);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    loss = ddp_cross_entropy(g, ddp_linear(g, h, 2), y);
    ddp_layer_end(g);
    CHECK(ddp_graph_build(g) == DDP_OK && ddp_set_optimizer(d, &o) == DDP_OK);
    CHECK(ddp_layer_count(g) == 2 && ddp_param_count(g) == 4 * 24 + 24 + 24 * 2 + 2);
    CHECK(ddp_node_describe(g, ddp_node_index(loss), &info) == DDP_OK && info.layer_index == 1);
    for (step = 0; step < 120; step++) {
        float *in = (float *)ddp_data(g, "x");
        int32_t *label = (int32_t *)ddp_data(g, "y");
        for (i = 0; i < 16; i++) {
            double sum = 0;
            for (k = 0; k < 4; k++) sum += in[4 * i + k] = (float)ddp_rng_normal(&r);
            label[i] = sum > 0;
        }
        CHECK(ddp_forward(g) == 0 && ddp_backward(g, loss) == 0);
        if (step == 0) first = ddp_value(g, loss);
        CHECK(ddp_step_end(d) == 0);
    }
    CHECK(ddp_value(g, loss) < 0.4f * first && ddp_sync_all(d) == 0 && ddp_evaluate(g) == 0);
    CHECK(ddp_graph_read(g, out + 2 * ddp_rank(d), ddp_layer_params(g, 0, &count), 2) == 0 &&
          count == 4 * 24 + 24);
    return 0;
}

static void graph_with_a_user_operator_learns(void **state)
{
    float out[4];
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.transport = DDP_THREADS;
    cfg.world = 2;
    cfg.period = 2;
    cfg.no_env = 1;
    if (ddp_launch(&cfg, train_graph, out, &err)) fail_msg("%s", err.msg);
    assert_memory_equal(out, out + 2, 2 * sizeof *out);
}

/* ---- the loss of each model family falls on one batch ---- */

static float loss_after(ddp_graph *g, ddp_node *loss, long classes, int steps)
{
    const ddp_optimizer o = ddp_sgd(0.02f, 0);
    float first = 0;
    int32_t *label = (int32_t *)ddp_data(g, "labels"), *tokens = (int32_t *)ddp_data(g, "tokens");
    float *in = (float *)ddp_data(g, "inputs");
    ddp_node_info info;
    size_t count;
    long i, n;
    int l, step;

    assert_non_null(loss);
    assert_true(ddp_layer_count(g) > 0 && ddp_activation_bytes(g) > 0 && label);
    assert_int_equal(ddp_node_describe(g, ddp_node_index(loss), &info), DDP_OK);
    assert_int_equal(ddp_node_describe(g, info.input[1], &info), DDP_OK);
    n = ddp_shape_count(&info.out);
    for (i = 0; i < n; i++) label[i] = (int32_t)(i % classes);
    for (i = 0; tokens && i < n; i++) tokens[i] = (int32_t)(i * 3 % classes);
    if (in) {
        assert_int_equal(ddp_node_describe(g, 0, &info), DDP_OK);
        for (i = 0; i < ddp_shape_count(&info.out); i++) in[i] = (float)((i * 7 + i / 5) % 13) / 13 - 0.5f;
    }
    for (step = 0; step <= steps; step++) {
        assert_int_equal(ddp_forward(g), 0);
        if (step == 0) first = ddp_value(g, loss);
        assert_int_equal(ddp_backward(g, loss), 0);
        for (l = 0; l < ddp_layer_count(g); l++) { /* without a context the program applies the rule itself */
            ddp_update u;
            memset(&u, 0, sizeof u);
            u.params = ddp_layer_params(g, l, &count);
            u.grads = ddp_layer_gradients(g, l, &count);
            u.count = count;
            u.step = step;
            u.lr = o.lr;
            u.layer = l;
            o.update(&o, &u);
        }
        ddp_zero_gradients(g);
    }
    return ddp_value(g, loss) / first;
}

static void every_family_of_models_learns(void **state)
{
    ddp_gpt2_config gpt2 = {20, 8, 1, 2, 16, 2, 0, 0.1f, 0};
    ddp_llama2_config llama2;
    ddp_mlp_config mlp;
    ddp_resnet_config resnet;
    ddp_vgg_config vgg;
    ddp_graph *g;
    ddp_node *loss, *logits;
    int family;

    (void)state;
    memset(&llama2, 0, sizeof llama2);
    llama2.vocabulary = 20;
    llama2.context = 8;
    llama2.layers = 1;
    llama2.heads = 2;
    llama2.kv_heads = 1;
    llama2.dim = 16;
    llama2.batch = 2;
    llama2.deviation = 0.1f;
    memset(&mlp, 0, sizeof mlp);
    mlp.batch = 6;
    mlp.inputs = 10;
    mlp.hidden[0] = 12;
    mlp.classes = 3;
    memset(&resnet, 0, sizeof resnet);
    resnet.depth = 18;
    resnet.classes = 2;
    resnet.size = 8;
    resnet.channels = 1;
    resnet.batch = 2;
    resnet.cifar = 1;
    memset(&vgg, 0, sizeof vgg);
    vgg.depth = 11;
    vgg.classes = 2;
    vgg.size = 32;
    vgg.channels = 1;
    vgg.batch = 1;
    for (family = 0; family < 5; family++) {
        g = ddp_graph_new(NULL);
        logits = NULL;
        switch (family) {
        case 0:
            loss = ddp_gpt2(g, &gpt2, &logits);
            break;
        case 1:
            loss = ddp_llama2(g, &llama2, &logits);
            break;
        case 2:
            loss = ddp_mlp(g, &mlp, &logits);
            break;
        case 3:
            loss = ddp_resnet(g, &resnet, &logits);
            break;
        default:
            loss = ddp_vgg(g, &vgg, &logits);
        }
        assert_non_null(logits);
        if (family == 4) { /* 9 million parameters: only lists the operators for a planner */
            ddp_oplist list;
            ddp_error err;
            assert_int_equal(ddp_graph_oplist(g, &list, &err), DDP_OK);
            assert_true(list.count > 20);
            ddp_oplist_free(&list);
        } else {
            assert_int_equal(ddp_graph_build(g), DDP_OK);
            assert_true(loss_after(g, loss, family < 2 ? 20 : 2, family == 3 ? 6 : 20) < 0.98f);
        }
        ddp_graph_free(g);
    }
    gpt2.heads = 3;
    g = ddp_graph_new(NULL);
    assert_null(ddp_gpt2(g, &gpt2, NULL));
    assert_int_equal(ddp_graph_build(g), DDP_ARG);
    assert_non_null(strstr(ddp_graph_error(g)->msg, "3"));
    ddp_graph_free(g);
    ddp_graph_free(NULL);
}

/* ---- data and files ---- */

static void streams_and_images_are_sharded(void **state)
{
    static const char text[] = "to be or not to be, that is the question";
    unsigned char cifar[2 * 3073];
    ddp_tokens *t;
    ddp_token_range train, val;
    ddp_images *images;
    ddp_image_range some;
    ddp_image_norm norm;
    ddp_error err;
    int32_t tokens[8], labels[8], told[2];
    float pixels[2 * 3072];

    (void)state;
    t = ddp_tokens_from_bytes("text", text, sizeof text - 1, &err);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_count(t), (long)sizeof text - 1);
    assert_int_equal(ddp_tokens_byte(t, ddp_tokens_at(t, 0)), 't');
    assert_string_equal(ddp_tokens_kind(t), "bytes");
    assert_int_equal(ddp_tokens_check(t, ddp_tokens_vocabulary(t), &err), DDP_OK);
    assert_int_equal(ddp_tokens_check(t, 3, &err), DDP_FORMAT);
    assert_int_equal(ddp_tokens_split(t, 0.25, 4, &train, &val, &err), DDP_OK);
    assert_true(ddp_tokens_windows(&train) > ddp_tokens_windows(&val));
    ddp_tokens_batch(&train, 1, 0, 0, 1, 2, tokens, labels);
    assert_int_equal(tokens[1], labels[0]);
    ddp_tokens_close(t);
    assert_null(ddp_tokens_open("/no/such/file", &err));
    assert_int_equal(err.code, DDP_IO);

    memset(cifar, 9, sizeof cifar);
    cifar[3073] = 4;
    images = ddp_images_cifar_bytes("two", cifar, sizeof cifar, 10, &err);
    assert_non_null(images);
    assert_int_equal(ddp_images_split(images, 0, &some, NULL, &err), DDP_OK);
    norm = ddp_images_norm(&some);
    ddp_images_batch(&some, &norm, 1, 0, 0, 1, 2, pixels, told);
    assert_int_equal(told[0] + told[1], 13);
    ddp_images_close(images);
    assert_null(ddp_images_cifar_bytes("odd", cifar, 100, 10, &err));
    assert_int_equal(err.code, DDP_FORMAT);
}

static void weights_and_arrays_are_saved_and_loaded(void **state)
{
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const void *data[1] = {x};
    ddp_safetensor one;
    ddp_safetensors *file;
    ddp_mlp_config mlp;
    ddp_graph *a = ddp_graph_new(NULL), *b = ddp_graph_new(NULL);
    ddp_error err;
    char path[80], name[64];
    ddp_shape shape;
    float out[2];
    size_t n, m;

    (void)state;
    memset(&one, 0, sizeof one);
    one.name = "x";
    one.type = DDP_ST_F32;
    one.dims = 2;
    one.dim[0] = 2;
    one.dim[1] = 3;
    in_folder(path, sizeof path, "x.safetensors");
    assert_int_equal(ddp_safetensors_write(path, 1, &one, data, NULL, &err), DDP_OK);
    file = ddp_safetensors_open(path, &err);
    assert_non_null(file);
    assert_int_equal(ddp_safetensors_count(file), 1);
    assert_int_equal(ddp_safetensors_floats(file, ddp_safetensors_find(file, "x"), 4, 2, out, &err), DDP_OK);
    assert_true(out[0] == 5 && out[1] == 6);
    assert_int_equal(ddp_safetensors_floats(file, ddp_safetensors_at(file, 0), 5, 2, out, &err), DDP_ARG);
    ddp_safetensors_close(file);
    assert_null(ddp_safetensors_from_bytes("bad", "not a file", 10, &err));
    assert_int_equal(err.code, DDP_FORMAT);

    memset(&mlp, 0, sizeof mlp);
    mlp.batch = 1;
    mlp.inputs = 5;
    mlp.hidden[0] = 4;
    mlp.classes = 3;
    ddp_mlp(a, &mlp, NULL);
    ddp_mlp(b, &mlp, NULL);
    assert_true(ddp_graph_build(a) == DDP_OK && ddp_graph_build(b) == DDP_OK);
    ddp_layer_params(a, 1, &n)[2] = 77;
    in_folder(path, sizeof path, "mlp.safetensors");
    assert_int_equal(ddp_weights_save(a, path, &err), DDP_OK);
    assert_int_equal(ddp_weights_load(b, path, &err), DDP_OK);
    assert_memory_equal(ddp_layer_params(b, 1, &m), ddp_layer_params(a, 1, &n), n * sizeof(float));
    assert_true(ddp_hash_floats(0, ddp_layer_params(a, 0, &n), n) ==
                ddp_hash_floats(0, ddp_layer_params(b, 0, &m), m));
    assert_true(ddp_weights_describe(a, 0, name, sizeof name, &shape) && strlen(name) > 0);
    in_folder(path, sizeof path, "x.safetensors");
    assert_int_equal(ddp_weights_load(b, path, &err), DDP_FORMAT);
    ddp_graph_free(a);
    ddp_graph_free(b);
}

static void profiles_networks_and_plans_are_written_and_read(void **state)
{
    ddp_profile p, q;
    ddp_network n, m;
    ddp_plan plan;
    ddp_error err;
    char path[80];

    (void)state;
    assert_int_equal(ddp_profile_new(2, &p, &err), DDP_OK);
    p.backward_s[0] = 1;
    p.backward_s[1] = 2;
    p.comm_s[0] = p.comm_s[1] = 3;
    in_folder(path, sizeof path, "profile.csv");
    assert_int_equal(ddp_profile_write(&p, path, &err), DDP_OK);
    assert_int_equal(ddp_profile_read(path, NULL, &q, &err), DDP_OK);
    assert_true(q.layers == 2 && q.backward_s[1] == 2 && ddp_profile_check(&q, &err) == DDP_OK);
    assert_int_equal(ddp_network_new(2, &n, &err), DDP_OK);
    n.pipelines = 1;
    n.stages = 2;
    n.rate[1] = n.rate[2] = 1e9;
    n.speed = (double *)calloc(2, sizeof(double));
    n.memory_bytes = (double *)calloc(2, sizeof(double));
    assert_true(n.speed && n.memory_bytes);
    n.speed[0] = 1e12;
    n.speed[1] = 2e12;
    n.memory_bytes[1] = 8e9;
    in_folder(path, sizeof path, "network.json");
    assert_int_equal(ddp_network_write(&n, path, &err), DDP_OK);
    assert_int_equal(ddp_network_read(path, NULL, &m, &err), DDP_OK);
    assert_true(fabs(m.rate[1] / 1e9 - 1) < 1e-12);
    assert_true(fabs(m.speed[1] / 2e12 - 1) < 1e-12 && m.memory_bytes[0] == 0 &&
                fabs(m.memory_bytes[1] / 8e9 - 1) < 1e-12);
    assert_int_equal(ddp_network_noise(&m, 1, 0.1, 0.1, &err), DDP_OK);
    assert_int_equal(ddp_profile_read("/no/such/file", NULL, &q, &err), DDP_IO);
    assert_int_equal(ddp_network_read("/no/such/file", NULL, &m, &err), DDP_IO);
    assert_int_equal(ddp_plan_read("/no/such/file", 2, &plan, &err), DDP_IO);
    ddp_profile_free(&p);
    ddp_profile_free(&q);
    ddp_network_free(&n);
    ddp_network_free(&m);
}

/* ---- reports ---- */

static void reports_are_written(void **state)
{
    const ddp_span spans[] = {{0, 1, 0, 0, DDP_SPAN_BACKWARD, 0}, {0.5, 1.5, 0, 0, DDP_SPAN_COMM, 100}};
    const ddp_report_step steps[] = {{1.5, 2.0, 100, NAN}};
    ddp_report_worker worker;
    ddp_report_run run;
    ddp_report_data d;
    ddp_jsonl *j;
    ddp_error err;
    FILE *out;
    char path[80], *said = NULL;
    size_t length;

    (void)state;
    memset(&run, 0, sizeof run);
    memset(&d, 0, sizeof d);
    worker.spans = spans;
    worker.count = 2;
    run.strategy = "ssgd";
    run.step_ms = 1500;
    run.final_loss = 2;
    run.bytes_sent = 100;
    run.time_to_loss_s = NAN;
    run.hidden_pct = 50;
    run.steps = steps;
    run.step_count = 1;
    run.workers = &worker;
    run.worker_count = 1;
    d.title = "a <title>";
    d.workers = 1;
    d.runs = &run;
    d.run_count = 1;
    d.target_loss = NAN;
    assert_int_equal(ddp_report_html(&d, in_folder(path, sizeof path, "r.html"), &err), DDP_OK);
    assert_int_equal(ddp_report_trace(&d, in_folder(path, sizeof path, "r.json"), &err), DDP_OK);
    assert_int_equal(ddp_report_html(&d, "/no/such/folder/r.html", &err), DDP_IO);
    out = open_memstream(&said, &length);
    assert_non_null(out);
    assert_int_equal(ddp_report_table(&d, out, &err), DDP_OK);
    j = ddp_jsonl_stream(out, &err);
    assert_non_null(j);
    ddp_jsonl_event(j, "mine");
    ddp_jsonl_number(j, "x", 0.5);
    ddp_jsonl_end(j);
    assert_int_equal(ddp_jsonl_close(j, &err), DDP_OK);
    fclose(out);
    assert_non_null(strstr(said, "ssgd"));
    assert_non_null(strstr(said, "{\"event\":\"mine\",\"x\":0.5}"));
    free(said);
    assert_null(ddp_jsonl_open("/no/such/folder/r.jsonl", &err));
    assert_int_equal(err.code, DDP_IO);
    ddp_jsonl_event(NULL, "no output reads this");
}

static void learning_rates_follow_a_schedule(void **state)
{
    ddp_lr_schedule s;

    (void)state;
    memset(&s, 0, sizeof s);
    s.base = 1;
    s.warmup = 2;
    s.total = 10;
    assert_true(ddp_schedule_named("cosine", &s.kind));
    assert_true(ddp_lr_at(&s, 0) == 0.5 && ddp_lr_at(&s, 1) == 1 && ddp_lr_at(&s, 10) < 1e-9);
    assert_false(ddp_schedule_named("sometimes", &s.kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_with_a_user_operator_learns),
        cmocka_unit_test(every_family_of_models_learns),
        cmocka_unit_test(streams_and_images_are_sharded),
        cmocka_unit_test(weights_and_arrays_are_saved_and_loaded),
        cmocka_unit_test(profiles_networks_and_plans_are_written_and_read),
        cmocka_unit_test(reports_are_written),
        cmocka_unit_test(learning_rates_follow_a_schedule),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
