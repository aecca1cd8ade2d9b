/* [pure] Growing lists: capacity of ddp__reserve, failed allocations, and appends that do not allocate. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "base/core.h"

static int allocations, blocks, refuse; /* refuse: allocations fail */

#ifdef __cplusplus
extern "C" {
#endif
void *heap_realloc(void *p, size_t bytes)
{
    void *grown = refuse ? NULL : realloc(p, bytes);

    allocations++;
    if (grown && !p) blocks++;
    return grown;
}

void heap_free(void *p)
{
    if (p) blocks--;
    free(p);
}
#ifdef __cplusplus
}
#endif

static int reset(void **state)
{
    (void)state;
    allocations = blocks = refuse = 0;
    return 0;
}

/* Creates a list with the numbers 0 to n - 1. */
static int *numbers(int n)
{
    int *list = NULL;

    for (int i = 0; i < n; i++) {
        assert_true(ddp__reserve(list, ddp__count(list) + 1));
        stbds_arrput(list, i);
    }
    return list;
}

static void list_grows_geometrically(void **state)
{
    int *list = numbers(10000);

    (void)state;
    assert_int_equal(ddp__count(list), 10000);
    assert_true(stbds_arrcap(list) >= 10000 && stbds_arrcap(list) <= 20000);
    for (int i = 0; i < 10000; i++) assert_int_equal(list[i], i);
    assert_true(allocations < 16);
    assert_int_equal(blocks, 1);
    ddp__array_free(list);
    assert_null(list);
    assert_int_equal(blocks, 0);
}

static void reserved_capacity_is_used_without_an_allocation(void **state)
{
    int *list = numbers(3);
    int *more;

    (void)state;
    assert_true(ddp__reserve(list, 1000));
    allocations = 0;
    refuse = 1;
    assert_true(ddp__reserve(list, 1000));
    while (ddp__count(list) < 900) stbds_arrput(list, ddp__count(list));
    more = stbds_arraddnptr(list, 50u);
    assert_ptr_equal(more, list + 900);
    stbds_arrsetlen(list, 1000);
    assert_int_equal(allocations, 0);
    assert_int_equal(ddp__count(list), 1000);
    for (int i = 0; i < 900; i++) assert_int_equal(list[i], i);
    ddp__array_free(list);
}

static void empty_list_allocates_nothing(void **state)
{
    double *list = NULL;

    (void)state;
    assert_true(ddp__reserve(list, 0));
    assert_null(list);
    assert_int_equal(ddp__count(list), 0);
    ddp__array_free(list);
    assert_int_equal(allocations, 0);
    assert_true(ddp__reserve(list, 1));
    assert_non_null(list);
    assert_int_equal(ddp__count(list), 0);
    assert_int_equal((uintptr_t)list % sizeof *list, 0);
    ddp__array_free(list);
}

static void failed_allocation_leaves_the_list_unchanged(void **state)
{
    int *list = numbers(20), *const was = list;
    int *none = NULL;
    const size_t room = stbds_arrcap(list);

    (void)state;
    refuse = 1;
    assert_false(ddp__reserve(none, 1));
    assert_null(none);
    assert_false(ddp__reserve(list, room + 1));
    assert_ptr_equal(list, was);
    assert_int_equal(stbds_arrcap(list), room);
    assert_int_equal(ddp__count(list), 20);
    for (int i = 0; i < 20; i++) assert_int_equal(list[i], i);
    refuse = 0;
    assert_true(ddp__reserve(list, room + 1));
    assert_int_equal(ddp__count(list), 20);
    for (int i = 0; i < 20; i++) assert_int_equal(list[i], i);
    ddp__array_free(list);
    assert_int_equal(blocks, 0);
}

static void oversized_list_is_not_allocated(void **state)
{
    struct large {
        char bytes[1000];
    } *list = NULL;
    int *filled = numbers(5);

    (void)state;
    allocations = 0;
    assert_false(ddp__reserve(list, SIZE_MAX));
    assert_false(ddp__reserve(list, SIZE_MAX / sizeof *list + 1));
    assert_false(ddp__reserve(filled, SIZE_MAX / sizeof *filled)); /* too large with its header */
    assert_false(ddp__reserve(filled, SIZE_MAX / 2));
    assert_false(ddp__reserve(filled, -1));
    assert_null(list);
    assert_int_equal(ddp__count(filled), 5);
    assert_int_equal(allocations, 0);
    ddp__array_free(filled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(list_grows_geometrically, reset),
        cmocka_unit_test_setup(reserved_capacity_is_used_without_an_allocation, reset),
        cmocka_unit_test_setup(empty_list_allocates_nothing, reset),
        cmocka_unit_test_setup(failed_allocation_leaves_the_list_unchanged, reset),
        cmocka_unit_test_setup(oversized_list_is_not_allocated, reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
