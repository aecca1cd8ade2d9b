/* Operators as a user might write them, random graphs of them, and a fake context that only records calls. */
#ifndef TESTS_GRAPH_LAB_H
#define TESTS_GRAPH_LAB_H

/* ---- user-defined operators; float only, plain loops ---- */

static ddp_status linear_shape(ddp_op_spec *s, ddp_error *err)
{
    long width = (long)s->arg[0], c = s->in[0].dim[s->in[0].dims - 1];

    if (s->inputs != 1 || width < 1) return ddp__fail(err, DDP_ARG, "width %ld is not positive", width);
    s->out = s->in[0];
    s->out.dim[s->out.dims - 1] = width;
    s->params = 2;
    s->param[0].name = "weight";
    s->param[0].shape.dims = 2;
    s->param[0].shape.dim[0] = width;
    s->param[0].shape.dim[1] = c;
    s->param[0].init = DDP_INIT_UNIFORM;
    s->param[0].scale = 0.5f;
    s->param[1].name = "bias";
    s->param[1].shape.dims = 1;
    s->param[1].shape.dim[0] = width;
    s->param[1].init = DDP_INIT_NORMAL;
    s->param[1].scale = 0.1f;
    s->flops = 2.0 * (double)ddp_shape_count(&s->out) * (double)c;
    s->out_unread = 1;
    return DDP_OK;
}

/* The weight belongs to another node and is given as param[0]. The output is as wide as the weight has
 * rows. */
static ddp_status tied_shape(ddp_op_spec *s, ddp_error *err)
{
    if (s->params != 1) return ddp__fail(err, DDP_ARG, "needs a tied node");
    s->out = s->in[0];
    s->out.dim[s->out.dims - 1] = s->param[0].shape.dim[0];
    s->flops = 2.0 * (double)ddp_shape_count(&s->out) * (double)s->param[0].shape.dim[1];
    s->out_unread = 1;
    return DDP_OK;
}

static void linear_forward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0], *w = (const float *)c->param[0];
    const float *b = (const float *)c->param[1];
    long n = ddp_shape_rows(&c->spec->in[0]), o, i, r;
    long in = c->spec->param[0].shape.dim[1], width = c->spec->param[0].shape.dim[0];
    float *y = (float *)c->out;

    for (r = 0; r < n; r++)
        for (o = 0; o < width; o++) {
            float sum = b ? b[o] : 0;
            for (i = 0; i < in; i++) sum += x[r * in + i] * w[o * in + i];
            y[r * width + o] = sum;
        }
}

static void linear_backward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0], *w = (const float *)c->param[0];
    const float *dy = (const float *)c->grad_out;
    float *dx = (float *)c->grad_in[0], *dw = (float *)c->grad_param[0];
    float *db = (float *)c->grad_param[1];
    long n = ddp_shape_rows(&c->spec->in[0]), o, i, r;
    long in = c->spec->param[0].shape.dim[1], width = c->spec->param[0].shape.dim[0];

    if (dx && !c->add_in[0]) memset(dx, 0, (size_t)(n * in) * sizeof *dx);
    for (r = 0; r < n; r++)
        for (o = 0; o < width; o++) {
            float d = dy[r * width + o];
            if (db) db[o] += d;
            for (i = 0; i < in; i++) {
                dw[o * in + i] += d * x[r * in + i];
                if (dx) dx[r * in + i] += d * w[o * in + i];
            }
        }
}

static ddp_status lookup_shape(ddp_op_spec *s, ddp_error *err)
{
    if (s->in_type[0] != DDP_I32) return ddp__fail(err, DDP_ARG, "tokens must be DDP_I32");
    s->out = s->in[0];
    s->out.dims = 2;
    s->out.dim[0] = ddp_shape_count(&s->in[0]);
    s->out.dim[1] = (long)s->arg[1];
    s->params = 1;
    s->param[0].name = "table";
    s->param[0].shape.dims = 2;
    s->param[0].shape.dim[0] = (long)s->arg[0];
    s->param[0].shape.dim[1] = (long)s->arg[1];
    s->param[0].init = DDP_INIT_NORMAL;
    s->param[0].scale = 0.5f;
    return DDP_OK;
}

static void lookup_forward(const ddp_op_call *c)
{
    const int32_t *t = (const int32_t *)c->in[0];
    long n = c->spec->out.dim[0], w = c->spec->out.dim[1], r;

    for (r = 0; r < n; r++)
        memcpy((float *)c->out + r * w, (const float *)c->param[0] + t[r] * w, (size_t)w * sizeof(float));
}

