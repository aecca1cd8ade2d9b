#!/usr/bin/env python3
"""[test-all: slow] Each fault that `make check-header` reports is seeded into a small copy of the tree (src/base with a separate
   dreamddp.h). The check must fail and name the fault."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def write(root, name, text, mode="w"):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode, encoding="utf-8") as f:
        f.write(text)


def replace(root, name, old, new):
    with open(os.path.join(root, name), encoding="utf-8") as f:
        text = f.read()
    assert old in text, (name, old)
    write(root, name, text.replace(old, new, 1))


def tree(root):
    """Copies src/base, the tools, and a dreamddp.h with only the lines of src/base."""
    shutil.copytree(os.path.join(ROOT, "tools"), os.path.join(root, "tools"))
    shutil.copytree(os.path.join(ROOT, "src/base"), os.path.join(root, "src/base"))
    with open(os.path.join(ROOT, "src/dreamddp.h"), encoding="utf-8") as f:
        lines = [s for s in f if not re.match(r'#include "(?!base/)', s)]
    write(root, "src/dreamddp.h", "".join(lines))


def run(root, *command):
    p = subprocess.run((sys.executable,) + command, cwd=root, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    return p.returncode, p.stdout


def check_header(root):
    for command in (("tools/amalgamate.py", "--check"), ("tools/check_names.py",), ("tools/check_docs.py",)):
        code, out = run(root, *command)
        if code:
            return code, out
    return 0, ""


def documented(comment, declaration="DDP_API ddp_status ddp_take(int n);"):
    """A public declaration below DDP_ERROR_TEXT, with this comment above it."""
    return public("\n" + comment + declaration + "\n\n")


STATUS_H, CORE_C, TEXT_C = "src/base/status.h", "src/base/core.c", "src/base/text.c"
PUBLIC = "#define DDP_ERROR_TEXT 400\n"


def public(text):
    return lambda root: replace(root, STATUS_H, PUBLIC, PUBLIC + text)


def private(text):
    return lambda root: write(root, TEXT_C, text, "a")


def bad_bytes(text):
    return private("/* %s */\n" % text)


def orphan(root):
    write(root, "src/wire/forgotten.c", "int ddp__nothing;\n")


def later_folder(root):
    write(root, "src/wire/later.h", "/* empty */\n")
    replace(root, TEXT_C, '#include "base/core.h"\n', '#include "base/core.h"\n#include "wire/later.h"\n')


def include(line):
    return lambda root: replace(root, TEXT_C, '#include "base/core.h"\n', '#include "base/core.h"\n' + line)


def left_out(root):
    """An option omits thread.c, which includes the file first; text.c, after it, includes the file too."""
    write(root, "src/base/extra.h", "#ifndef DDP_BASE_EXTRA_H\n#define DDP_BASE_EXTRA_H\n#define DDP__EXTRA 1\n#endif\n")
    for name in ("thread", "text"):
        replace(root, "src/base/%s.c" % name, '#include "base/core.h"\n', '#include "base/core.h"\n#include "base/extra.h"\n')
    replace(root, "src/dreamddp.h", '#include "base/thread.c"\n', '#ifndef DDP_NO_CLOCK\n#include "base/thread.c"\n#endif\n')


def companion(text):
    return lambda root: write(root, "src/dreamddp_cuda.cuh", '#include "dreamddp.h"\n' + text)


# The line of text.c after the include of base/core.h.
with open(os.path.join(ROOT, TEXT_C), encoding="ascii") as f:
    AFTER_CORE = f.read().split('#include "base/core.h"\n')[0].count("\n") + 2

# name, change, whether to regenerate the header afterwards, expected error
FAULTS = (
    ("a stale header", private("\n/* one more line */\n"), False, "dreamddp.h is stale: run `make header`"),
    ("an edited header", lambda r: write(r, "dreamddp.h", "/* by hand */\n", "a"), False, "is stale"),
    ("a missing header", lambda r: os.remove(os.path.join(r, "dreamddp.h")), False, "is stale"),
    ("a missing file", include('#include "base/gone.h"\n'), False, 'text.c:%d: #include "base/gone.h": src/ has no such file' % AFTER_CORE),
    ("an include under #if", include('#ifdef DDP_X\n#include "base/tools.h"\n#endif\n'), False, "is inside #if"),
    ("an include that an option leaves out", left_out, False,
     'text.c:%d: #include "base/extra.h", which #ifndef DDP_NO_CLOCK of src/dreamddp.h excludes' % AFTER_CORE),
    ("an orphan", orphan, True, "src/wire/forgotten.c is not included: add it to src/dreamddp.h"),
    ("a later folder", later_folder, True, "src/base may not use src/wire, a later folder"),
    ("a byte that is not ASCII", bad_bytes("na\u00efve"), False, "not printable ASCII"),
    ("a tab", bad_bytes("a\tb"), False, "a tab"),
    ("a trailing blank", private("/* x */ \n"), False, "the line ends with a blank"),
    ("no newline at the end", private("/* x */"), False, "no newline"),
    ("a public function", public("DDP_API int launch_all(int n);\n"), True, "name launch_all"),
    ("a public typedef", public("typedef struct ddp_x { int a; } my_x;\n"), True, "name my_x"),
    ("a public tag", public("struct my_tag { int a; };\n"), True, "name my_tag"),
    ("a public function type", public("typedef int (*my_fn)(int a, int b);\n"), True, "name my_fn"),
    ("a public macro", public("#define MY_MACRO 1\n"), True, "macro MY_MACRO"),
    ("a public enumerator", public("enum { DDP_A1, MY_B = (1 << 2), DDP_C1 };\n"), True, "name MY_B"),
    ("a static function", private("\nstatic int helper(int a) { return a; }\n"), True, "name helper"),
    ("a used static function", private("\nstatic int helper(int a) { return a; }\n"
                                       "int ddp_use(void);\nint ddp_use(void) { return helper(1); }\n"), True, "helper"),
    ("a constant", private("\nstatic const double rate[2] = {1, 2};\n"), True, "name rate"),
    ("mutable file-scope data", private("\nstatic int ddp__count = 1;\n"), True, "ddp__count is mutable"),
    ("a mutable static local", private("\nint ddp_tick(void);\nint ddp_tick(void) { static int n; return ++n; }\n"),
     True, " is mutable"),
    ("thread-local data", private("\nstatic _Thread_local int ddp__mine;\n"), True, "ddp__mine is mutable"),
    ("an exported private function", private("\nvoid ddp__open_door(void);\nvoid ddp__open_door(void) {}\n"),
     True, "ddp__open_door is exported"),
    ("a name of both headers", companion("enum { DDP_ERROR_TEXT = 4 };\n"), True,
     "dreamddp_cuda.cuh:2: DDP_ERROR_TEXT is already a name of dreamddp.h"),
    ("a kernel's name", companion("template <typename T> __global__ void __launch_bounds__(256)\nmy_kernel(T *x) {}\n"), True,
     "dreamddp_cuda.cuh:3: name my_kernel"),
    ("text that does not compile", private("\nint ddp_broken(void) { return }\n"), True, "does not compile"),
)
# Valid text that must not be reported as a fault.
FINE = public("""#define DDP__M(name) DDP_##name,
typedef enum ddp_e { DDP_E0 = sizeof(int), DDP_E1 /* one, two */ } ddp_e;
typedef struct ddp_s { int (*fn)(void *user, int n); struct { int inner; } part; char text[8]; } ddp_s;
typedef void (*ddp_fn)(int count, const char *name);
/* ddp_make - returns the part that matches best, borrowed until the next call. */
DDP_API const ddp_s *ddp_make(int (*callback)(int x), const char *what);

