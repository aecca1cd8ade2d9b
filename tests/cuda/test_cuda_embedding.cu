/* [test-all: compiles the GPU companion] The sort of the rows of an embedding's gradient by token: exactly
 * the order of a stable sort. Sums in another order are too close to show an error of the sort. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/embedding.cuh"

#include "cuda/cuda_check.h"

#include <vector>

static void embedding_alone(ddp__cuda *dev)
{
    static const ddp__cuda_entry ops[] = {
        DDP__ENTRY("embedding", ddp__cuda_embedding, ddp__cuda_embedding_scratch),
        DDP__ENTRY("position", ddp__cuda_position, NULL),
        DDP__ENTRY("rope", ddp__cuda_rope, NULL),
    };

    ddp__cuda_add_ops(dev, ops);
}

static void check_order(long rows, long v, long low, long high)
{
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, embedding_alone);
    const long counts = ddp__blocks(rows, DDP__EMBEDDING_TILE) * DDP__EMBEDDING_DIGITS;
    std::vector<int> token((size_t)rows), order((size_t)rows);
    int *there = NULL;
    ddp_rng rng = ddp_rng_seed(3, (uint64_t)rows);

    for (int &t : token) t = (int)(low + (long)ddp_rng_below(&rng, (uint64_t)(high - low + 1)));
    assert_int_equal(cudaMalloc((void **)&there, (size_t)(3 * rows + counts) * sizeof *there), cudaSuccess);
    assert_int_equal(cudaMemcpy(there, token.data(), token.size() * sizeof *there, cudaMemcpyHostToDevice),
                     cudaSuccess);
    ddp__cuda_embedding_order(dev, there + rows, there + 2 * rows, there + 3 * rows, there, rows, v);
    cuda_ok(dev);
    assert_int_equal(
        cudaMemcpy(order.data(), there + rows, order.size() * sizeof *there, cudaMemcpyDeviceToHost),
        cudaSuccess);
    for (size_t i = 1; i < order.size(); i++) { /* strictly ascending by token, then by row: a permutation */
        const int a = token.at((size_t)order[i - 1]), b = token.at((size_t)order[i]);
        const long first = a >= 0 && a < v ? a : v, second = b >= 0 && b < v ? b : v;
        if (first > second || (first == second && order[i - 1] >= order[i]))
            fail_msg("%ld rows, %ld tokens: row %d (token %d) is before row %d (token %d)", rows, v,
                     order[i - 1], a, order[i], b);
    }
    assert_int_equal(cudaFree(there), cudaSuccess);
    ddp__cuda_close(dev);
}

/* One tile of rows and several; one, two and three digits; few and many rows per token. */
static void rows_are_sorted_by_token(void **state)
{
    static const long sizes[][2] = {{1, 1},      {700, 5},      {1024, 255},   {1025, 256},
                                    {2500, 300}, {3000, 65535}, {2049, 65536}, {5000, 70000}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_order(sizes[i][0], sizes[i][1], 0, sizes[i][1] - 1);
}

static void invalid_tokens_are_last(void **state)
{
    (void)state;
    check_order(1500, 300, -20, 320);
    check_order(1500, 255, -2000000000, 2000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted_by_token),
        cmocka_unit_test(invalid_tokens_are_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
