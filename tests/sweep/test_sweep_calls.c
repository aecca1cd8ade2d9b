/* [pure] Like test_sweep.c, for functions that its scenarios do not call: parts of the planners,
 * compressors, all operators and models, data and files, collectives and probes, calls of user-defined
 * strategies, servers, stages. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "sweep/sweep.h"

/* ---- parts of the planners: pure functions ---- */

static ddp_status parts(uint64_t *h, ddp_error *err)
{
    static const ddp_stage_cost cost[] = {{1, 1, 1}, {1, 1, 1}};
    static const ddp_boundary between[] = {{0, 1, 0.1, 0.1, 0.01, 0}};
    const double bytes[] = {1e3, 1e5, 1e6}, seconds[] = {0.011, 0.02, 0.11}, importance[] = {3, 1, 2};
    const float g[] = {1, -2, 3}, w[] = {0.5f, 1, 2};
    const int stage_of[] = {0, 1}, community[] = {0, 0}, merged[] = {2, 1};
    ddp_profile p;
    ddp_plan plan;
    ddp_timeline_options to;
    ddp_timeline t;
    ddp_network n;
    ddp_preserver model;
    ddp_preserved judged;
    ddp_pipeline_costs costs;
    ddp_pipeline_times times;
    ddp_task tasks[32];
    ddp_link link = {0, 0};
    ddp_linkfit fit;
    ddp_config cfg;
    ddp_setting setting;
    ddp_edge_wire edge;
    ddp_lr_schedule rates = {DDP_LR_COSINE, 0.1, 2, 10, 0.1, 0, 0};
    unsigned char gib[1] = {0};
    double x[8] = {0}, each[3], all;
    ddp_status s;

    BLANK(p);
    BLANK(plan);
    BLANK(to);
    BLANK(t);
    BLANK(n);
    BLANK(model);
    BLANK(costs);
    BLANK(times);
    BLANK(cfg);
    BLANK(fit);
    s = ddp_profile_new(3, &p, err);
    for (int l = 0; !s && l < 3; l++) {
        p.params[l] = 1000 + l;
        p.forward_s[l] = 1;
        p.backward_s[l] = 2;
        p.comm_s[l] = 1.5;
    }
    if (!s) s = ddp_profile_check(&p, err);
    if (!s) s = ddp_plan_new(3, 2, &plan, err);
    if (!s) s = ddp_plan_step_time(&p, plan.step_of, 0, DDP_COST_TIMELINE, &x[0], err);
    if (!s) x[1] = (double)(ddp_plan_hash(&plan) % 1000003);
    if (!s) s = ddp_plan_timeline(&p, &to, &t, err);
    if (!s) s = ddp_timeline_exposed(&p, &t, 0, each, &all, err);
    ddp_timeline_free(&t);
    model.eta = 0.01;
    model.mu = 1;
    model.sigma = 1;
    model.batch = 32;
    model.start = 2;
    if (!s) s = ddp_preserver_test(&model, merged, 2, &judged, err);
    x[2] = ddp_preserver_expect(&model, 2, 3);
    if (!s) s = ddp_osp_importance(g, w, 3, 1, &x[3], err);
    for (int rule = DDP_OSP_WALK; !s && rule <= DDP_OSP_KNAPSACK; rule++)
        s = ddp_osp_rank(3, importance, bytes, 1e5, (ddp_osp_rule)rule, gib, &all, err);
    if (!s) s = ddp_osp_umax(1e7, 0, 0.1, 4, 1e6, 0, &x[4], err);
    x[5] = ddp_osp_budget(1, 2, x[4]) + (double)ddp_served_room(4, 2) + gib[0] + all;
    if (!s) s = ddp_network_new(2, &n, err);
    if (!s) {
        n.rate[1] = n.rate[2] = 1e7;
        n.delay_s[1] = n.delay_s[2] = 0.01;
        n.dp_bytes = 1e6;
        n.pp_bytes = 1e5;
    }
    if (!s) s = ddp_network_noise(&n, 1, 0.1, 0.1, err);
    if (!s) s = ddp_network_check(&n, err);
    if (!s) s = ddp_modularity(2, n.rate, 1, community, &x[6], err);
    if (!s) s = ddp_place_cost(&n, 1, 2, stage_of, &all, &each[0], &each[1], err);
    ddp_network_free(&n);
    if (!s) s = ddp_speed_fit(bytes, seconds, 3, 1e9, &x[7], err);
    costs.shape.schedule = DDP_PIPELINE_ZB;
    costs.shape.stages = 2;
    costs.shape.micro_batches = 3;
    costs.stage = cost;
    costs.boundaries = 1;
    costs.boundary = between;
    if (!s) *h += (uint64_t)(ddp_pipeline_tasks(&costs.shape, 1, tasks) + ddp_pipeline_held(&costs.shape, 0));
    if (!s) s = ddp_pipeline_time(&costs, &times, err);
    if (!s) *h = mixed(*h, &times.step_s, sizeof times.step_s);
    ddp_pipeline_times_free(&times);
    if (!s) s = ddp_link_fit(bytes, seconds, 3, &link, err);
    ddp_linkfit_start(&fit, link, 1e5, 8);
    ddp_linkfit_add(&fit, 1e5, 0.02);
    *h += ddp_link_drift(link, fit.link, bytes, 3) > 0.5;
    if (!s) s = ddp_net_parse("10mbit,5ms", &each[0], &each[1], err);
    if (!s) s = ddp_edge_wire_parse("aq:4", &edge, err);
    if (!s) s = ddp_config_set(&cfg, "period", "5", err);
    for (int i = 0; ddp_config_describe(&cfg, i, &setting); i++)
        *h = mixed(*h, setting.value, strlen(setting.value));
    *h += (uint64_t)(1e6 * ddp_lr_at(&rates, 5));
    if (!s) *h = mixed(*h, x, sizeof x);
    ddp_plan_free(&plan);
    ddp_profile_free(&p);
    return s;
}

