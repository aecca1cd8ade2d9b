/* Loads labelled images from IDX and CIFAR files, directly or from a folder, and deals them in batches. */
#include "base/core.h"
#include "data/data.h"

#include <dirent.h>

#define DDP__CIFAR_PIXELS 3072 /* 3 x 32 x 32: red, green, blue */
#define DDP__IDX_IMAGES   0x00000803u
#define DDP__IDX_LABELS   0x00000801u

static size_t ddp__image_bytes(const ddp_images *m) { return (size_t)(m->channels * m->height * m->width); }

static ddp_images *ddp__images_new(const char *name, ddp_error *err)
{
    ddp_images *m = (ddp_images *)ddp__calloc(1, sizeof *m);

    if (m && name) m->name = ddp__strdup(name);
    if (m && m->name) return m;
    if (!name)
        ddp__fail(err, DDP_ARG, "the name of the image file is NULL");
    else
        ddp__fail(err, DDP_MEMORY, "out of memory while opening %s", name);
    ddp_images_close(m);
    return NULL;
}

static ddp_status ddp__images_grow(ddp_images *m, const char *name, long more, ddp_error *err)
{
    size_t count = (size_t)m->count + (size_t)more, bytes = count * ddp__image_bytes(m);
    unsigned char *p = (unsigned char *)DDP_REALLOC(m->pixels, bytes), *l;

    if (p) m->pixels = p;
    l = p ? (unsigned char *)DDP_REALLOC(m->labels, count) : NULL;
    if (l) m->labels = l;
    if (l) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "%s: out of memory for %zu bytes of images", name, bytes);
}

void ddp_images_close(ddp_images *m)
{
    if (!m) return;
    if (m->pixels) DDP_FREE(m->pixels);
    if (m->labels) DDP_FREE(m->labels);
    if (m->name) DDP_FREE(m->name);
    DDP_FREE(m);
}

/* ---- IDX: big-endian, a magic number with type and number of dimensions, then the dimensions ---- */

static uint32_t ddp__idx_word(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static ddp_status ddp__idx_header(const char *name, const unsigned char *p, size_t n, uint32_t magic,
                                  const char *what, ddp_error *err)
{
    size_t header = magic == DDP__IDX_IMAGES ? 16 : 8;

    if (n < header)
        return ddp__fail(err, DDP_FORMAT,
                         "%s: %zu bytes are fewer than the %zu of a header of IDX %s: is it truncated?", name,
                         n, header, what);
    if (ddp__idx_word(p) == magic) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%s: begins with %08x, but IDX %s of bytes begin with %08x", name,
                     ddp__idx_word(p), what, magic);
}

static ddp_status ddp__idx_images(ddp_images *m, const char *name, const unsigned char *p, size_t n,
                                  ddp_error *err)
{
    uint32_t count, height, width;

    DDP__TRY(ddp__idx_header(name, p, n, DDP__IDX_IMAGES, "images", err));
    count = ddp__idx_word(p + 4);
    height = ddp__idx_word(p + 8);
    width = ddp__idx_word(p + 12);
    if (count < 1 || height < 1 || width < 1 || height > 65535 || width > 65535)
        return ddp__fail(err, DDP_FORMAT,
                         "%s: its header says %u images of %u x %u pixels; at least 1, and at most "
                         "65535 x 65535 pixels, are possible",
                         name, count, height, width);
    if ((n - 16) / ((size_t)height * width) != count || (n - 16) % ((size_t)height * width))
        return ddp__fail(
            err, DDP_FORMAT,
            "%s: its header promises %u images of %u x %u pixels, but %zu bytes follow: is it truncated?",
            name, count, height, width, n - 16);
    m->channels = 1;
    m->height = (long)height;
    m->width = (long)width;
    DDP__TRY(ddp__images_grow(m, name, (long)count, err));
    memcpy(m->pixels, p + 16, n - 16);
    m->count = (long)count;
    return DDP_OK;
}

