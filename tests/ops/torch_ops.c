/* Helper of test_torch_ops.py: runs the float kernels of every operator on random numbers and prints all
 * arrays, one per line: case, array, dimensions, "|", values. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "ops/op_check.h"

static void print_array(const char *op, const char *name, int index, const ddp_shape *s, const void *a,
                        ddp_dtype type)
{
    const long n = ddp_shape_count(s);
    long i;
    int d;

    if (!a) return;
    printf("%s %s%d", op, name, index);
    for (d = 0; d < s->dims; d++) printf(" %ld", s->dim[d]);
    printf(" |");
    for (i = 0; i < n; i++) {
        if (type == DDP_I32)
            printf(" %d", ((const int32_t *)a)[i]);
        else
            printf(" %.9g", (double)((const float *)a)[i]);
    }
    printf("\n");
}

int main(void)
{
    static const op_case cases[] = {
        {"linear", 1, {{3, {2, 9, 33, 0}}}, {DDP_F32}, {45}, {0, {0}}, 1, 0, 0},
        {"embedding", 1, {{2, {3, 11, 0, 0}}}, {DDP_I32}, {23, 17}, {0, {0}}, 1, 0, 22},
        {"layer_norm", 1, {{3, {2, 7, 53, 0}}}, {DDP_F32}, {0}, {0, {0}}, 1, 0, 0},
        {"gelu", 1, {{2, {31, 37, 0, 0}}}, {DDP_F32}, {0}, {0, {0}}, 1, 0, 0},
        {"relu", 1, {{2, {31, 37, 0, 0}}}, {DDP_F32}, {0}, {0, {0}}, 1, 0, 0},
        {"attention", 1, {{3, {2, 75, 3 * 40, 0}}}, {DDP_F32}, {4}, {0, {0}}, 1, 0, 0},
        {"attention_grouped", 1, {{3, {2, 75, 12 * 10, 0}}}, {DDP_F32}, {8, 2}, {0, {0}}, 1, 0, 0},
        {"rms_norm", 1, {{3, {2, 7, 53, 0}}}, {DDP_F32}, {0}, {0, {0}}, 1, 0, 0},
        {"rope", 1, {{3, {2, 75, 12 * 10, 0}}}, {DDP_F32}, {8, 2}, {0, {0}}, 1, 0, 0},
        {"swiglu", 1, {{2, {31, 74, 0, 0}}}, {DDP_F32}, {0}, {0, {0}}, 1, 0, 0},
        {"cross_entropy",
         2,
         {{2, {29, 101, 0, 0}}, {1, {29, 0, 0, 0}}},
         {DDP_F32, DDP_I32},
         {0},
         {0, {0}},
         1,
         -1,
         100},
        {"linear_cross_entropy",
         2,
         {{2, {300, 21, 0, 0}}, {1, {300, 0, 0, 0}}},
         {DDP_F32, DDP_I32},
         {101},
         {0, {0}},
         1,
         -1,
         100},
    };
    size_t i;
    int k;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        op_case its = cases[i];
        op_check c;
        if (!strcmp(its.op, "attention_grouped")) its.op = "attention";
        op_open(&c, &its);
        op_preset(&c, 9, 0);
        op_forward(&c, 0, NULL);
        op_backward(&c, 0, 0, NULL);
        for (k = 0; k < c.spec.inputs; k++) {
            print_array(cases[i].op, "in", k, &c.spec.in[k], c.side[0].in[k], c.spec.in_type[k]);
            print_array(cases[i].op, "grad_in", k, &c.spec.in[k], c.side[0].grad_in[k], DDP_F32);
        }
        for (k = 0; k < c.spec.params; k++) {
            const ddp_shape *s = &c.spec.param[k].shape;
            print_array(cases[i].op, "param", k, s, c.side[0].param[k], DDP_F32);
            print_array(cases[i].op, "grad_param", k, s, c.side[0].grad_param[k], DDP_F32);
        }
        print_array(cases[i].op, "out", 0, &c.spec.out, c.side[0].out, DDP_F32);
        print_array(cases[i].op, "grad_out", 0, &c.spec.out, c.side[0].grad_out, DDP_F32);
        op_close(&c);
    }
    (void)op_check_slopes;
    (void)op_check_float;
    (void)op_check_adds;
    (void)op_run_hashed;
    return 0;
}