static void lookup_backward(const ddp_op_call *c)
{
    const int32_t *t = (const int32_t *)c->in[0];
    long n = c->spec->out.dim[0], w = c->spec->out.dim[1], r, i;

    assert_null(c->grad_in[0]); /* integers have no gradient */
    for (r = 0; r < n; r++)
        for (i = 0; i < w; i++)
            ((float *)c->grad_param[0])[t[r] * w + i] += ((const float *)c->grad_out)[r * w + i];
}

static ddp_status same_shape(ddp_op_spec *s, ddp_error *err)
{
    if (s->inputs == 2 && ddp_shape_count(&s->in[0]) != ddp_shape_count(&s->in[1]))
        return ddp__fail(err, DDP_ARG, "the two inputs differ in size");
    s->out = s->in[0];
    return DDP_OK;
}

static ddp_status in_place_shape(ddp_op_spec *s, ddp_error *err)
{
    s->in_place_ok = 1;
    return same_shape(s, err);
}

static void put(const ddp_op_call *c, int input, long i, float value)
{
    float *d = (float *)c->grad_in[input];

    if (d) d[i] = c->add_in[input] ? d[i] + value : value;
}

/* FusionLLM's CustomReLU. Its backward reads out. */
static void relu_forward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++) {
        float x = ((const float *)c->in[0])[i];
        ((float *)c->out)[i] = x > 0 ? x : 0.1f * x;
    }
}

static void relu_backward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++) {
        float d = ((const float *)c->grad_out)[i];
        put(c, 0, i, ((const float *)c->out)[i] > 0 ? d : 0.1f * d);
    }
}

static void add_forward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++)
        ((float *)c->out)[i] = ((const float *)c->in[0])[i] + ((const float *)c->in[1])[i];
}

static void add_backward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);
    int k;

    for (k = 0; k < 2; k++)
        for (i = 0; i < n; i++) put(c, k, i, ((const float *)c->grad_out)[i]);
}

/* Saves the slope for backward, which reads neither in nor out. */
static ddp_status tanh_shape(ddp_op_spec *s, ddp_error *err)
{
    s->saved = (size_t)ddp_shape_count(&s->in[0]);
    s->in_place_ok = 1;
    return same_shape(s, err);
}

static void tanh_forward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++) {
        float y = tanhf(((const float *)c->in[0])[i]);
        ((float *)c->saved)[i] = 1 - y * y;
        ((float *)c->out)[i] = y;
    }
}

static void tanh_backward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++) put(c, 0, i, ((const float *)c->saved)[i] * ((const float *)c->grad_out)[i]);
}

static float mask(const ddp_op_call *c, long i)
{
    ddp_rng r = ddp_rng_seed(c->random, (uint64_t)i);

    return !c->training ? 1.0f : ddp_rng_uniform(&r) < 0.25 ? 0.0f : 1.5f;
}

static void drop_forward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++) ((float *)c->out)[i] = mask(c, i) * ((const float *)c->in[0])[i];
}

static void drop_backward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->out);

    for (i = 0; i < n; i++) put(c, 0, i, mask(c, i) * ((const float *)c->grad_out)[i]);
}

/* Scales each column by its buffer. A training forward then moves the buffer towards the column's mean, so
 * running a forward twice changes the buffer, the output, and the input of backward. */
static ddp_status drift_shape(ddp_op_spec *s, ddp_error *err)
{
    const long width = s->in[0].dim[s->in[0].dims - 1];

    s->buffers = 1;
    s->buffer[0].name = "scale";
    s->buffer[0].shape.dims = 1;
    s->buffer[0].shape.dim[0] = width;
    s->buffer[0].init = DDP_INIT_ONE;
    s->saved = (size_t)width;
    s->in_place_ok = 1;
    return same_shape(s, err);
}

static void drift_forward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0];
    float *scale = (float *)c->buffer[0], *saved = (float *)c->saved, *y = (float *)c->out;
    const long width = c->spec->buffer[0].shape.dim[0], rows = ddp_shape_rows(&c->spec->in[0]);
    long i, r;

    for (i = 0; i < width; i++) {
        float mean = 0;

        saved[i] = scale[i];
        for (r = 0; r < rows; r++) mean += x[r * width + i] / (float)rows;
        for (r = 0; r < rows; r++) y[r * width + i] = saved[i] * x[r * width + i];
        if (c->training) scale[i] += 0.1f * (mean - scale[i]);
    }
}