/* Assumes at least ten classes: a small part of a set may lack the last ones. */
static ddp_status ddp__idx_labels(ddp_images *m, const char *name, const unsigned char *p, size_t n,
                                  ddp_error *err)
{
    uint32_t count;

    DDP__TRY(ddp__idx_header(name, p, n, DDP__IDX_LABELS, "labels", err));
    count = ddp__idx_word(p + 4);
    if (count != n - 8)
        return ddp__fail(err, DDP_FORMAT,
                         "%s: its header promises %u labels, but %zu bytes follow: is it truncated?", name,
                         count, n - 8);
    if ((long)count != m->count)
        return ddp__fail(err, DDP_FORMAT,
                         "%s has %u labels, but %s has %ld images: are they of "
                         "one set?",
                         name, count, m->name, m->count);
    memcpy(m->labels, p + 8, count);
    m->classes = 10;
    for (long i = 0; i < m->count; i++)
        if (m->labels[i] >= m->classes) m->classes = m->labels[i] + 1;
    return DDP_OK;
}

ddp_images *ddp_images_idx_bytes(const char *image_name, const void *images, size_t n, const char *label_name,
                                 const void *labels, size_t m, ddp_error *err)
{
    ddp_images *set = ddp__images_new(image_name, err);

    if (set && ddp__idx_images(set, image_name, (const unsigned char *)images, n, err) == DDP_OK &&
        ddp__idx_labels(set, label_name, (const unsigned char *)labels, m, err) == DDP_OK)
        return set;
    ddp_images_close(set);
    return NULL;
}

ddp_images *ddp_images_idx(const char *images, const char *labels, ddp_error *err)
{
    ddp__text a = {NULL, 0, 0, 0, 0}, b = a;
    ddp_images *m = NULL;

    if (ddp__file_read(images, &a, err) == DDP_OK && ddp__file_read(labels, &b, err) == DDP_OK)
        m = ddp_images_idx_bytes(images, a.data, a.size, labels, b.data, b.size, err);
    ddp__text_free(&a);
    ddp__text_free(&b);
    return m;
}

/* ---- CIFAR: records of one label (CIFAR-100: two, coarse and fine) and 3072 pixels ---- */

static ddp_status ddp__cifar_add(ddp_images *m, const char *name, const unsigned char *p, size_t n,
                                 int classes, ddp_error *err)
{
    size_t head = classes == 100 ? 2 : 1, record = head + DDP__CIFAR_PIXELS, i;

    if (classes != 10 && classes != 100)
        return ddp__fail(err, DDP_ARG, "%s: CIFAR cannot have %d classes; use 10 or 100", name, classes);
    if (n == 0 || n % record)
        return ddp__fail(err, DDP_FORMAT,
                         "%s: %zu bytes are not a whole number of CIFAR-%d records of %zu: record %zu has "
                         "only %zu; is it truncated?",
                         name, n, classes, record, n / record, n % record);
    m->channels = 3;
    m->height = m->width = 32;
    m->classes = classes;
    DDP__TRY(ddp__images_grow(m, name, (long)(n / record), err));
    for (i = 0; i < n / record; i++, p += record) {
        if (p[head - 1] >= classes)
            return ddp__fail(err, DDP_FORMAT, "%s: record %zu has label %d; CIFAR-%d has 0 to %d", name, i,
                             p[head - 1], classes, classes - 1);
        m->labels[m->count] = p[head - 1];
        memcpy(m->pixels + (size_t)m->count * DDP__CIFAR_PIXELS, p + head, DDP__CIFAR_PIXELS);
        m->count++;
    }
    return DDP_OK;
}

ddp_images *ddp_images_cifar_bytes(const char *name, const void *bytes, size_t n, int classes, ddp_error *err)
{
    ddp_images *m = ddp__images_new(name, err);

    if (m && ddp__cifar_add(m, name, (const unsigned char *)bytes, n, classes, err) == DDP_OK) return m;
    ddp_images_close(m);
    return NULL;
}

static ddp_status ddp__cifar_file(ddp_images *m, const char *path, int classes, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    ddp_status s = ddp__file_read(path, &t, err);

    if (s == DDP_OK) s = ddp__cifar_add(m, path, (const unsigned char *)t.data, t.size, classes, err);
    ddp__text_free(&t);
    return s;
}

