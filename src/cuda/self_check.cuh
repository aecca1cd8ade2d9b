/* The self-check of a device, before training uses it. Each specialised kernel runs on a small problem, and
 * so does its portable form. If the results differ or a launch fails, the device uses the portable form, and
 * one line of the log gives the figures. A kernel that does not end in time is an error. Compression is
 * compared with the CPU, byte by byte. */
#pragma once

#include "cuda/check.cuh"
#include "cuda/conv.cuh"
#include "cuda/text.cuh"
#include "cuda/topk.cuh"
#include "cuda/update.cuh"

/* The value of DREAMDDP_CUDA_HOPPER if it is not set. */
#ifndef DDP__CUDA_HOPPER
#define DDP__CUDA_HOPPER "auto"
#endif

enum { DDP__CHECK_KEPT = 20000 }; /* elements from which Top-K selects, three tiles */

/* The value of DREAMDDP_CUDA_HOPPER that omits a form which ends all work on the device. */
#define DDP__CHECK_WGMMA "attention with wgmma"
static const char *ddp__check_remedy(const char *name)
{
    return strcmp(name, DDP__CHECK_WGMMA) == 0 ? "0" : "portable";
}

/* Closes the check of one form. Returns 1 if the device may use it. name: the kernels, instead: the form that
 * is used if they failed. */
static int ddp__check_passes(ddp__check *c, ddp__finding *f, const char *name, const char *instead)
{
    ddp__cuda *dev = c->dev;
    const size_t used = strlen(c->passed);
    cudaError_t e;

    if (!f->error.code) {
        if (c->late) return 0;       /* an earlier kernel did not end */
        (void)ddp__check_wait(c, f); /* a failure before the first launch */
    }
    if (!f->error.code && f->what && f->worst <= DDP__CHECK_LIMIT) {
        ddp__format(c->passed + used, sizeof c->passed - used, "%s%s %.2g", used ? ", " : "", name, f->worst);
        return 1;
    }
    if (f->error.code)
        ddp__log(dev->log, DDP_LOG_WARN, "GPU %d: self-check: %s failed: %s; %s", dev->device, name,
                 f->error.msg, c->late ? "the device cannot be used any more" : instead);
    else if (f->exact)
        ddp__log(dev->log, DDP_LOG_WARN, "GPU %d: self-check: %s: %s is not bit-identical to the CPU's; %s",
                 dev->device, name, f->what, instead);
    else
        ddp__log(dev->log, DDP_LOG_WARN,
                 "GPU %d: self-check: %s: %s differs from the portable form by %.3g of its largest value "
                 "(limit: %g); %s",
                 dev->device, name, f->what ? f->what : "no array", f->worst, DDP__CHECK_LIMIT, instead);
    if (c->late) return 0;
    e = cudaStreamSynchronize(dev->stream); /* some failures end all work of the process on the device */
    (void)cudaGetLastError();
    if (e != cudaSuccess)
        ddp__cuda_fail(dev, DDP_FAILED,
                       "GPU %d: the self-check of %s failed, and the device cannot be used any more: %s; set "
                       "DREAMDDP_CUDA_HOPPER=%s and start the program again",
                       dev->device, name, cudaGetErrorString(e), ddp__check_remedy(name));
    return 0;
}

/* Compares all results but the saved arrays. */
static void ddp__check_both(ddp__check *c, ddp__finding *f, const ddp_op_call *is, const ddp_op_call *right)
{
    const ddp_op_spec *s = is->spec;
    const long out = ddp_shape_count(&s->out), in = ddp_shape_count(&s->in[0]);

    ddp__check_compare(c, f, "the output", is->out, right->out, out, ddp__cuda_half(c->dev, &s->out), out, 0,
                       out);
    ddp__check_compare(c, f, "the gradient of the input", is->grad_in[0], right->grad_in[0], in, c->dev->half,
                       in, 0, in);
    for (int i = 0; i < s->params; i++) {
        const long n = ddp_shape_count(&s->param[i].shape);
        ddp__check_compare(c, f, i ? "the gradient of the bias" : "the gradient of the weights",
                           is->grad_param[i], right->grad_param[i], n, 0, n, 0, n);
    }
}