static void drift_backward(const ddp_op_call *c)
{
    const long width = c->spec->buffer[0].shape.dim[0], n = ddp_shape_count(&c->spec->out);
    long i;

    for (i = 0; i < n; i++)
        put(c, 0, i, ((const float *)c->saved)[i % width] * ((const float *)c->grad_out)[i]);
}

/* Half the sum of squares of x - y. The gradient may overwrite x. */
static ddp_status square_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(same_shape(s, err));
    memset(&s->out, 0, sizeof s->out);
    s->grad_over_input = 1;
    return DDP_OK;
}

static void square_forward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->in[0]);
    float sum = 0;

    for (i = 0; i < n; i++) {
        float d = ((const float *)c->in[0])[i] - ((const float *)c->in[1])[i];
        sum += 0.5f * d * d;
    }
    *(float *)c->out = sum;
}

static void square_backward(const ddp_op_call *c)
{
    long i, n = ddp_shape_count(&c->spec->in[0]);
    float g = *(const float *)c->grad_out;

    for (i = 0; i < n; i++) {
        float d = g * (((const float *)c->in[0])[i] - ((const float *)c->in[1])[i]);
        put(c, 0, i, d);
        put(c, 1, i, -d);
    }
}

static const ddp_op user_ops[] = {{"my_linear", linear_shape, linear_forward, linear_backward},
                                  {"my_tied", tied_shape, linear_forward, linear_backward},
                                  {"my_lookup", lookup_shape, lookup_forward, lookup_backward},
                                  {"custom_relu", same_shape, relu_forward, relu_backward},
                                  {"my_add", in_place_shape, add_forward, add_backward},
                                  {"my_tanh", tanh_shape, tanh_forward, tanh_backward},
                                  {"my_drop", in_place_shape, drop_forward, drop_backward},
                                  {"my_drift", drift_shape, drift_forward, drift_backward},
                                  {"my_square", square_shape, square_forward, square_backward}};

static inline ddp_graph *graph_with_ops(ddp_ctx *d)
{
    ddp_graph *g = ddp_graph_new(d);
    size_t i;

    assert_non_null(g);
    for (i = 0; i < sizeof user_ops / sizeof *user_ops; i++)
        assert_int_equal(ddp_register_op(g, &user_ops[i]), 0);
    return g;
}

static inline ddp_node *op1(ddp_graph *g, const char *name, ddp_node *x, double arg)
{
    return ddp_apply(g, name, 1, &x, 1, &arg, NULL);
}

static inline ddp_node *op2(ddp_graph *g, const char *name, ddp_node *a, ddp_node *b)
{
    ddp_node *in[2];

    in[0] = a;
    in[1] = b;
    return ddp_apply(g, name, 2, in, 0, NULL, NULL);
}

static inline ddp_node *lookup(ddp_graph *g, ddp_node *tokens, double vocabulary, double width)
{
    double arg[2];

    arg[0] = vocabulary;
    arg[1] = width;
    return ddp_apply(g, "my_lookup", 1, &tokens, 2, arg, NULL);
}

/* A random graph on (5, 7) arrays with many consumers per node. Every output is used. buffers: some operators
 * have buffers. cut: if not NULL, places segments for recomputation at random; the nodes stay the same. */
static inline ddp_node *random_model(ddp_graph *g, ddp_rng *r, int size, int buffers, ddp_rng *cut)
{
    static const char *const unary[] = {"my_linear", "custom_relu", "my_tanh", "my_drop", "my_drift"};
    ddp_node *node[64], *y = ddp_input(g, "y", DDP_F32, 5, 7);
    int used[64], n = 1, inside = 0, i, k;

    memset(used, 0, sizeof used);
    node[0] = ddp_input(g, "x", DDP_F32, 5, 7);
    ddp_layer_begin(g, "block");
    for (; n < size; n++) {
        if (n > 1 && ddp_rng_below(r, 4) == 0) {
            ddp_layer_end(g);
            ddp_layer_begin(g, "block");
        }
        if (cut && ddp_rng_below(cut, 3) == 0) {
            if (inside) ddp_recompute_end(g);
            inside = !inside || ddp_rng_below(cut, 2);
            if (inside) ddp_recompute_begin(g);
        }
        i = ddp_rng_below(r, 2) ? n - 1 : (int)ddp_rng_below(r, (uint64_t)n);
        k = (int)ddp_rng_below(r, (uint64_t)n);
        used[i]++;
        if (n > 1 && ddp_rng_below(r, 3) == 0) {
            used[k]++;
            node[n] = op2(g, "my_add", node[i], node[k]);
        } else {
            node[n] = op1(g, unary[n == 1 ? 0 : ddp_rng_below(r, buffers ? 5 : 4)], node[i], 7);
        }
    }
    for (i = 0; i < n - 1; i++)
        if (!used[i]) node[n - 1] = op2(g, "my_add", node[n - 1], node[i]);
    if (ddp_rng_below(r, 2)) node[n - 1] = op1(g, "my_linear", node[n - 1], 7);
    node[0] = op2(g, "my_square", node[n - 1], y);
    if (inside) ddp_recompute_end(g);
    ddp_layer_end(g);
    return node[0];
}