/* ---- compressors: the caller allocates all memory ---- */

static ddp_status squeezes(uint64_t *h, ddp_error *err)
{
    enum { N = 256, K = 8, ROOM = 65536 };
    const double link_s[] = {1, 0.5};
    const size_t count[] = {N, N};
    static float x[N], residual[N], left[N], value[K];
    static uint64_t index[K];
    static uint64_t message[ROOM / 8], scratch[ROOM / 8];
    ddp_adatopk_options ada;
    ddp_link_compression out[2];
    ddp_rng r = ddp_rng_seed(3, 4);
    ddp_packed header;
    size_t bytes = 0;
    ddp_status s;

    BLANK(ada);
    for (int i = 0; i < N; i++) {
        x[i] = (float)ddp_rng_normal(&r);
        residual[i] = 0;
    }
    s = ddp_feedback_add(residual, x, N, err);
    if (!s) s = ddp_topk(residual, N, K, scratch, ddp_topk_scratch(N, K), index, value, err);
    for (int how = DDP_PACK_I64; !s && how <= DDP_PACK_DELTA; how++) {
        s = ddp_pack_sparse((ddp_packing)how, N, K, index, value, message,
                            ddp_pack_bound((ddp_packing)how, N, K), &bytes, err);
        if (!s) s = ddp_packed_read(message, bytes, &header, err);
        if (!s) s = ddp_unpack_add(message, bytes, x, N, err);
    }
    if (!s) s = ddp_feedback_keep(residual, N, index, K, err);
    if (!s) s = ddp_randomk(x, N, K, 5, scratch, ddp_randomk_scratch(N), index, value, err);
    if (!s) s = ddp_pack_dense(x, N, message, sizeof message, &bytes, err);
    if (!s) s = ddp_unpack_store(message, bytes, x, N, err);
    for (int how = DDP_PACK_INT8; !s && how <= DDP_PACK_E3M0; how++) {
        s = ddp_pack_quantised((ddp_packing)how, residual, N, message, sizeof message, &bytes, err);
        if (!s) s = ddp_feedback_subtract(message, bytes, residual, N, err);
    }
    if (!s) {
        const int keep = ddp_sparse_keep(0.1);
        s = ddp_sparse_pack(x, N, keep, message, ddp_sparse_bytes(N, keep), scratch, ddp_sparse_scratch(keep),
                            err);
        if (!s) s = ddp_sparse_add(message, ddp_sparse_bytes(N, keep), keep, x, N, err);
    }
    if (!s) s = ddp_split(DDP_AS_INT8, x, left, N, err);
    ada.ratio = 10;
    if (!s) s = ddp_adatopk(link_s, count, 2, &ada, out, err);
    if (!s) *h = mixed(mixed(*h, x, sizeof x), residual, sizeof residual) + ddp_keep_count(N, 10);
    return s;
}

/* ---- every operator, and the models ---- */

static ddp_status twice_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)err;
    s->out = s->in[0];
    return DDP_OK;
}

static void twice_some(void *user, long first, long last)
{
    const ddp_op_call *c = (const ddp_op_call *)user;

    for (long i = first; i < last; i++) ((float *)c->out)[i] = 2 * ((const float *)c->in[0])[i];
}

static void twice(const ddp_op_call *c)
{
    ddp_op_parallel(c, ddp_shape_count(&c->spec->out), 16, twice_some, (void *)(uintptr_t)c);
}

static void twice_back(const ddp_op_call *c)
{
    for (long i = 0; i < ddp_shape_count(&c->spec->out); i++) {
        float *to = (float *)c->grad_in[0] + i, by = 2 * ((const float *)c->grad_out)[i];
        *to = c->add_in[0] ? *to + by : by;
    }
}

