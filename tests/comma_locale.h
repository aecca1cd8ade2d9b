/* A locale with a decimal comma, for tests of numbers. Include after dreamddp.h, stdlib.h and locale.h. */
#ifndef DDP_TESTS_COMMA_LOCALE_H
#define DDP_TESTS_COMMA_LOCALE_H

/* Sets the locale of the program. Returns 1, or 0 if this system cannot create it. The file has the format
 * of glibc's localedef, because few machines have a locale with a decimal comma installed. */
static int comma_locale(void)
{
    static const uint32_t word[] = {0x20031114, 6, 0x20, 0x22, 0x23, 0x24, 0x28, 0x2c, ',', ',', 0};
    char root[] = "/tmp/ddp_comma_XXXXXX", folder[40], path[60];
    int there = 0;
    FILE *f;

    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "fr_FR.UTF-8")) return 1;
    if (!mkdtemp(root)) return 0;
    snprintf(folder, sizeof folder, "%s/comma", root);
    snprintf(path, sizeof path, "%s/LC_NUMERIC", folder);
    f = mkdir(folder, 0700) ? NULL : fopen(path, "wb");
    if (f) {
        fwrite(word, sizeof word, 1, f);
        fwrite("UTF-8", 6, 1, f);
        fclose(f);
        setenv("LOCPATH", root, 1);
        there = setlocale(LC_NUMERIC, "comma") != NULL && *localeconv()->decimal_point == ',';
        unsetenv("LOCPATH");
    }
    remove(path);
    rmdir(folder);
    rmdir(root);
    return there;
}

#endif
