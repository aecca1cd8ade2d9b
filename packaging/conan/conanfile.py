"""conan create packaging/conan: the targets dreamddp::header and dreamddp::dreamddp, as with CMake."""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

required_conan_version = ">=2.0"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


class Dreamddp(ConanFile):
    name = "dreamddp"
    description = "Train neural networks over slow links"
    license = "MIT"
    package_type = "library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "tls": [True, False]}
    default_options = {"shared": False, "tls": False}
    languages = "C"

    def set_version(self):
        header = load(self, os.path.join(ROOT, "dreamddp.h"))
        self.version = re.search(r'^#define DDP_VERSION_STRING "(.*)"', header, re.M).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "dreamddp.h", "dreamddp_cuda.cuh", "LICENSE", "packaging/dreamddp*"):
            copy(self, pattern, ROOT, self.export_sources_folder)

    def requirements(self):
        self.requires("stb/cci.20240531", transitive_headers=True)  # for programs that compile the implementation
        if self.options.tls:
            self.requires("openssl/[>=3 <4]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        tool = CMakeToolchain(self)
        tool.cache_variables["DDP_USE_OPENSSL"] = bool(self.options.tls)
        tool.cache_variables["DDP_STB_INCLUDE"] = self.dependencies["stb"].cpp_info.includedirs[0]
        if self.options.tls:
            tool.cache_variables["OPENSSL_ROOT_DIR"] = self.dependencies["openssl"].package_folder
        tool.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        for generated in ("lib/cmake", "lib/pkgconfig", "share"):  # Conan generates these files itself
            rmdir(self, os.path.join(self.package_folder, generated))

    def package_info(self):
        self.cpp_info.set_property("cmake_target_name", "dreamddp::all")  # otherwise a component would get this name
        header, library = self.cpp_info.components["header"], self.cpp_info.components["library"]
        for part, target, pc in ((header, "header", "dreamddp"), (library, "dreamddp", "libdreamddp")):
            part.set_property("cmake_target_name", "dreamddp::" + target)
            part.set_property("pkg_config_name", pc)
            part.system_libs = ["m", "pthread"]
            part.requires = ["stb::stb"]
        header.libdirs = header.bindirs = []
        library.libs = ["dreamddp"]
        if self.options.tls:
            library.requires.append("openssl::openssl")
