/* gelu, relu and add on the device compared with the CPU, at sizes that are not multiples of a vector. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/families.h"
#include "cuda/cuda_check.h"

static void check(const char *op, int inputs, long rows, long columns, long height = 0, long width = 0)
{
    cuda_case k = cuda_case_of(op, rows, columns, height, width);

    k.inputs = inputs;
    k.in[1] = k.in[0];
    cuda_check_case(&k, cuda_elementwise_ops);
}

static void each(const char *op, int inputs)
{
    check(op, inputs, 1, 1);
    check(op, inputs, 3, 5);
    check(op, inputs, 8, 256);
    check(op, inputs, 37, 61);
    check(op, inputs, 2, 3, 5, 7);
}

static void gelu_matches_the_cpu(void **state)
{
    (void)state;
    each("gelu", 1);
}

static void relu_matches_the_cpu(void **state)
{
    (void)state;
    each("relu", 1);
}

static void add_matches_the_cpu(void **state)
{
    (void)state;
    each("add", 2);
}

/* out overlaps in[0]. Then both inputs are one array, and the second input adds to its gradient. */
static void add_works_in_place(void **state)
{
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, cuda_elementwise_ops);
    cuda_case k = cuda_case_of("add", 1030);
    ddp_op_call call;
    cuda_check c;
    float *got;
    long i;

    (void)state;
    k.inputs = 2;
    k.in[1] = k.in[0];
    cuda_open(&c, dev, &k);
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 1, 0, &call);
    call.out = cuda_at(&c, &c.in[0]);
    c.gpu->forward(&call);
    call.grad_in[1] = call.grad_in[0];
    call.add_in[1] = 1;
    c.gpu->backward(&call);
    cuda_ok(dev);
    got = cuda_get(&c, &c.in[0], "out");
    for (i = 0; i < 1030; i++) assert_true(got[i] == c.in[0].cpu[i] + c.in[1].cpu[i]);
    free(got);
    got = cuda_get(&c, &c.grad_in[0], "gradient");
    for (i = 0; i < 1030; i++) assert_true(got[i] == 2 * c.grad_out.cpu[i]);
    free(got);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_matches_the_cpu),
        cmocka_unit_test(relu_matches_the_cpu),
        cmocka_unit_test(add_matches_the_cpu),
        cmocka_unit_test(add_works_in_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
