"""Builds the Python package with the shared library, the programs plan, netcheck and ddprun, and the source distribution.

The C sources are in the repository around this folder or, in a source distribution, in csrc/. The environment variables are
those of the Makefile: CC, CPPFLAGS, CFLAGS [-O2], LDFLAGS; TLS= (empty) excludes OpenSSL. libdreamddp_cuda.so is included if
`make lib-cuda` has built it.
"""
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from setuptools import Command, setup
from setuptools.command.build import build
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
PACKED = os.path.join(HERE, "csrc")
ROOT = PACKED if os.path.isdir(PACKED) else os.path.dirname(HERE)
LIBRARY, CUDA = "libdreamddp.so", "libdreamddp_cuda.so"
PROGRAMS = ("plan", "netcheck", "ddprun")
ALONE = ("ddprun",)  # programs that do not use the library
SOURCES = ("LICENSE", "dreamddp.h", "packaging/dreamddp.c", "src/**/*.h", "examples/common/*.h") + \
    tuple("examples/%s/*.[ch]" % name for name in PROGRAMS)
STB = ("#if __has_include(<stb_ds.h>)\n#include <stb_ds.h>\n#else\n#include <stb/stb_ds.h>\n#endif\n")
OPENSSL = "#include <openssl/ssl.h>\nint main(void) { return OPENSSL_VERSION_MAJOR < 3 || !SSL_CTX_new; }\n"


def stop(sentence):
    """Ends the build. pip prints the message as the last line of the output."""
    sys.stdout.flush()
    raise SystemExit("dreamddp: " + sentence)


def sources():
    """The C sources, relative to ROOT."""
    found = [os.path.relpath(path, ROOT) for pattern in SOURCES
             for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True))]
    if "dreamddp.h" not in found:
        stop("the C sources are not in %s; an old pip copies only this folder: run `python3 -m pip install --upgrade pip`, "
             "then install again" % ROOT)
    return found


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


# ---- the compiler ----