static ddp_node *of_words(ddp_graph *g)
{
    static const ddp_op op = {"twice", twice_shape, twice, twice_back};
    ddp_node *table, *x, *y;

    (void)ddp_register_op(g, &op);
    ddp_layer_begin(g, "in");
    table = ddp_embedding(g, ddp_input(g, "tokens", DDP_I32, 2, 4), 7, 8);
    x = ddp_position(g, table);
    ddp_init_scale(g, x, 0, 0.5f);
    ddp_layer_end(g);
    ddp_layer_begin(g, "mid");
    ddp_recompute_begin(g);
    x = ddp_add(g, x, ddp_attention(g, ddp_linear(g, ddp_layer_norm(g, x), 24), 2));
    y = ddp_rope(g, ddp_linear_no_bias(g, ddp_rms_norm(g, x, 1e-5), 16), 2, 1, 10000);
    x = ddp_add(g, x, ddp_attention_grouped(g, y, 2, 1));
    x = ddp_dropout(g, ddp_gelu(g, x), 0.1f);
    ddp_recompute_end(g);
    x = ddp_swiglu(g, ddp_linear(g, ddp_relu(g, x), 16));
    x = ddp_apply(g, "twice", 1, &x, 0, NULL, NULL);
    ddp_layer_end(g);
    x = ddp_bottleneck(g, ddp_bottleneck_up(g, ddp_bottleneck_down(g, x, 4), 8), 4);
    ddp_layer_begin(g, "out");
    x = ddp_linear_tied(g, x, table);
    x = ddp_cross_entropy(g, x, ddp_input(g, "labels", DDP_I32, 2, 4));
    ddp_layer_end(g);
    return x;
}

static ddp_node *of_pixels(ddp_graph *g)
{
    const ddp_shape shape = {4, {2, 3, 8, 8}};
    ddp_node *x = ddp_input_shape(g, "images", DDP_F32, &shape);

    ddp_layer_begin(g, "convs");
    x = ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0);
    ddp_init_normal(g, x, 0, 0.1f);
    x = ddp_relu(g, ddp_batch_norm2d(g, x));
    x = ddp_max_pool2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 4, 1), 2, 2, 0);
    x = ddp_avg_pool2d(g, x, 2, 2, 0);
    x = ddp_add(g, ddp_linear(g, ddp_flatten(g, x), 4),
                ddp_linear(g, ddp_flatten(g, ddp_global_avg_pool2d(g, x)), 4));
    x = ddp_cross_entropy(g, x, ddp_input(g, "labels", DDP_I32, 2, 1));
    ddp_layer_end(g);
    return x;
}

static ddp_node *of_model(ddp_graph *g, int which)
{
    ddp_llama2_config llama;
    ddp_mlp_config mlp;
    ddp_resnet_config resnet;
    ddp_vgg_config vgg;

    BLANK(llama);
    BLANK(mlp);
    BLANK(resnet);
    BLANK(vgg);
    llama.vocabulary = 7;
    llama.context = 4;
    llama.layers = 1;
    llama.heads = 2;
    llama.dim = 8;
    llama.batch = 1;
    mlp.batch = 2;
    mlp.inputs = 3;
    mlp.hidden[0] = 4;
    mlp.classes = 2;
    resnet.depth = 18;
    resnet.classes = 2;
    resnet.size = 32;
    resnet.channels = 3;
    resnet.batch = 1;
    resnet.cifar = 1;
    vgg.depth = 11;
    vgg.classes = 2;
    vgg.size = 32;
    vgg.channels = 3;
    vgg.batch = 1;
    switch (which) {
    case 0:
        return of_words(g);
    case 1:
        return of_pixels(g);
    case 2:
        return ddp_llama2(g, &llama, NULL);
    case 3:
        return ddp_mlp(g, &mlp, NULL);
    case 4:
        return ddp_resnet(g, &resnet, NULL); /* these two are only described, not built */
    default:
        return ddp_vgg(g, &vgg, NULL);
    }
}

/* Runs forward and backward in two ranges with a separate state, in addition to the graph's own. */
static int in_a_state(ddp_ctx *d, ddp_graph *g, ddp_node *loss, uint64_t *h)
{
    ddp_state *s = ddp_state_new(g);
    const int last = ddp_node_index(loss), half = last / 2;
    int bad;

    /* ddp_state_new only returns NULL, without an error */
    if (!s) return ddp_complain(d, DDP_MEMORY, "no memory for a state");
    ddp_state_micro_batch(s, 1);
    bad = ddp_forward_range(s, 0, half) || ddp_forward_range(s, half + 1, last);
    if (!bad) bad = ddp_backward_range(s, half + 1, last) || ddp_backward_range(s, 0, half);
    if (!bad) *h = mixed(*h, ddp_state_data(s, loss), sizeof(float));
    if (!bad) *h += ddp_state_gradient(s, loss) != NULL;
    ddp_state_free(s);
    return bad;
}

