/* [pure] Image files, and their images on each rank. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* Three images of 2 x 2 pixels, and their labels. */
static const unsigned char pictures[28] = {0, 0, 8, 3,  0, 0, 0, 3, 0, 0, 0, 2, 0, 0,
                                           0, 2, 0, 51, 1, 2, 3, 4, 5, 6, 7, 8, 9, 255};
static const unsigned char marks[11] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 9};

static void idx_pairs_are_read(void **unused)
{
    ddp_images *m = ddp_images_idx_bytes("i", pictures, 28, "l", marks, 11, NULL);

    (void)unused;
    assert_non_null(m);
    assert_true(m->count == 3 && m->channels == 1 && m->height == 2 && m->width == 2);
    assert_int_equal(m->classes, 10);
    assert_memory_equal(m->pixels, pictures + 16, 12);
    assert_memory_equal(m->labels, marks + 8, 3);
    ddp_images_close(m);
    ddp_images_close(NULL);
}

/* Reads the pair with one byte changed, or with other lengths. It must fail. */
static void idx_refused(int image, size_t place, unsigned char value, size_t n, size_t m, const char *part)
{
    unsigned char i[28], l[11];
    ddp_error err;

    memcpy(i, pictures, sizeof i);
    memcpy(l, marks, sizeof l);
    if (image)
        i[place] = value;
    else
        l[place] = value;
    assert_null(ddp_images_idx_bytes("im", i, n, "la", l, m, &err));
    assert_int_equal(err.code, DDP_FORMAT);
    assert_true(strstr(err.msg, "im") || strstr(err.msg, "la"));
    if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static void broken_idx_pairs_fail(void **unused)
{
    (void)unused;
    idx_refused(1, 3, 1, 28, 11, "begins with 00000801, but IDX images of bytes begin with 00000803");
    idx_refused(0, 3, 3, 28, 11, "begins with 00000803, but IDX labels");
    idx_refused(1, 0, 0, 15, 11, "15 bytes are fewer than the 16");
    idx_refused(0, 0, 0, 28, 7, "7 bytes are fewer than the 8");
    idx_refused(1, 0, 0, 27, 11, "promises 3 images of 2 x 2 pixels, but 11 bytes follow");
    idx_refused(1, 7, 4, 28, 11, "promises 4 images");
    idx_refused(1, 7, 2, 28, 11, "promises 2 images");
    idx_refused(1, 4, 255, 28, 11, "promises 4278190083 images");
    idx_refused(1, 7, 0, 16, 11, "0 images");
    idx_refused(1, 11, 0, 28, 11, "3 images of 0 x 2");
    idx_refused(1, 8, 1, 28, 11, "16777218 x 2 pixels; at least 1");
    idx_refused(0, 0, 0, 28, 10, "promises 3 labels, but 2 bytes follow");
    idx_refused(0, 7, 2, 28, 10, "2 labels, but im has 3 images");
}

static void cifar_records_are_read(void **unused)
{
    unsigned char *r = (unsigned char *)calloc(2, 3074);
    ddp_images *m;
    ddp_error err;

    (void)unused;
    assert_non_null(r);
    r[0] = 9;
    r[1] = 11;
    r[3073] = 2;
    r[6145] = 22;
    m = ddp_images_cifar_bytes("c", r, 2 * 3073, 10, NULL);
    assert_non_null(m);
    assert_true(m->count == 2 && m->channels == 3 && m->height == 32 && m->width == 32);
    assert_true(m->labels[0] == 9 && m->labels[1] == 2 && m->classes == 10);
    assert_true(m->pixels[0] == 11 && m->pixels[6143] == 22);
    ddp_images_close(m);

    assert_null(ddp_images_cifar_bytes("c", r, 2 * 3073 - 1, 10, &err));
    assert_non_null(strstr(err.msg, "c: 6145 bytes are not a whole number of CIFAR-10 records of 3073: "
                                    "record 1 has only 3072"));
    assert_null(ddp_images_cifar_bytes("c", r, 0, 10, &err));
    assert_int_equal(err.code, DDP_FORMAT);
    r[3073] = 10;
    assert_null(ddp_images_cifar_bytes("c", r, 2 * 3073, 10, &err));
    assert_non_null(strstr(err.msg, "record 1 has label 10; CIFAR-10 has 0 to 9"));
    assert_null(ddp_images_cifar_bytes("c", r, 3073, 20, &err));
    assert_int_equal(err.code, DDP_ARG);

    memset(r, 0, 2 * 3074);
    r[0] = 19;
    r[1] = 99;
    r[2] = 33;
    r[3075] = 100;
    m = ddp_images_cifar_bytes("c", r, 3074, 100, NULL); /* coarse and fine */
    assert_non_null(m);
    assert_true(m->labels[0] == 99 && m->pixels[0] == 33 && m->classes == 100);
    ddp_images_close(m);
    assert_null(ddp_images_cifar_bytes("c", r, 2 * 3074, 100, &err));
    assert_non_null(strstr(err.msg, "record 1 has label 100"));
    free(r);
}

static void write_file(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void folder_kind_is_detected_from_its_files(void **unused)
{
    char folder[] = "/tmp/ddp_images_XXXXXX", command[64];
    unsigned char *r = (unsigned char *)calloc(2, 3074);
    ddp_image_range range;
    ddp_images *m;
    ddp_error err;

    (void)unused;
    assert_non_null(r);
    assert_non_null(mkdtemp(folder));
    assert_null(ddp_images_open(folder, 0, &err));
    assert_non_null(strstr(err.msg, "no training images"));
    assert_null(ddp_images_open(NULL, 0, &err));
    assert_int_equal(err.code, DDP_ARG);
    assert_null(ddp_images_cifar(NULL, 10, &err));
    assert_null(ddp_images_idx(NULL, NULL, &err));
    assert_int_equal(ddp_images_split(NULL, 0, &range, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "were they opened?"));
    snprintf(command, sizeof command, "%s/train.bin", folder);
    assert_int_equal(mkfifo(command, 0600), 0);
    alarm(20); /* reading a pipe would block until a writer comes */
    assert_null(ddp_images_open(folder, 0, &err));
    assert_non_null(strstr(err.msg, "train.bin: it is a pipe, a file is needed"));
    assert_null(ddp_images_open(command, 0, &err));
    assert_non_null(strstr(err.msg, "train.bin: it is a pipe, a folder of images is needed"));
    alarm(0);
    remove(command);
    r[0] = 5;
    write_file(folder, "train.bin", r, 3074); /* CIFAR-100 */
    m = ddp_images_open(folder, 0, NULL);
    assert_non_null(m);
    assert_int_equal(m->classes, 100);
    ddp_images_close(m);

    r[0] = 2;
    write_file(folder, "data_batch_2.bin", r, 3073);
    r[0] = 1;
    write_file(folder, "data_batch_1.bin", r, 3073);
    m = ddp_images_open(folder, 0, NULL); /* CIFAR-10 has precedence. Its files are sorted by name. */
    assert_non_null(m);
    assert_true(m->classes == 10 && m->count == 2 && m->labels[0] == 1 && m->labels[1] == 2);
    ddp_images_close(m);

    write_file(folder, "train-images-idx3-ubyte", pictures, sizeof pictures);
    assert_null(ddp_images_open(folder, 0, &err));
    assert_non_null(strstr(err.msg, "train-labels-idx1-ubyte is missing"));
    write_file(folder, "train-labels-idx1-ubyte", marks, sizeof marks);
    m = ddp_images_open(folder, 0, NULL);
    assert_non_null(m);
    assert_int_equal(m->height, 2);
    ddp_images_close(m);
    assert_null(ddp_images_open(folder, 1, &err));
    assert_non_null(strstr(err.msg, "no test images: t10k-images-idx3-ubyte"));
    write_file(folder, "data_batch_1.bin", r, 3000);
    remove(strcat(strcpy(command, folder), "/train-images-idx3-ubyte"));
    assert_null(ddp_images_open(folder, 0, &err));
    assert_non_null(strstr(err.msg, "data_batch_1.bin: 3000 bytes"));
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    assert_null(ddp_images_open(folder, 0, &err));
    assert_int_equal(err.code, DDP_IO);
    free(r);
}

/* n images of two channels with one pixel each: i and 255 - i, with label i mod 10. */
static ddp_images *ramp(long n, unsigned char *pixels, unsigned char *labels)
{
    static const char *const name = "ramp";
    ddp_images *m = (ddp_images *)calloc(1, sizeof *m);
    long i;

    assert_non_null(m);
    m->count = n;
    m->channels = 2;
    m->height = m->width = 1;
    m->classes = 10;
    m->pixels = pixels;
    m->labels = labels;
    m->name = (char *)(uintptr_t)name;
    for (i = 0; i < n; i++) {
        pixels[2 * i] = (unsigned char)i;
        pixels[2 * i + 1] = (unsigned char)(255 - i);
        labels[i] = (unsigned char)(i % 10);
    }
    return m;
}

static void floats_have_mean_0_and_deviation_1(void **unused)
{
    unsigned char pixels[200], labels[100];
    ddp_images *m = ramp(100, pixels, labels);
    ddp_image_range all;
    ddp_image_norm norm;
    double sum[2] = {0, 0}, squares[2] = {0, 0};
    float x[2];
    int32_t label;
    long i;

    (void)unused;
    assert_int_equal(ddp_images_split(m, 0, &all, NULL, NULL), DDP_OK);
    norm = ddp_images_norm(&all);
    for (i = 0; i < 100; i++) {
        ddp_images_get(&all, &norm, i, x, &label);
        assert_int_equal(label, i % 10);
        sum[0] += (double)x[0];
        sum[1] += (double)x[1];
        squares[0] += (double)x[0] * (double)x[0];
        squares[1] += (double)x[1] * (double)x[1];
    }
    for (i = 0; i < 2; i++) {
        assert_true(fabs(sum[i]) < 1e-3);
        assert_true(fabs(squares[i] - 100) < 1e-3);
    }
    assert_true(fabs((double)norm.mean[0] - 49.5 / 255) < 1e-6);
    memset(pixels, 7, sizeof pixels); /* zero deviation must not divide by 0 */
    norm = ddp_images_norm(&all);
    ddp_images_get(&all, &norm, 3, x, &label);
    assert_true(fabs((double)x[0]) < 1e-6);
    free(m);
}

static void epoch_uses_each_image_once_over_all_ranks(void **unused)
{
    enum { N = 96, WORLD = 3, BATCH = 4 };
    unsigned char pixels[2 * N], labels[N];
    ddp_images *m = ramp(N, pixels, labels);
    ddp_image_range train, val;
    ddp_image_norm norm = {{0, 0, 0}, {1, 1, 1}};
    float x[2 * BATCH], again[2 * WORLD * BATCH], first[2];
    int32_t y[BATCH], many[WORLD * BATCH];
    int seen[N], order = 0, b, r;
    long step;
    ddp_error err;

    (void)unused;
    assert_int_equal(ddp_images_split(m, 0.25, &train, &val, NULL), DDP_OK);
    assert_true(train.count == 72 && val.count == 24 && val.first == 72);
    memset(seen, 0, sizeof seen);
    for (step = 0; step < 6; step++)
        for (r = 0; r < WORLD; r++) {
            ddp_images_batch(&train, &norm, 5, step, r, WORLD, BATCH, x, y);
            for (b = 0; b < BATCH; b++) {
                int i = (int)lroundf(x[2 * b] * 255);
                seen[i]++;
                assert_int_equal(y[b], i % 10);
            }
            /* the same images for any sharding of a step */
            ddp_images_batch(&train, &norm, 5, step, 0, 1, WORLD * BATCH, again, many);
            assert_memory_equal(x, again + 2 * BATCH * r, sizeof x);
        }
    for (b = 0; b < N; b++) assert_int_equal(seen[b], b < 72);

    /* another epoch or another seed gives another order */
    ddp_images_batch(&train, &norm, 5, 0, 0, 1, 1, first, y);
    for (step = 72; step < 72 * 6; step += 72) {
        ddp_images_batch(&train, &norm, 5, step, 0, 1, 1, x, y);
        order += x[0] != first[0];
        ddp_images_batch(&train, &norm, 5 + (uint64_t)step, 0, 0, 1, 1, x, y);
        order += x[0] != first[0];
    }
    assert_true(order >= 6);

    assert_int_equal(ddp_images_split(m, 1, &train, &val, &err), DDP_ARG);
    assert_int_equal(ddp_images_split(m, 0.005, &train, &val, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "leaves a part empty"));
    free(m);
}

static void real_images_load(void **unused)
{
    const char *data = getenv("DDP_DATA");
    char path[512];
    ddp_image_range all;
    ddp_image_norm norm;
    ddp_images *m;

    (void)unused;
    snprintf(path, sizeof path, "%s/mnist", data ? data : "data");
    if (access(path, R_OK)) SKIP("the images are not in $DDP_DATA");
    m = ddp_images_open(path, 1, NULL);
    assert_non_null(m);
    assert_true(m->count == 10000 && m->height == 28 && m->labels[0] == 7 && m->labels[1] == 2);
    ddp_images_split(m, 0, &all, NULL, NULL);
    norm = ddp_images_norm(&all);
    assert_true(fabs((double)norm.mean[0] - 0.13251) < 1e-4); /* as published */
    assert_true(fabs((double)norm.deviation[0] - 0.31048) < 1e-4);
    ddp_images_close(m);

    snprintf(path, sizeof path, "%s/cifar10", data ? data : "data");
    if (access(path, R_OK)) SKIP("the images are not in $DDP_DATA");
    m = ddp_images_open(path, 0, NULL);
    assert_non_null(m);
    assert_true(m->count == 4000 && m->labels[0] == 6 && m->labels[1] == 9);
    assert_true(m->pixels[0] == 59 && m->pixels[1] == 43 && m->pixels[3071] == 72);
    ddp_images_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_pairs_are_read),
        cmocka_unit_test(broken_idx_pairs_fail),
        cmocka_unit_test(cifar_records_are_read),
        cmocka_unit_test(folder_kind_is_detected_from_its_files),
        cmocka_unit_test(floats_have_mean_0_and_deviation_1),
        cmocka_unit_test(epoch_uses_each_image_once_over_all_ranks),
        cmocka_unit_test(real_images_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