def compiler():
    """The words of CC, or a C compiler of this machine."""
    words = shlex.split(os.environ.get("CC", "")) or [next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")]
    if not shutil.which(words[0]):
        stop("no C compiler was found (%s); install one (Debian: apt-get install gcc libc6-dev) or set CC" % words[0])
    return words


def flags(variable, default=""):
    return shlex.split(os.environ.get(variable, default))


def answer(text, *arguments, stderr=subprocess.DEVNULL):
    """The compiler's output for a C text, or None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe.c")
        with open(source, "w", encoding="ascii") as f:
            f.write(text)
        p = subprocess.run(compiler() + flags("CPPFLAGS") + [source] + list(arguments), cwd=folder,
                           stdout=subprocess.PIPE, stderr=stderr, universal_newlines=True)
    return None if p.returncode else p.stdout


def check_compiler(folder):
    if answer("#include <stdio.h>\nint main(void) { return EOF > 0; }\n", "-o", os.path.join(folder, "probe"), stderr=None) is None:
        stop("the C compiler `%s` cannot compile an empty program; install it with the C library's headers (Debian: apt-get "
             "install gcc libc6-dev), or correct CC and CPPFLAGS" % " ".join(compiler()))


def compile_c(*arguments):
    """Runs the compiler. Its messages are part of the build output."""
    command = compiler() + ["-std=c11"] + flags("CPPFLAGS") + flags("CFLAGS", "-O2") + list(arguments)
    print(" ".join(command), flush=True)
    if subprocess.run(command).returncode:
        stop("the C compiler failed; its messages are above, and its command was: " + " ".join(command))


def has_openssl(folder):
    """True if OpenSSL 3 can be linked, and TLS= does not exclude it."""
    return os.environ.get("TLS", "yes") != "" and \
        answer(OPENSSL, *flags("LDFLAGS"), "-lssl", "-lcrypto", "-o", os.path.join(folder, "probe")) is not None


# ---- stb_ds.h ----

def fetched_stb(folder):
    """Downloads stb_ds.h, in the revision that tools/deps.sh names, into a folder. Returns its path, or None if
    that fails."""
    script = os.path.join(ROOT, "tools", "deps.sh")
    if not os.path.exists(script):
        return None
    name = dict(re.findall(r"^stb_(\w+)=(\w+)$", read(script), re.M))
    url = re.search(r'"(https://[^"]*/stb_ds.h)"', read(script)).group(1).replace("$stb_commit", name["commit"])
    print("downloading " + url, flush=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as f:
            content = f.read()
    except OSError as e:
        print("%s: %s" % (url, e), flush=True)
        return None
    if hashlib.sha256(content).hexdigest() != name["sha256"]:
        stop("the sha256 of %s differs from the one in tools/deps.sh; install stb_ds.h (Debian: libstb-dev)" % url)
    path = os.path.join(folder, "stb_ds.h")
    with open(path, "wb") as f:
        f.write(content)
    return path


def stb(folder):
    """Returns the path of stb_ds.h from the source distribution, from tools/deps.sh or from the system, or
    downloads it into a folder."""
    for path in ("include/stb_ds.h", "build/include/stb_ds.h"):
        if os.path.exists(os.path.join(ROOT, path)):
            return os.path.join(ROOT, path)
    told = re.findall(r'^# \d+ "([^"]*stb_ds\.h)"', answer(STB, "-E") or "", re.M)
    return told[0] if told else fetched_stb(folder) or stop(
        "stb_ds.h was not found and cannot be downloaded; install it (Debian, Ubuntu: apt-get install libstb-dev; "
        "Fedora: stb-devel), or add its folder to CPPFLAGS=-I...")


# ---- the library and the programs ----

def header_for_programs(folder):
    """Returns dreamddp.h with declarations of all functions, including private ones that netcheck calls, like
    build/headers of the Makefile."""
    spine = [line for line in read(os.path.join(ROOT, "src", "dreamddp.h")).splitlines() if not line.endswith('.c"')]
    private = [p[len("src/"):] for p in sources() if p.startswith("src/") and p != "src/dreamddp.h"]
    with open(os.path.join(folder, "dreamddp.h"), "w", encoding="utf-8") as f:
        f.write("\n".join(spine + ["#ifdef DREAMDDP_IMPLEMENTATION"] + ['#include "%s"' % p for p in private] + ["#endif\n"]))


def build_all(folder):
    """Compiles into a folder. The library is compiled once. Its object is linked into the shared library, which
    exports only the public functions, and into the programs."""
    at = {name: os.path.join(folder, name) for name in (LIBRARY,) + PROGRAMS + ("dreamddp.o",)}
    check_compiler(folder)
    tls = has_openssl(folder)
    use = ["-I" + os.path.dirname(stb(folder)), "-I" + ROOT] + (["-DDDP_USE_OPENSSL"] if tls else [])
    libraries = flags("LDFLAGS") + ["-lm", "-lpthread"] + (["-lssl", "-lcrypto"] if tls else [])
    print("dreamddp: %s" % ("with TLS by OpenSSL" if tls else "without TLS (no OpenSSL 3)"), flush=True)
    compile_c(*use, "-DDDP_LIB=", "-fPIC", "-fvisibility=hidden", "-c", os.path.join(ROOT, "packaging", "dreamddp.c"),
              "-o", at["dreamddp.o"])
    soname = re.search(r'"(\d+\.\d+)\.\d+"', read(os.path.join(HERE, "dreamddp", "_binding.py"))).group(1)
    compile_c("-shared", "-Wl,-soname,%s.%s" % (LIBRARY, soname), at["dreamddp.o"], "-o", at[LIBRARY], *libraries)
    header_for_programs(folder)
    inside = ["-DDDP_SEPARATE", "-I" + folder, "-I" + os.path.join(ROOT, "src")] + use
    for name in PROGRAMS:
        source = os.path.join(ROOT, "examples", name, name + ".c")
        how = [source] if name in ALONE else inside + [source, at["dreamddp.o"]]
        compile_c(*how, "-o", at[name], *([] if name in ALONE else libraries))
    return at


class BuildNative(Command):
    """A part of the command `build`, after the Python files."""

    def initialize_options(self):
        self.build_lib, self.editable_mode = None, False

    def finalize_options(self):
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def targets(self):
        """{file: destination}. An editable install uses the folders of the Makefile, where the package looks for
        them."""
        names = (LIBRARY,) + PROGRAMS
        if self.editable_mode and ROOT != PACKED:
            return {n: os.path.join(ROOT, "build", *(["lib"] if n == LIBRARY else []), n) for n in names}
        folder = os.path.join(HERE if self.editable_mode else self.build_lib, "dreamddp")
        return {n: os.path.join(folder, n) for n in names}

    def run(self):
        targets = self.targets()
        newest = max(os.path.getmtime(os.path.join(ROOT, s)) for s in sources())
        if self.editable_mode and all(os.path.exists(t) and os.path.getmtime(t) > newest for t in targets.values()):
            return  # `make lib build/plan build/netcheck build/ddprun` built them
        with tempfile.TemporaryDirectory() as folder:
            built = build_all(folder)
            for name, target in targets.items():
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(built[name], target + ".new")
                os.replace(target + ".new", target)  # a program that has the old file open keeps it
        cuda = os.path.join(ROOT, "build", "lib", CUDA)
        if not self.editable_mode and os.path.exists(cuda):
            shutil.copy(cuda, os.path.join(self.build_lib, "dreamddp"))

    def get_source_files(self):
        return []

    def get_outputs(self):
        return list(self.targets().values())

    def get_output_mapping(self):
        return {}


class Build(build):
    """Builds in a temporary folder, so that no renamed module of an earlier build remains."""
    sub_commands = build.sub_commands + [("build_native", None)]

    def initialize_options(self):
        super().initialize_options()
        self.temporary = tempfile.TemporaryDirectory()  # removed when this process ends
        self.build_base = self.temporary.name


class WithSources(sdist):
    """The source distribution contains the C sources and stb_ds.h, so that it can be installed without the
    repository."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        with tempfile.TemporaryDirectory() as folder:
            check_compiler(folder)
            copies = {os.path.join("csrc", path): os.path.join(ROOT, path) for path in sources()}
            copies[os.path.join("csrc", "include", "stb_ds.h")] = stb(folder)
            copies["LICENSE"] = os.path.join(ROOT, "LICENSE")
            for to, path in copies.items():
                to = os.path.join(base_dir, to)
                os.makedirs(os.path.dirname(to), exist_ok=True)
                shutil.copy(path, to)


class Binary(Distribution):
    def has_ext_modules(self):  # the wheel is specific to this platform
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none") + super().get_tag()[2:]


setup(license="MIT", distclass=Binary,
      cmdclass={"build": Build, "build_native": BuildNative, "sdist": WithSources, "bdist_wheel": AnyPython})