static int looks(ddp_graph *g, ddp_node *loss, uint64_t *h)
{
    float kept[64];
    ddp_node_info info;
    ddp_shape shape;
    char name[128];
    size_t n = 0;
    int bad = ddp_evaluate(g);

    for (int i = 0; i < ddp_node_count(g); i++)
        if (!ddp_node_describe(g, i, &info)) *h = mixed(*h, &info.out, sizeof info.out);
    for (int l = 0; l < ddp_layer_count(g) && !bad; l++) {
        float *w = ddp_layer_params(g, l, &n);
        bad = ddp_graph_read(g, kept, w, n < 64 ? n : 64) || ddp_graph_write(g, w, kept, n < 64 ? n : 64);
        *h += (uint64_t)((ddp_layer_gradients(g, l, &n) != NULL) + (ddp_layer_buffers(g, l, &n) != NULL));
    }
    for (int i = 0; ddp_weights_describe(g, i, name, sizeof name, &shape); i++)
        *h = mixed(*h, name, strlen(name));
    *h += ddp_param_count(g) + ddp_activation_bytes(g) + (ddp_node_param(g, loss, 0, &shape) != NULL) +
          (ddp_node_gradient(g, loss, 0) != NULL) + (ddp_node_buffer(g, loss, 0, &shape) != NULL);
    if (!bad) *h = mixed(*h, ddp_output(g, loss), sizeof(float));
    ddp_zero_gradients(g);
    return bad;
}

static ddp_status operators(uint64_t *h, ddp_error *err)
{
    ddp_status s = DDP_OK;

    for (int which = 0; !s && which < 6; which++) {
        const ddp_optimizer how[] = {ddp_muon(0.01f, 0.02f, 0.9f, 0), ddp_nesterov(0.01f, 0.9f, 0),
                                     ddp_sgd_decay(0.1f, 0, 0.1f), ddp_adam(0.01f, 0.9f, 0.999f, 1e-8f, 0)};
        ddp_config c;
        ddp_oplist list;
        ddp_ctx *d;
        ddp_graph *g;
        ddp_node *loss;
        float value;
        int bad = 0;

        alone(&c);
        BLANK(list);
        if (!(d = ddp_open(&c, err))) return err->code;
        g = ddp_graph_new(d);
        loss = of_model(g, which);
        bad = which < 4 ? ddp_graph_build(g) : 0;
        if (!bad && ddp_graph_error(g)->code) bad = (int)ddp_graph_error(g)->code;
        if (bad) *err = *ddp_graph_error(g);
        if (!bad && which < 4) {
            bad = ddp_set_optimizer(d, &how[which]) || looks(g, loss, h);
            for (int step = 0; step < 2 && !bad; step++) {
                bad = ddp_forward(g) || ddp_backward(g, loss);
                ddp_set_lr(d, 0.01f);
                if (!bad) {
                    value = ddp_value(g, loss);
                    *h = mixed(*h, &value, sizeof value);
                }
                if (!bad) bad = ddp_step_end(d);
            }
            if (!bad) bad = in_a_state(d, g, loss, h);
            if (bad) *err = ddp_last_error(d)->code ? *ddp_last_error(d) : *ddp_graph_error(g);
        }
        if (!bad) {
            s = ddp_graph_oplist(g, &list, err);
            if (!s) s = ddp_oplist_check(&list, err);
            ddp_oplist_free(&list);
        }
        if (bad) s = err->code;
        ddp_close(d);
    }
    return s;
}

/* ---- data and files ---- */

/* Writes an input file of the test. No call fails meanwhile. */
static void own_file(const char *name, const void *bytes, size_t n)
{
    const int kind = faults->kind;
    FILE *f;

    faults->kind = NO_CALLS;
    f = fopen(file_named(name), "wb");
    assert_true(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    faults->kind = kind;
}

static ddp_status texts(uint64_t *h, ddp_error *err)
{
    ddp_tokens *t;
    ddp_token_range all;
    int32_t in[4], label[4];
    ddp_status s;

    own_file("a-text.txt", "to be or not to be, that is", 27);
    if (!(t = ddp_tokens_open(file_named("a-text.txt"), err))) return err->code;
    s = ddp_tokens_check(t, ddp_tokens_vocabulary(t), err);
    if (!s) s = ddp_tokens_split(t, 0, 4, &all, NULL, err);
    if (!s && ddp_tokens_windows(&all) > ddp_dealt(1, 0, 0, 1, 1, 0, 1)) {
        ddp_tokens_window(&all, 0, in, label);
        *h = mixed(*h, label, sizeof label) +
             (uint64_t)(ddp_tokens_at(t, 1) + ddp_tokens_byte(t, in[0]) + ddp_tokens_count(t));
    }
    ddp_tokens_close(t);
    return s;
}

static ddp_status pictures(uint64_t *h, ddp_error *err)
{
    static unsigned char cifar[2][3073], idx[16 + 2 * 16], labels[8 + 2];
    static const unsigned char head[16] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4},
                               label[8] = {0, 0, 8, 1, 0, 0, 0, 2};
    static float x[3072];
    ddp_images *a;
    ddp_image_range train, val;
    ddp_image_norm norm;
    int32_t y = 0;
    ddp_status s = DDP_OK;

    for (int i = 0; i < 3073; i++) {
        cifar[0][i] = (unsigned char)(i % 10);
        cifar[1][i] = (unsigned char)(i % 7);
    }
    memcpy(idx, head, sizeof head);
    memcpy(labels, label, sizeof label);
    own_file("a-cifar.bin", cifar, sizeof cifar);
    own_file("a-idx.img", idx, sizeof idx);
    own_file("a-idx.lbl", labels, sizeof labels);
    for (int way = 0; !s && way < 4; way++) {
        a = way == 0   ? ddp_images_cifar(file_named("a-cifar.bin"), 10, err)
            : way == 1 ? ddp_images_cifar_bytes("cifar", cifar, sizeof cifar, 10, err)
            : way == 2
                ? ddp_images_idx(file_named("a-idx.img"), file_named("a-idx.lbl"), err)
                : ddp_images_idx_bytes("images", idx, sizeof idx, "labels", labels, sizeof labels, err);
        if (!a) return err->code;
        s = ddp_images_split(a, 0.5, &train, &val, err);
        if (!s) {
            norm = ddp_images_norm(&train);
            ddp_images_get(&val, &norm, 0, x, &y);
            ddp_images_batch(&train, &norm, 1, 0, 0, 1, 1, x, &y);
            *h = mixed(*h, x, 64) + (uint64_t)y;
        }
        ddp_images_close(a);
    }
    a = ddp_images_open(folder, 0, err); /* a folder without image files */
    assert_null(a);
    if (!s && err->code == DDP_MEMORY) s = err->code;
    return s;
}