/* Copies all gradients into one array, which the caller frees. */
static inline float *all_gradients(ddp_graph *g, size_t *bytes)
{
    float *out = (float *)calloc(ddp_param_count(g), sizeof *out);
    size_t used = 0, n;
    int l;

    assert_non_null(out);
    for (l = 0; l < ddp_layer_count(g); l++) {
        const float *d = ddp_layer_gradients(g, l, &n);

        if (n) memcpy(out + used, d, n * sizeof *d);
        used += n;
    }
    *bytes = used * sizeof *out;
    return out;
}

static inline void fill_inputs(float *x, float *y)
{
    ddp_rng r = ddp_rng_seed(3, 4);
    int i;

    for (i = 0; i < 35; i++) {
        x[i] = (float)ddp_rng_normal(&r);
        y[i] = (float)ddp_rng_normal(&r);
    }
}

static inline void one_pass(ddp_graph *g, ddp_node *loss)
{
    ddp_zero_gradients(g);
    fill_inputs((float *)ddp_data(g, "x"), (float *)ddp_data(g, "y"));
    assert_int_equal(ddp_forward(g), 0);
    assert_int_equal(ddp_backward(g, loss), 0);
}

/* ---- a fake context that only records calls ---- */

typedef struct fake_ctx {
    ddp__host host; /* first member, as in ddp_ctx */
    char log[2000];
    char refuse[16]; /* the log entry that returns DDP_NET */
    double flops[8];
    size_t count[8];
    float *grads[8];
    float seen[8][16]; /* first gradients of each layer at backward_end */
    int layers;
    int more; /* later passes in this step */
} fake_ctx;

static int fake_note(ddp_ctx *d, const char *what, int layer)
{
    fake_ctx *f = (fake_ctx *)(void *)d;
    char entry[16];

    snprintf(entry, sizeof entry, "%s%d ", what, layer);
    strcat(f->log, entry);
    return strcmp(entry, f->refuse) == 0 ? DDP_NET : 0;
}

static int fake_add(ddp_ctx *d, const ddp_layer *l)
{
    fake_ctx *f = (fake_ctx *)(void *)d;

    f->flops[f->layers] = l->flops;
    f->count[f->layers] = l->count;
    f->grads[f->layers++] = l->grads;
    strcat(f->log, l->name);
    strcat(f->log, " ");
    return 0;
}

static int fake_forward(ddp_ctx *d, int layer) { return fake_note(d, "F", layer); }
static int fake_begin(ddp_ctx *d, int layer) { return fake_note(d, "B", layer); }

static int fake_end(ddp_ctx *d, int layer)
{
    fake_ctx *f = (fake_ctx *)(void *)d;
    size_t n = f->count[layer] < 16 ? f->count[layer] : 16;

    if (n) memcpy(f->seen[layer], f->grads[layer], n * sizeof(float));
    return fake_note(d, "E", layer);
}

static int fake_last(const ddp_ctx *d, int layer)
{
    (void)layer;
    return ((const fake_ctx *)(const void *)d)->more == 0;
}

static const ddp__hooks fake_hooks = {fake_add, fake_forward, fake_begin, fake_end, fake_last};

static inline ddp_ctx *fake_open(fake_ctx *f)
{
    memset(f, 0, sizeof *f);
    f->host.hooks = &fake_hooks;
    f->host.seed = 5;
    return (ddp_ctx *)(void *)f;
}

static inline void fake_close(fake_ctx *f)
{
    while (f->host.owned) {
        ddp__owned *o = f->host.owned;

        f->host.owned = o->next;
        o->destroy(o);
    }
}

#endif /* TESTS_GRAPH_LAB_H */