ddp_images *ddp_images_cifar(const char *path, int classes, ddp_error *err)
{
    ddp_images *m = ddp__images_new(path, err);

    if (m && ddp__cifar_file(m, path, classes, err) == DDP_OK) return m;
    ddp_images_close(m);
    return NULL;
}

/* ---- a folder ---- */

/* An open folder and the current file in it. */
typedef struct ddp__folder {
    const char *folder;
    char name[256]; /* "" if absent */
    ddp__text path;
} ddp__folder;

/* 1 if name = start + (any text if open) + end, optionally with .gz appended. */
static int ddp__folder_match(const char *name, const char *start, int open, const char *end)
{
    size_t n = strlen(name), s = strlen(start), e = strlen(end);

    if (n > 3 && !strcmp(name + n - 3, ".gz")) n -= 3;
    return n >= s + e && !memcmp(name, start, s) && !memcmp(name + n - e, end, e) && (open || n == s + e);
}

/* Advances to the next matching file, in alphabetical order. */
static ddp_status ddp__folder_next(ddp__folder *f, const char *start, int open, const char *end,
                                   ddp_error *err)
{
    DIR *d = opendir(f->folder);
    char next[sizeof f->name] = "";
    struct stat st;
    struct dirent *entry;

    if (!d && !stat(f->folder, &st) && !S_ISDIR(st.st_mode))
        return ddp__fail(err, DDP_IO, "cannot read %s: it is %s, a folder of images is needed", f->folder,
                         ddp__file_kind(st.st_mode));
    if (!d) return ddp__fail(err, DDP_IO, "cannot read %s: %s", f->folder, strerror(errno));
    while ((entry = readdir(d)) != NULL)
        if (ddp__folder_match(entry->d_name, start, open, end) && strcmp(entry->d_name, f->name) > 0 &&
            (!*next || strcmp(entry->d_name, next) < 0))
            snprintf(next, sizeof next, "%s", entry->d_name);
    closedir(d);
    memcpy(f->name, next, sizeof next);
    if (!*next) return DDP_OK;
    f->path.size = 0;
    ddp__text_addf(&f->path, "%s/%s", f->folder, next);
    return f->path.failed
               ? ddp__fail(err, DDP_MEMORY, "out of memory for the name of a file in %s", f->folder)
               : DDP_OK;
}

/* MNIST: loads the images at f and the labels file in the same folder. */
static ddp_images *ddp__folder_idx(const ddp__folder *f, const char *start, ddp_error *err)
{
    ddp__folder labels = {f->folder, "", {NULL, 0, 0, 0, 0}};
    ddp_images *m = NULL;

    if (ddp__folder_next(&labels, start, 1, "idx1-ubyte", err) == DDP_OK) {
        if (*labels.name)
            m = ddp_images_idx(f->path.data, labels.path.data, err);
        else
            ddp__fail(err, DDP_IO, "%s: %s-idx1-ubyte is missing; it must be in the folder of %s", f->folder,
                      start, f->path.data);
    }
    ddp__text_free(&labels.path);
    return m;
}

/* CIFAR: loads the file at f and all matching files that follow. */
static ddp_images *ddp__folder_cifar(ddp__folder *f, const char *start, int classes, ddp_error *err)
{
    ddp_images *m = ddp__images_new(f->path.data, err);

    while (m && *f->name)
        if (ddp__cifar_file(m, f->path.data, classes, err) ||
            ddp__folder_next(f, start, classes == 10, ".bin", err)) {
            ddp_images_close(m);
            m = NULL;
        }
    return m;
}