static ddp_status tensors(uint64_t *h, ddp_error *err)
{
    static const float one[] = {1, 2, 3, 4, 5, 6}, two[] = {7};
    static const char *const notes[] = {"made", "here", NULL};
    static unsigned char whole_file[4096];
    const void *const data[] = {one, two};
    const int kind = faults->kind;
    ddp_safetensor t[2];
    float got[6];
    size_t n = 0;
    ddp_status s;

    BLANK(t);
    t[0].name = "one";
    t[0].dims = 2;
    t[0].dim[0] = 2;
    t[0].dim[1] = 3;
    t[1].name = "two";
    t[1].dims = 1;
    t[1].dim[0] = 1;
    if ((s = ddp_safetensors_write(file_named("t.safetensors"), 2, t, data, notes, err)) != DDP_OK) return s;
    faults->kind = NO_CALLS;
    {
        FILE *f = fopen(file_named("t.safetensors"), "rb");
        assert_non_null(f);
        n = fread(whole_file, 1, sizeof whole_file, f);
        fclose(f);
    }
    faults->kind = kind;
    for (int way = 0; !s && way < 2; way++) {
        ddp_safetensors *f = way ? ddp_safetensors_from_bytes("bytes", whole_file, n, err)
                                 : ddp_safetensors_open(file_named("t.safetensors"), err);
        const ddp_safetensor *a;
        if (!f) return err->code;
        a = ddp_safetensors_find(f, "one");
        assert_true(ddp_safetensors_count(f) == 2 && ddp_safetensors_at(f, 0) && a &&
                    ddp_safetensors_elements(a) == 6);
        s = ddp_safetensors_floats(f, a, 0, 6, got, err);
        if (!s) s = ddp_safetensors_bytes(f, a, 0, 6, got, err);
        if (!s) assert_string_equal(ddp_safetensors_note(f, "made"), "here");
        if (!s) *h = mixed(*h, got, sizeof got) + ddp_safetensors_type_bytes(a->type);
        ddp_safetensors_close(f);
    }
    return s;
}

static void mine(ddp_jsonl *j)
{
    const int numbers[] = {1, 2, 3};

    ddp_jsonl_event(j, "mine");
    ddp_jsonl_string(j, "name", "value");
    ddp_jsonl_integer(j, "n", 7);
    ddp_jsonl_integers(j, "all", numbers, 3);
    ddp_jsonl_array(j, "list");
    ddp_jsonl_object(j, NULL);
    ddp_jsonl_up(j);
    ddp_jsonl_up(j);
    ddp_jsonl_end(j);
}

/* Errors before a file is abandoned are ignored. */
static ddp_status given_up(uint64_t *h, ddp_error *err)
{
    ddp_jsonl *j = ddp_jsonl_open(file_named("left.jsonl"), err);

    (void)h;
    if (!j) return err->code;
    mine(j);
    ddp_jsonl_abandon(j);
    return DDP_OK;
}

