/* For the coverage build, linked with --wrap=_exit: a worker that ends with _exit writes its counters
 * first. The calls for that must not fail in a sweep. */
extern int calls_spared __attribute__((weak));
void __gcov_dump(void);
void __real__exit(int code) __attribute__((noreturn));
void __wrap__exit(int code) __attribute__((noreturn));

void __wrap__exit(int code)
{
    if (&calls_spared) calls_spared = 1;
    __gcov_dump();
    __real__exit(code);
}
