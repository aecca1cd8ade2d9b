/* gelu, relu and add on the device against the CPU, at sizes that no vector divides. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/elementwise.cuh"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

#include "cuda_check.h"

static void check(const char *op, int inputs, long rows, long columns)
{
    cuda_case k;
    int i;

    memset(&k, 0, sizeof k);
    k.op = op;
    k.inputs = inputs;
    for (i = 0; i < inputs; i++) {
        k.in[i].dims = 2;
        k.in[i].dim[0] = rows;
        k.in[i].dim[1] = columns;
    }
    cuda_check_case(&k, ddp__cuda_elementwise_ops);
}

static void each(const char *op, int inputs)
{
    check(op, inputs, 1, 1);
    check(op, inputs, 3, 5);
    check(op, inputs, 8, 256);
    check(op, inputs, 37, 61);
}

static void gelu_is_the_cpus(void **state)
{
    (void)state;
    each("gelu", 1);
}

static void relu_is_the_cpus(void **state)
{
    (void)state;
    each("relu", 1);
}

static void add_is_the_cpus(void **state)
{
    (void)state;
    each("add", 2);
}

/* out over in[0], and both inputs one array whose gradient the second adds to. */
static void add_works_in_place(void **state)
{
    const ddp__cuda_entry *list;
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32);
    ddp_op_call call;
    cuda_check c;
    cuda_case k;
    float *got;
    long i;
    int n;

    (void)state;
    memset(&k, 0, sizeof k);
    k.op = "add";
    k.inputs = 2;
    k.in[0].dims = k.in[1].dims = 1;
    k.in[0].dim[0] = k.in[1].dim[0] = 1030;
    n = ddp__cuda_elementwise_ops(&list);
    ddp__cuda_add_ops(dev, list, n);
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
        cmocka_unit_test(gelu_is_the_cpus),
        cmocka_unit_test(relu_is_the_cpus),
        cmocka_unit_test(add_is_the_cpus),
        cmocka_unit_test(add_works_in_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