/* ---- attention ---- */

static void ddp__check_attention(ddp__check *c)
{
    ddp__cuda *dev = c->dev;
    ddp__finding mma = DDP__ZEROS, wgmma = DDP__ZEROS;

    if (!dev->half && !dev->tf32) return;
    ddp__check_heads(c, &mma, 0, 192, 2, 64); /* three tiles of keys */
    ddp__check_heads(c, &mma, 0, 192, 2, 56);
    ddp__check_heads(c, &mma, 0, 160, 1, 128); /* a separate instance, for heads of 65 to 128 columns */
    if (!ddp__check_passes(c, &mma, "attention with mma", "attention runs without tensor cores"))
        dev->forms |= DDP__PLAIN_ATTENTION;
    if (!dev->map || c->late || ddp__atomic_load(&dev->failed)) return;
    ddp__check_heads(c, &wgmma, 1, 192, 2, 64);
    ddp__check_heads(c, &wgmma, 1, 192, 2, 56);
    if (!ddp__check_passes(c, &wgmma, DDP__CHECK_WGMMA, "attention does not use it")) dev->map = NULL;
}

/* ---- convolution ---- */

static void ddp__check_window(ddp__check *c, ddp__finding *f, long planes, long channels, long step)
{
    ddp_op_spec spec = DDP__ZEROS;
    ddp_op_call call = DDP__ZEROS, right;
    const ddp_op *op;

    ddp__check_new(c);
    spec.inputs = 1;
    spec.in[0] = {4, {1, planes, 9, 9}};
    spec.arg[0] = (double)channels;
    spec.arg[1] = 3;
    spec.arg[2] = (double)step;
    spec.arg[3] = 1;
    spec.arg[4] = 1;
    op = ddp__check_call(c, "conv2d", &spec, &call);
    right = call;
    if (!op || !ddp__check_run(c, f, op, &right, DDP__PLAIN_CONV)) return;
    if (ddp__check_run(c, f, op, &call, 0)) ddp__check_both(c, f, &call, &right);
    if (ddp__check_run(c, f, op, &call, DDP__TALL_CONV)) ddp__check_both(c, f, &call, &right);
}

/* Whole taps at a time, and single elements; both heights of the tiles of weights. */
static void ddp__check_conv(ddp__check *c)
{
    ddp__finding f = DDP__ZEROS;

    if (!c->dev->half && !c->dev->tf32) return;
    ddp__check_window(c, &f, 32, 72, 1);
    ddp__check_window(c, &f, 12, 40, 2);
    if (!ddp__check_passes(c, &f, "convolution with tensor cores", "convolutions run without them"))
        c->dev->forms |= DDP__PLAIN_CONV;
}

/* ---- products of cuBLASLt with more than a bias ---- */

enum { DDP__CHECK_ROWS = 96, DDP__CHECK_COLUMNS = 64 };

/* A product with one epilogue: the bit of its form, a linear layer and the gelu after it. */
typedef struct ddp__check_product {
    unsigned bit;
    ddp_op_spec linear, gelu;
    ddp_op_call first, second;
} ddp__check_product;

static int ddp__check_product_run(ddp__check *c, ddp__finding *f, const ddp__check_product *p, unsigned forms,
                                  ddp_op_call *first, ddp_op_call *second)
{
    *first = p->first;
    *second = p->second;
    if (c->late || f->error.code) return 0;
    c->probe->forms = forms;
    ddp__check_results(c, first);
    ddp__check_results(c, second);
    second->in[0] = first->out;
    if (p->bit == DDP__PLAIN_GELU) {
        ddp__cuda_linear_gelu_forward(first, second);
        return ddp__check_wait(c, f);
    }
    if (p->bit == DDP__PLAIN_SUMS) {
        first->grad_in[0] = NULL;
    } else {
        first->inner = first->in[0];
        first->grad_param[0] = first->grad_param[1] = NULL;
    }
    ddp__cuda_linear_backward(first);
    return ddp__check_wait(c, f);
}

