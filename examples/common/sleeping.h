/* A model of custom operators that sleep for the times of a profile. Its activations and parameters have the
 * sizes of the real model and contain zeros. A pipeline runs it as any other model. */
#ifndef EXAMPLES_SLEEPING_H
#define EXAMPLES_SLEEPING_H

enum { SLEEPING_FORWARD, SLEEPING_BACKWARD, SLEEPING_PARAMS, SLEEPING_WIDTH, SLEEPING_ARGS };

/* Sleeps, and subtracts the time by which this thread's previous sleep was too long. */
static void sleeping_for(double seconds)
{
    static __thread double late;
    const double begin = ddp_now(), end = begin + (seconds > late ? seconds - late : 0);

    ddp_sleep_until(end);
    late += ddp_now() - begin - seconds;
    if (late > 0.01) late = 0.01; /* a long delay by a busy machine is not compensated at once */
}

/* args: seconds of forward and backward, number of parameters, number of output values. */
static ddp_status sleeping_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)err;
    s->out.dims = 2;
    s->out.dim[0] = 1;
    s->out.dim[1] = (long)s->arg[SLEEPING_WIDTH];
    s->flops = 1e9 * s->arg[SLEEPING_FORWARD];
    s->backward_flops = 1e9 * s->arg[SLEEPING_BACKWARD];
    s->out_unread = 1;
    if (s->arg[SLEEPING_PARAMS] < 1) return DDP_OK;
    s->params = 1;
    s->param[0].name = "weight";
    s->param[0].shape.dims = 1;
    s->param[0].shape.dim[0] = (long)s->arg[SLEEPING_PARAMS];
    return DDP_OK;
}

static void sleeping_forward(const ddp_op_call *c)
{
    memset(c->out, 0, (size_t)ddp_shape_count(&c->spec->out) * sizeof(float));
    sleeping_for(c->spec->arg[SLEEPING_FORWARD]);
}

/* The gradients of the input and of the parameters take half of the backward time each. If one is not needed,
 * the other takes the whole. Only the first layer has such an input, of one value. */
static void sleeping_backward(const ddp_op_call *c)
{
    const int input = ddp_shape_count(&c->spec->in[0]) > 1, params = c->spec->params > 0;
    const double half = c->spec->arg[SLEEPING_BACKWARD] / (input && params ? 2 : 1);

    if (c->grad_in[0] && !c->add_in[0])
        memset(c->grad_in[0], 0, (size_t)ddp_shape_count(&c->spec->in[0]) * sizeof(float));
    sleeping_for(half * ((c->grad_in[0] != NULL) + (c->grad_param[0] != NULL)));
}

static ddp_status sleeping_loss_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)s;
    (void)err; /* a scalar */
    return DDP_OK;
}

static void sleeping_loss_forward(const ddp_op_call *c) { *(float *)c->out = 0; }

static void sleeping_loss_backward(const ddp_op_call *c)
{
    if (c->grad_in[0] && !c->add_in[0])
        memset(c->grad_in[0], 0, (size_t)ddp_shape_count(&c->spec->in[0]) * sizeof(float));
}

/* scale is the divisor of the numbers of parameters and values. bytes is the size of the activations between
 * two layers, for a micro-batch. */
static ddp_node *sleeping_model(ddp_graph *g, const ddp_profile *p, double scale, double bytes)
{
    static const ddp_op sleep_op = {"sleep", sleeping_shape, sleeping_forward, sleeping_backward},
                        loss_op = {"sleep loss", sleeping_loss_shape, sleeping_loss_forward,
                                   sleeping_loss_backward};
    const double width = floor(bytes / scale / sizeof(float));
    ddp_node *x = ddp_input(g, "nothing", DDP_F32, 1, 1);

    if (ddp_register_op(g, &sleep_op) || ddp_register_op(g, &loss_op)) return NULL;
    for (int l = 0; l < p->layers; l++) {
        const double count = floor(p->params[l] / scale);
        double arg[SLEEPING_ARGS];
        arg[SLEEPING_FORWARD] = p->forward_s[l];
        arg[SLEEPING_BACKWARD] = p->backward_s[l];
        arg[SLEEPING_PARAMS] = (p->params[l] > 0 || l == 0) && count < 1 ? 1 : count; /* gradients start at a
                                                                                       * parameter */
        arg[SLEEPING_WIDTH] = width > 2 ? width : 2;
        ddp_layer_begin(g, p->name[l]);
        x = ddp_apply(g, "sleep", 1, &x, SLEEPING_ARGS, arg, NULL);
        ddp_layer_end(g);
    }
    return ddp_apply(g, "sleep loss", 1, &x, 0, NULL, NULL);
}

#endif /* EXAMPLES_SLEEPING_H */
