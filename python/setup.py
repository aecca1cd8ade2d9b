"""The wheel: this package with the shared library and the program `plan` inside. Run `make lib` before."""
import os
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.path.join(ROOT, "build", "lib", "libdreamddp.so")
OTHERS = (os.path.join(ROOT, "build", "lib", "libdreamddp_cuda.so"), os.path.join(ROOT, "build", "plan"))


class WithLibrary(build_py):
    def run(self):
        super().run()
        if not os.path.exists(LIBRARY):
            raise SystemExit("dreamddp: there is no %s: run `make lib` first" % LIBRARY)
        # for choose(), which says so if it is missing
        subprocess.run(["make", "-s", "-C", ROOT, "build/plan"], stdout=subprocess.DEVNULL)
        for path in (LIBRARY,) + OTHERS:
            if os.path.exists(path):
                shutil.copy(path, os.path.join(self.build_lib, "dreamddp"))


class Binary(Distribution):
    def has_ext_modules(self):  # the wheel is for this platform
        return True


try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel


class AnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none") + super().get_tag()[2:]


setup(cmdclass={"build_py": WithLibrary, "bdist_wheel": AnyPython}, distclass=Binary)