static void ddp__check_epilogue(ddp__check *c, unsigned bit, const char *name)
{
    const long n = DDP__CHECK_COLUMNS, all = DDP__CHECK_ROWS * n;
    const int half = c->dev->half;
    ddp__check_product p = DDP__ZEROS;
    ddp__finding f = DDP__ZEROS;
    ddp_op_call is[2], right[2];

    ddp__check_new(c);
    p.bit = bit;
    p.linear.inputs = p.gelu.inputs = 1;
    p.linear.in[0] = p.gelu.in[0] = {2, {DDP__CHECK_ROWS, n}};
    p.linear.arg[0] = (double)n;
    if (ddp__check_call(c, "linear", &p.linear, &p.first) && ddp__check_call(c, "gelu", &p.gelu, &p.second) &&
        ddp__check_product_run(c, &f, &p, bit, &right[0], &right[1]) &&
        ddp__check_product_run(c, &f, &p, 0, &is[0], &is[1])) {
        ddp__check_compare(c, &f, "the product", is[0].out, right[0].out, all, half, n, 0, n);
        ddp__check_compare(c, &f, "the output of gelu", is[1].out, right[1].out, all, half, n, 0, n);
        ddp__check_compare(c, &f, "the gradient of the input", is[0].grad_in[0], right[0].grad_in[0], all,
                           half, n, 0, n);
        ddp__check_compare(c, &f, "the gradient of the bias", is[0].grad_param[1], right[0].grad_param[1], n,
                           0, n, 0, n);
    }
    if (!ddp__check_passes(c, &f, name, "it runs as a kernel after the product")) c->dev->forms |= bit;
}

static void ddp__check_epilogues(ddp__check *c)
{
    if (ddp__cuda_pair_of(c->dev, "linear", "gelu")) {
        ddp__check_epilogue(c, DDP__PLAIN_GELU, "gelu in a product");
        ddp__check_epilogue(c, DDP__PLAIN_GELU_GRAD, "the gradient of gelu in a product");
    }
    ddp__check_epilogue(c, DDP__PLAIN_SUMS, "a bias gradient in a product");
}

/* ---- the head in chunks ---- */

/* Compares linear_cross_entropy with linear_no_bias and cross_entropy on all rows at once. There are two
 * chunks or more. */
static void ddp__check_head(ddp__check *c)
{
    const long rows = 600, n = DDP__CHECK_COLUMNS, k = 16;
    ddp_op_spec head = DDP__ZEROS, product = DDP__ZEROS, loss = DDP__ZEROS;
    ddp_op_call call = DDP__ZEROS, first = DDP__ZEROS, second = DDP__ZEROS, right;
    const ddp_op *op, *linear, *cross;
    const float one = 1;
    ddp__finding f = DDP__ZEROS;
    int label[600];
    void *labels, *by;

    ddp__check_new(c);
    for (long i = 0; i < rows; i++) label[i] = i % 9 ? (int)ddp_rng_below(&c->rng, (uint64_t)n) : -1;
    labels = ddp__check_take(c, sizeof label);
    by = ddp__check_take(c, sizeof one);
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(labels, label, sizeof label, cudaMemcpyHostToDevice, c->probe->stream));
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(by, &one, sizeof one, cudaMemcpyHostToDevice, c->probe->stream));
    head.inputs = loss.inputs = 2;
    product.inputs = 1;
    head.in[0] = product.in[0] = {2, {rows, k}};
    loss.in[0] = {2, {rows, n}};
    head.in[1] = loss.in[1] = {1, {rows}};
    head.in_type[1] = loss.in_type[1] = DDP_I32;
    head.arg[0] = product.arg[0] = (double)n;
    call.in[1] = second.in[1] = labels;
    call.grad_out = second.grad_out = by;
    op = ddp__check_call(c, "linear_cross_entropy", &head, &call);
    linear = ddp__check_call(c, "linear_no_bias", &product, &first);
    second.in[0] = first.grad_out; /* until the product has an output */
    cross = ddp__check_call(c, "cross_entropy", &loss, &second);
    if (op && linear && cross && ddp__check_run(c, &f, op, &call, 0)) {
        right = call;
        first.in[0] = call.in[0];
        first.param[0] = call.param[0];
        ddp__check_results(c, &first);
        ddp__check_results(c, &second);
        linear->forward(&first);
        second.in[0] = first.out;
        cross->forward(&second);
        if (ddp__check_wait(c, &f)) cross->backward(&second);
        first.grad_out = second.grad_in[0];
        if (ddp__check_wait(c, &f)) linear->backward(&first);
        right.out = second.out;
        right.grad_in[0] = first.grad_in[0];
        right.grad_param[0] = first.grad_param[0];
        if (ddp__check_wait(c, &f)) ddp__check_both(c, &f, &call, &right);
    }
    if (!ddp__check_passes(c, &f, "the head in chunks", "loss and gradient are separate kernels"))
        c->dev->forms |= DDP__PLAIN_HEAD;
}