static ddp_status tables(uint64_t *h, ddp_error *err)
{
    const ddp_pipeline_slot slot[] = {{0, -1, {(ddp_task_kind)0, 0}, 0, 0, 1},
                                      {1, -1, {(ddp_task_kind)0, 0}, 0, 1, 2}};
    const ddp_report_step steps[] = {{1.5, 2.0, 100, NAN}, {3, 1, 100, NAN}};
    const int kind = faults->kind;
    ddp_report_pipeline pipe_of[1];
    ddp_report_run run[1];
    ddp_report_data d;
    ddp_jsonl *j;
    ddp_blob blob;
    char *paper;
    FILE *f;
    ddp_status s;

    BLANK(pipe_of);
    BLANK(run);
    BLANK(d);
    pipe_of[0].name = "gpipe";
    pipe_of[0].stages = 2;
    pipe_of[0].slot = slot;
    pipe_of[0].slots = 2;
    pipe_of[0].step_s = 2;
    run[0].strategy = "ssgd";
    run[0].step_ms = 1500;
    run[0].hidden_pct = 50;
    run[0].time_to_loss_s = NAN;
    run[0].steps = steps;
    run[0].step_count = 2;
    d.title = "a title";
    d.workers = 1;
    d.runs = run;
    d.run_count = 1;
    d.target_loss = NAN;
    faults->kind = NO_CALLS; /* the stream belongs to the caller */
    f = tmpfile();
    assert_non_null(f);
    faults->kind = kind;
    s = ddp_report_table(&d, f, err);
    if (!s) s = ddp_report_pipelines(pipe_of, 1, f, err);
    if (!s && !(j = ddp_jsonl_stream(f, err))) s = err->code;
    if (!s) {
        mine(j);
        s = ddp_jsonl_close(j, err);
    }
    if (!s) {
        blob = ddp_blob_new(100);
        paper = (char *)ddp_paper(100000);
        if (!blob.bytes || !paper)
            s = ddp__fail(err, DDP_MEMORY, "the test has no memory for its blob or paper");
        else
            *h += (uint64_t)ftell(f) + (uint64_t)paper[5];
        ddp_blob_free(&blob);
        ddp_paper_free(paper, 100000);
    }
    faults->kind = NO_CALLS;
    fclose(f);
    faults->kind = kind;
    return s;
}

/* ---- worlds of threads ---- */

typedef struct crowd {
    ddp_config cfg;
    ddp_strategy_ops own;
    int micro_batches;
    uint64_t hash[4];
} crowd;

static void seen(crowd *c, ddp_ctx *d, int bad, const float *x, size_t n)
{
    c->hash[ddp_rank(d)] = bad ? 0 : ddp_hash_floats(7, x, n);
}

/* Runs collectives, probes, the ring, and sites. */
static int speaks(ddp_ctx *d, void *user)
{
    static const int site_of[] = {1, 1, 2}, pair[] = {0, 1};
    const int rank = ddp_rank(d);
    ddp_probe_result found;
    ddp_ring_choice choice;
    ddp_link_stats stats;
    ddp_network net;
    ddp_sites sites;
    ddp_error err;
    float x[27]; /* n values of each rank */
    int bad, group;

    BLANK(found);
    BLANK(net);
    for (int i = 0; i < 27; i++) x[i] = (float)(i + rank);
    bad = ddp_same(d, "of the test", 7) || ddp_barrier(d) || ddp_all_mean(d, x, 9) ||
          ddp_broadcast(d, x, 9, 1) || ddp_all_gather(d, x, 9) || ddp_reduce_scatter(d, x, 9, 0.5f) ||
          ddp_all_gather(d, x, 9);
    if (!bad && rank < 2) bad = rank ? ddp_recv(d, x, 4, 0) : ddp_send(d, x, 4, 1);
    if (!bad)
        bad = ddp_group(d, pair, 2, &group) || ddp_sites_open(d, site_of, &sites) ||
              ddp_sites_all_reduce(d, &sites, x, 9, 1);
    if (!bad) bad = ddp_measure_links(d) || ddp_get_link_stats(d, 0, &stats) || ddp_links(d) != 1;
    if (!bad) bad = ddp_probe(d, &found) || ddp_ring_tune(d, &found, &choice);
    if (!bad && ddp_probe_network(&found, &net, &err)) bad = ddp_complain(d, err.code, "%s", err.msg);
    ddp_network_free(&net);
    ddp_probe_free(&found);
    seen((crowd *)user, d, bad, x, 3);
    return bad;
}

/* The calls of a user-defined strategy: each layer is averaged in a different way. */
typedef struct verbs {
    float *kept, *twin, *state;
    long ticket;
} verbs;

static int verbs_start(ddp_ctx *d, void *self)
{
    verbs *v = (verbs *)self;

    v->kept = ddp_keep(d, 0, "kept", 40, 0);
    v->twin = ddp_keep(d, DDP_NO_LAYER, "twin", 40, 0);
    v->state = ddp_keep(d, DDP_NO_LAYER, "state", 40, DDP_KEPT_NOWHERE);
    return v->kept && v->twin && v->state ? 0 : (int)DDP_MEMORY;
}

static int verbs_backward_end(ddp_ctx *d, void *self, int layer)
{
    verbs *v = (verbs *)self;
    ddp_message m;
    ddp_piece p;
    int n;

    if (layer > 0) return ddp_update_layer(d, layer, NULL) || ddp_average(d, layer, layer, 0);
    memset(&m, 0, sizeof m);
    p.data = v->twin;
    p.count = 40;
    m.verb = DDP_ALL_REDUCE;
    m.from = &p;
    m.from_count = 1;
    m.mean = 1;
    m.step = ddp_step(d);
    m.layer = DDP_NO_LAYER;
    return ddp_copy(d, v->twin, ddp_gradients_of(d, 0, &n)->data, 40) || ddp_post(d, &m, &v->ticket);
}

