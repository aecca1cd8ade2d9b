"""The test package of packaging/conan, for: conan create packaging/conan --test-folder tests/packaging/consumer"""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Consumer(ConanFile):
    settings = "os", "compiler", "build_type", "arch"
    generators = "CMakeToolchain", "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="with_library")

    def test(self):
        if can_run(self):
            self.run(os.path.join(self.cpp.build.bindir, "with_library"), env="conanrun")