/* ---- compression, compared with the CPU ---- */

static void ddp__check_unequal(ddp__finding *f, const char *what, const void *is, const void *right,
                               size_t bytes)
{
    if (f->error.code || f->worst > 0) return;
    f->what = what;
    f->exact = 1;
    f->worst = memcmp(is, right, bytes) ? 1 : 0;
}

/* Blocks of int8 and int4, and the residual. The last block is not full. */
static void ddp__check_blocks(ddp__check *c)
{
    enum { N = 1000, MOST = 2 * N };
    unsigned char right[MOST], *is = (unsigned char *)c->host[1];
    float from[N];
    ddp__finding f = DDP__ZEROS;

    for (int bits = 8; bits >= 4; bits -= 4) {
        const ddp_packing packing = bits == 8 ? DDP_PACK_INT8 : DDP_PACK_INT4;
        float *x, *rest = c->host[0];
        size_t bytes = 0;
        void *out;

        ddp__check_new(c);
        x = (float *)ddp__check_values(c, N, 0);
        memcpy(from, rest, sizeof from);
        out = ddp__check_take(c, MOST);
        if (c->late || ddp_pack_quantised(packing, from, N, right, MOST, &bytes, &f.error)) break;
        ddp__cuda_split(c->probe, bits, x, out, N);
        bytes -= DDP_PACK_HEAD;
        if (!ddp__check_wait(c, &f) || !ddp__check_read(c, &f, 1, out, bytes)) break;
        ddp__check_unequal(&f, "a message", is, right + DDP_PACK_HEAD, bytes);
        if (ddp_unpack_store(right, bytes + DDP_PACK_HEAD, c->host[1], N, &f.error)) break;
        for (int i = 0; i < N; i++) from[i] -= c->host[1][i];
        if (!ddp__check_read(c, &f, 0, x, sizeof from)) break;
        ddp__check_unequal(&f, "the residual", rest, from, sizeof from);
    }
    if (!ddp__check_passes(c, &f, "int8 and int4 blocks", "the host makes them"))
        c->dev->forms |= DDP__PLAIN_BLOCKS;
}

/* Top-K with ties. Contexts do not use it. The program calls it with a stream, so the log names the function
 * of the CPU. */