ddp_images *ddp_images_open(const char *folder, int test, ddp_error *err)
{
    static const char *const start[3][2] = {
        {"train-images", "t10k-images"}, {"data_batch", "test_batch"}, {"train", "test"}};
    ddp__folder f = {folder, "", {NULL, 0, 0, 0, 0}};
    ddp_images *m = NULL;
    ddp_status s = folder ? DDP_OK : ddp__fail(err, DDP_ARG, "the name of the image folder is NULL");

    for (int k = 0; s == DDP_OK && !m && !*f.name && k < 3; k++) { /* MNIST, CIFAR-10, CIFAR-100 */
        s = ddp__folder_next(&f, start[k][!!test], k < 2, k ? ".bin" : "idx3-ubyte", err);
        if (s || !*f.name) continue;
        if (k == 0)
            m = ddp__folder_idx(&f, test ? "t10k-labels" : "train-labels", err);
        else
            m = ddp__folder_cifar(&f, start[k][!!test], k == 1 ? 10 : 100, err);
    }
    if (s == DDP_OK && !m && !*f.name)
        ddp__fail(err, DDP_IO,
                  "%s: no %s images: %s-images-idx3-ubyte (MNIST), %s*.bin (CIFAR-10) or %s.bin "
                  "(CIFAR-100), also with .gz, are looked for",
                  folder, test ? "test" : "training", test ? "t10k" : "train",
                  test ? "test_batch" : "data_batch", test ? "test" : "train");
    ddp__text_free(&f.path);
    return m;
}

/* ---- ranges and batches ---- */

ddp_status ddp_images_split(const ddp_images *m, double held_out, ddp_image_range *train,
                            ddp_image_range *val, ddp_error *err)
{
    long last;

    if (!m || !train)
        return ddp__fail(err, DDP_ARG, "ddp_images_split: no %s, it is NULL",
                         m ? "range to train on" : "images (were they opened?)");
    if (!(held_out >= 0 && held_out < 1))
        return ddp__fail(err, DDP_ARG, "the held-out share is %g: it must be at least 0 and below 1",
                         held_out);
    last = (long)((double)m->count * held_out);
    if ((held_out > 0 && last < 1) || last >= m->count)
        return ddp__fail(err, DDP_ARG,
                         "holding out %g of the %ld images of %s leaves a part "
                         "empty",
                         held_out, m->count, m->name);
    train->images = m;
    train->first = 0;
    train->count = m->count - last;
    if (!val) return DDP_OK;
    *val = *train;
    val->first = train->count;
    val->count = last;
    return DDP_OK;
}

ddp_image_norm ddp_images_norm(const ddp_image_range *r)
{
    const ddp_images *m = r->images;
    const size_t plane = (size_t)(m->height * m->width), size = ddp__image_bytes(m);
    ddp_image_norm norm = DDP__ZEROS;

    for (long c = 0; c < m->channels; c++) {
        double n = (double)r->count * (double)plane, mean, square;
        uint64_t sum = 0, squares = 0; /* integers are exact: the same in any order */
        for (long i = 0; i < r->count; i++) {
            const unsigned char *p = m->pixels + (size_t)(r->first + i) * size + (size_t)c * plane;
            for (size_t k = 0; k < plane; k++) {
                sum += p[k];
                squares += (unsigned)p[k] * p[k];
            }
        }
        mean = (double)sum / n / 255;
        square = (double)squares / n / 65025 - mean * mean;
        norm.mean[c] = (float)mean;
        norm.deviation[c] = square > 0 ? (float)sqrt(square) : 1;
    }
    return norm;
}

void ddp_images_get(const ddp_image_range *r, const ddp_image_norm *norm, long i, float *inputs,
                    int32_t *label)
{
    const ddp_images *m = r->images;
    const size_t plane = (size_t)(m->height * m->width);
    const unsigned char *p = m->pixels + (size_t)(r->first + i) * ddp__image_bytes(m);

    *label = m->labels[r->first + i];
    for (long c = 0; c < m->channels; c++) {
        const float scale = 1 / (255 * norm->deviation[c]), shift = norm->mean[c] / norm->deviation[c];
        for (size_t k = 0; k < plane; k++) *inputs++ = (float)*p++ * scale - shift;
    }
}

void ddp_images_batch(const ddp_image_range *r, const ddp_image_norm *norm, uint64_t seed, long step,
                      int rank, int world, long batch, float *inputs, int32_t *labels)
{
    const size_t size = ddp__image_bytes(r->images);

    for (long b = 0; r->count && b < batch; b++)
        ddp_images_get(r, norm, ddp_dealt(seed, step, rank, world, batch, b, r->count),
                       inputs + (size_t)b * size, labels + b);
}