static int verbs_step_end(ddp_ctx *d, void *self, int forward)
{
    verbs *v = (verbs *)self;
    static const unsigned char takes[] = {1};
    float host[40];
    double norm;
    int bad, n;

    (void)forward;
    (void)ddp_is_done(d, v->ticket);
    bad = ddp_hold(d, v->ticket, 0) || ddp_clip(d) || ddp_update_late(d, 0, v->twin, ddp_rate(d)) ||
          ddp_update_copy(d, 0, v->kept, v->state, v->twin, ddp_rate(d)) || ddp_average_exact(d, 0);
    for (int l = 1; l < ddp_layers(d) && !bad; l++) bad = ddp_average_hold(d, l);
    if (!bad) bad = ddp_average_parts(d, 1, takes, 0, 1) || ddp_average_hold(d, 1);
    if (!bad)
        bad = ddp_axpy(d, v->kept, v->twin, 40, 0.5f) || ddp_scale(d, v->kept, 40, 0.5f) ||
              ddp_set(d, v->state, 40, 0) || ddp_norm2(d, v->kept, 40, &norm) ||
              ddp_late_apply(d, v->kept, v->twin, v->kept, 40, DDP_LATE_MIX, 0.5f) ||
              ddp_download(d, host, ddp_parameters_of(d, 0, &n)->data, 40) ||
              ddp_upload(d, v->kept, host, 40);
    return bad;
}