static void ddp__check_topk(ddp__check *c)
{
    enum { N = DDP__CHECK_KEPT, K = 300 };
    const size_t room = ddp_cuda_topk_scratch(N, K), here = ddp_topk_scratch(N, K);
    void *scratch = ddp__calloc(here, 1), *there, *verdict;
    uint64_t right[K], *index;
    ddp__finding f = DDP__ZEROS;
    float *x;

    ddp__check_new(c);
    x = (float *)ddp__check_values(c, N, 0);
    for (int i = 0; i < N; i++) c->host[0][i] = (float)(int)(c->host[0][i] * 1000);
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(x, c->host[0], N * sizeof *x, cudaMemcpyHostToDevice, c->probe->stream));
    there = ddp__check_take(c, room);
    verdict = ddp__check_take(c, sizeof(ddp_cuda_verdict));
    index = (uint64_t *)ddp__check_take(c, sizeof right);
    if (!scratch)
        (void)ddp__fail(&f.error, DDP_MEMORY, "out of memory for Top-K of the CPU");
    else if (!c->late && !ddp_topk(c->host[0], N, K, scratch, here, right, NULL, &f.error) &&
             !ddp_cuda_topk(x, N, K, there, room, index, NULL, (ddp_cuda_verdict *)verdict, c->probe->stream,
                            &f.error) &&
             ddp__check_wait(c, &f) && ddp__check_read(c, &f, 1, index, sizeof right))
        ddp__check_unequal(&f, "an index", c->host[1], right, sizeof right);
    (void)ddp__check_passes(c, &f, "ddp_cuda_topk", "use ddp_topk, on the host");
    if (scratch) DDP_FREE(scratch);
}

/* ---- all of it ---- */

/* Checks all families of kernels that this number mode uses. */
static ddp_status ddp__cuda_self_check(ddp__cuda *dev, double wait_s, ddp_error *err)
{
    static void (*const families[])(ddp__check *) = {ddp__check_attention, ddp__check_conv,
                                                     ddp__check_epilogues, ddp__check_head,
                                                     ddp__check_blocks,    ddp__check_topk};
    const double begin = ddp_now();
    ddp__check c;

    if (ddp__check_open(&c, dev, wait_s, DDP__CHECK_BYTES, DDP__CHECK_MOST)) {
        for (auto family : families)
            if (!c.late && !ddp__atomic_load(&dev->failed)) family(&c);
    } else {
        ddp__log(dev->log, DDP_LOG_WARN,
                 "GPU %d: self-check: out of memory (%d bytes); the portable kernels are used", dev->device,
                 DDP__CHECK_BYTES);
    }
    if (!c.memory) { /* what was not checked is not used */
        dev->map = NULL;
        dev->forms |= DDP__PLAIN;
    }
    if (c.late) { /* every release of memory would wait for the kernel, so no training is possible */
        dev->stuck = 1;
        ddp__cuda_fail(
            dev, DDP_TIMEOUT,
            "GPU %d: a kernel of the self-check did not end within %g s, and the process cannot use "
            "the device any more; set DREAMDDP_CUDA_HOPPER=portable and start the program again",
            dev->device, wait_s);
    }
    ddp__log(dev->log, DDP_LOG_INFO, "GPU %d: self-check: %.1f ms; largest differences: %s", dev->device,
             1e3 * (ddp_now() - begin), c.passed[0] ? c.passed : "none");
    ddp__check_close(&c);
    return ddp__cuda_status(dev, err);
}

/* Chooses the forms of the kernels. DREAMDDP_CUDA_HOPPER: auto checks all, 0 checks all but wgmma, which is
 * not used, 1 uses all without a check, portable uses none of them, also without a check. */
static ddp_status ddp__cuda_prepare(ddp__cuda *dev, int no_env, ddp_error *err)
{
    const char *how = no_env ? NULL : getenv("DREAMDDP_CUDA_HOPPER"); /* config/settings.c checks it */

    dev->no_env = no_env;
    if (!how || !*how) how = DDP__CUDA_HOPPER;
    if (strcmp(how, "1") == 0) return ddp__cuda_status(dev, err);
    if (strcmp(how, "auto") != 0) dev->map = NULL;
    if (strcmp(how, "portable") != 0) return ddp__cuda_self_check(dev, DDP__CHECK_WAIT_S, err);
    dev->forms |= DDP__PLAIN;
    return ddp__cuda_status(dev, err);
}

/* 1 if the device makes int8 and int4 blocks. */
static int ddp__cuda_splits(ddp__cuda *dev) { return !(dev->forms & DDP__PLAIN_BLOCKS); }