/* ddp_take - removes the oldest n entries of a queue. Returns 0 or a ddp_status. Errors: DDP_ARG for n. */
DDP_API int ddp_take(ddp_s *from, int n);
DDP_API void ddp_drop(ddp_s *from); /* frees a queue with its entries */
""")
FINE_KERNELS = companion("""template <typename T, int N = 3> struct ddp__box { T v[N]; };
template <typename T> __device__ static __forceinline__ T ddp__less(ddp__box<T> b) { return b.v[0]; }
template <> __device__ __forceinline__ float ddp__less<float>(ddp__box<float> b) { return b.v[0]; }
template <typename T> static __global__ void __launch_bounds__(64) ddp__k_box(T *x, long n) { }
""")


def main():
    failed = []

    def expect(name, ok, out):
        if not ok:
            failed.append(name)
            print("failed: %s\n%s" % (name, out))

    with tempfile.TemporaryDirectory() as top:
        clean = os.path.join(top, "clean")
        tree(clean)
        for name, seed in (("the clean tree", None), ("valid names", FINE), ("a companion", FINE_KERNELS)):
            root = os.path.join(top, name.replace(" ", "_"))
            shutil.copytree(clean, root)
            if seed:
                seed(root)
            run(root, "tools/amalgamate.py")
            code, out = check_header(root)
            expect(name, code == 0, out)
        run(clean, "tools/amalgamate.py")
        for i, (name, seed, again, want) in enumerate(FAULTS):
            root = os.path.join(top, str(i))
            shutil.copytree(clean, root)
            seed(root)
            if again:
                code, out = run(root, "tools/amalgamate.py")
                expect(name + ": regenerated", code == 0, out)
            code, out = check_header(root)
            expect(name, code == 1 and want in out, "wanted: %s\ngot (%d): %s" % (want, code, out))

        with open(os.path.join(clean, "dreamddp.h"), encoding="ascii") as f:
            header = f.read().split("\n")
        with open(os.path.join(clean, CORE_C), encoding="ascii") as f:
            source = f.read().split("\n")
        line = next(i for i, s in enumerate(header, 1) if s.startswith("double ddp_now(void)"))
        true = next(i for i, s in enumerate(source, 1) if s.startswith("double ddp_now(void)"))
        code, out = run(clean, "tools/where.py", "dreamddp.h:%d" % line)
        expect("where.py", (code, out) == (0, "src/base/core.c:%d\n" % true), out)
        code, out = run(clean, "tools/where.py", "dreamddp.h:999999")
        expect("where.py past the end", code == 1, out)

    total = len(FAULTS) + 4
    print("%d passed, %d failed, 0 skipped" % (total - len(failed), len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