static int trains(ddp_ctx *d, void *user)
{
    crowd *c = (crowd *)user;
    static const char *const name[] = {"in", "mid", "out"};
    const ddp_optimizer o = c->own.name ? ddp_own_update() : ddp_sgd(0.1f, 0.9f), sgd = ddp_sgd(0.1f, 0);
    float w[3][40], g[3][40];
    ddp_span span[8];
    ddp_note note[4];
    ddp_stats stats;
    ddp_step_info info;
    ddp_layer layer;
    ddp_plan plan;
    ddp_error err;
    int bad = 0;

    BLANK(info);
    BLANK(plan);
    for (int l = 0; l < 3 && !bad; l++) {
        for (int i = 0; i < 40; i++) {
            w[l][i] = (float)(i % 7 + l);
            g[l][i] = 0;
        }
        BLANK(layer);
        layer.name = name[l];
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = 40;
        layer.flops = 1e6;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, c->own.name ? &sgd : &o);
    if (!bad && ddp_rank(d) >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    if (!bad && c->cfg.strategy == DDP_DREAMDDP && !c->own.name) {
        if (ddp_plan_read(file_named("a-plan.json"), 3, &plan, &err))
            bad = ddp_complain(d, err.code, "%s", err.msg);
        if (!bad) bad = ddp_plan_adopt(d, &plan);
        ddp_plan_free(&plan);
    }
    for (int step = 0; step < 4 && !bad; step++) {
        for (int l = 0; l < 3 && !bad; l++) bad = ddp_forward_begin(d, l);
        for (int l = 2; l >= 0 && !bad; l--) {
            for (int i = 0; i < 40; i++) g[l][i] = (float)((i + step + ddp_rank(d)) % 5) - 2;
            bad = ddp_backward_begin(d, l);
            if (!bad) bad = step == 1 && l == 1 && !c->own.name ? ddp_skip(d, l) : ddp_backward_end(d, l);
        }
        info.loss = 1.0 / (step + 1);
        info.samples = 1;
        if (!bad) bad = ddp_report(d, &info) || ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d) || ddp_sync_all(d);
    ddp_get_stats(d, &stats);
    (void)ddp_trace_copy(d, span, 8);
    (void)ddp_notes(d, note, 4);
    seen(c, d, bad, w[0], 40);
    return bad;
}

static ddp_status crowded(crowd *c, int (*fn)(ddp_ctx *, void *), ddp_strategy strategy, int world,
                          uint64_t *h, ddp_error *err)
{
    ddp_status s;

    alone(&c->cfg);
    c->cfg.micro_batches = c->micro_batches;
    c->cfg.world = world;
    c->cfg.strategy = strategy;
    c->cfg.transport = DDP_THREADS;
    c->cfg.period = 2;
    c->cfg.deterministic = 1;
    c->cfg.profile_steps = 1;
    c->cfg.timeout.connect_s = 2;
    c->cfg.timeout.peer_s = 5;
    c->cfg.server.staleness = 1;
    c->cfg.osp.defer = 0.5;
    if (strategy >= DDP_BSP && strategy <= DDP_OSP) c->cfg.server.count = 1;
    if (c->own.name) c->cfg.own_strategy = &c->own;
    s = (ddp_status)ddp_launch(&c->cfg, fn, c, err);
    if (!s) *h = mixed(*h, c->hash, sizeof c->hash);
    return s;
}

static ddp_status collectives(uint64_t *h, ddp_error *err)
{
    crowd c;

    BLANK(c);
    return crowded(&c, speaks, DDP_WFBP, 3, h, err);
}

static ddp_status strategies(uint64_t *h, ddp_error *err)
{
    static const char plan[] = "{\"period\":2,\"sets\":[[0],[1,2]]}\n";
    crowd c;
    ddp_status s;

    BLANK(c);
    own_file("a-plan.json", plan, sizeof plan - 1);
    c.own.name = "verbs";
    c.own.averages = DDP_AVERAGES_PARAMETERS;
    c.own.self_bytes = sizeof(verbs);
    c.own.start = verbs_start;
    c.own.backward_end = verbs_backward_end;
    c.own.step_end = verbs_step_end;
    s = crowded(&c, trains, DDP_DREAMDDP, 2, h, err);
    BLANK(c);
    if (!s) s = crowded(&c, trains, DDP_DREAMDDP, 2, h, err);
    if (!s) s = crowded(&c, trains, DDP_OSP, 3, h, err);
    if (!s) s = crowded(&c, trains, DDP_BSP, 3, h, err);
    if (!s) s = crowded(&c, trains, DDP_SPARSELOCO, 2, h, err);
    return s;
}

/* ---- stages ---- */

static int staged(ddp_ctx *d, void *user)
{
    crowd *c = (crowd *)user;
    const ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_gpt2_config shape = {7, 4, 2, 2, 4, 2, 0, 0.1f, 0};
    ddp_pipeline_slot slot[32];
    ddp_pipe_layout layout;
    ddp_pipe_stats stats;
    ddp_pipe_config how;
    ddp_node *logits, *loss;
    ddp_graph *g = ddp_graph_new(d);
    ddp_error err;
    ddp_pipe *p;
    int stage_of[64], bad;
    int64_t taken_before = ddp_taken(d);

    BLANK(how);
    BLANK(layout);
    loss = ddp_gpt2(g, &shape, &logits);
    if (!ddp_graph_error(g)->code &&
        (ddp_pipe_cut(g, 2, stage_of, &err) ||
         ddp_pipe_layout_read(file_named("a-place.jsonl"), NULL, g, 2, &layout, &err)))
        return ddp_complain(d, err.code, "%s", err.msg);
    how.schedule = DDP_PIPELINE_GPIPE;
    how.stages = 2;
    how.rank_of = layout.rank_of;
    how.edge.coding = DDP_EDGE_AQ;
    how.edge.ratio = 4;
    how.samples = 4;
    how.batch = 2;
    p = ddp_pipe_open(d, g, loss, &how);
    ddp_pipe_layout_free(&layout);
    if (!p) return (int)(ddp_last_error(d)->code ? ddp_last_error(d)->code : DDP_MEMORY);
    bad = ddp_set_optimizer(d, &o) || ddp_pipe_resume(p) || ddp_pipe_ends(p);
    for (int step = 0; step < 2 && !bad; step++) {
        for (int m = 0; m < ddp_pipe_micro_batches(p) && !bad; m++) {
            const long id[] = {2 * m, 2 * m + 1};
            int32_t *tokens = (int32_t *)ddp_pipe_input(p, m, "tokens"),
                    *labels = (int32_t *)ddp_pipe_input(p, m, "labels");
            for (int i = 0; i < 8; i++) {
                if (tokens) tokens[i] = (i + m) % 7;
                if (labels) labels[i] = (i + m + 1) % 7;
            }
            bad = ddp_pipe_samples(p, m, id);
        }
        if (!bad) bad = ddp_pipe_step(p) || ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d) || ddp_pipe_evaluate(p, 1) || ddp_pipe_get_stats(p, &stats);
    if (!bad)
        c->hash[ddp_rank(d)] =
            (uint64_t)ddp_pipe_stage(p) + ddp_pipe_bytes(p) + (ddp_pipe_output(p, logits) != NULL) +
            (uint64_t)(ddp_pipe_number(p) + ddp_pipe_lanes(p, slot, 0) + (ddp_taken(d) > taken_before));
    if (!bad && isnan(ddp_pipe_loss(p))) bad = (int)ddp_last_error(d)->code;
    ddp_pipe_close(p);
    return bad;
}

static ddp_status stages(uint64_t *h, ddp_error *err)
{
    static const char place[] = "{\"cost_s\":1,\"assign\":[[0,1]]}\n";
    crowd c;

    BLANK(c);
    own_file("a-place.jsonl", place, sizeof place - 1);
    c.micro_batches = 2;
    return crowded(&c, staged, DDP_WFBP, 2, h, err);
}

/* ---- the sweep ---- */

static const scenario list[] = {
    {"the planners' parts", parts, {1, 1, 1}, 0, NULL},
    {"compressors", squeezes, {1, 1, 1}, 0, NULL},
    {"texts", texts, {1, 1, 1}, 0, NULL},
    {"pictures", pictures, {1, 1, 1}, 0, NULL},
    {"tensors", tensors, {1, 1, 1}, 0, NULL},
    {"tables", tables, {1, 1, 1}, 0, NULL},
    {"an abandoned file", given_up, {1, 1, 1}, 1, NULL},
    {"operators", operators, {7, 1, 1}, 0, NULL},
    {"collectives", collectives, {7, 1, 1}, 1, NULL},
    {"strategies", strategies, {13, 3, 1}, 1, NULL},
    {"stages", stages, {7, 1, 1}, 1, NULL},
};

int main(void) { return swept(list, sizeof list / sizeof list[0]); }
