/* Of the coverage build: a worker that ends by _exit writes down what it has counted (linked with
 * --wrap=_exit), whatever calls fail in a test of that. */
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
