#!/usr/bin/env python3
"""[long, test-all: needs CMake, debhelper and Conan] Builds and uses each package of packaging/ and CMakeLists.txt once, and checks the errors of tools/abi.py.

    tests/packaging/test_packages.py [WORD...]     only the cases whose names contain one of the words

All packages are built in a temporary folder without optimisation, by clang if it is installed, which is faster, without a
network. Cases whose tool is missing are skipped by name. Exit 77 if no library is built.
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Skipped, case, expect, run_cases, skip_script  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "packaging")
CONSUMER = os.path.join(ROOT, "tests", "packaging", "consumer")
LIBRARY = os.path.join(ROOT, "build", "lib", "libdreamddp.so")
WARNINGS = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
# halves the compile time of cases in which the contents of the library matter less
LESS = "-DDDP_NO_PLANNERS -DDDP_NO_MODELS -DDDP_NO_REPORTS"


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            raise Skipped("no " + tool)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def environment(**more):
    fast = {"CC": "clang"} if shutil.which("clang") else {}
    env = {k: v for k, v in os.environ.items() if k not in ("DESTDIR", "CFLAGS", "LDFLAGS", "MAKEFLAGS")}
    return {**env, **fast, **more}


def run(*command, cwd=ROOT, **more):
    """Runs a command that must succeed. Returns its stdout."""
    r = subprocess.run(command, cwd=cwd, env=environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, universal_newlines=True, timeout=600)
    expect(r.returncode == 0, "%s: exit %d\n%s" % (" ".join(command), r.returncode, (r.stdout + r.stderr)[-3000:]))
    return r.stdout


def fails(*command, cwd=ROOT):
    """Runs a command that must fail. Returns its output."""
    r = subprocess.run(command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, universal_newlines=True, timeout=600)
    expect(r.returncode, "%s: succeeds\n%s" % (" ".join(command), r.stdout[-2000:]))
    return " ".join(r.stdout.split())


def compiler():
    return environment().get("CC", "cc").split()


def version():
    return re.search(r'^#define DDP_VERSION_STRING "(.*)"', read(ROOT, "dreamddp.h"), re.M).group(1)


def minor():
    return version().rsplit(".", 1)[0]


def functions(library, *nm):
    out = run("nm", *nm, "--defined-only", library)
    return sorted(w[2] for w in (line.split() for line in out.splitlines()) if len(w) == 3)


def soname(library):
    return re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", library)).group(1)


def consumer(way, target, flags, *settings):
    """Builds tests/packaging/consumer with the given configuration and runs it. Returns the build folder."""
    need("cmake")
    build = os.path.join(WORK, way)
    run("cmake", "-S", CONSUMER, "-B", build, "-DWAY=" + way, "-DSOURCE=" + ROOT, "-DCMAKE_C_FLAGS=-O0 " + flags,
        *settings)
    run("cmake", "--build", build, "--target", target)
    run(os.path.join(build, target))
    return build


@functools.lru_cache(maxsize=None)
def by_cmake():
    """The folder in which `cmake --install` installed a shared library for /opt."""
    need("cmake")
    build, place = os.path.join(WORK, "shared"), os.path.join(WORK, "cmake-root")
    run("cmake", "-S", ROOT, "-B", build, "-DBUILD_SHARED_LIBS=ON", "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_INSTALL_PREFIX=/opt", "-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_C_FLAGS=-O0 " + WARNINGS)
    run("cmake", "--build", build)
    run("cmake", "--install", build, DESTDIR=place)
    return place


@functools.lru_cache(maxsize=None)
def by_make():
    """The folder in which `make install` installed the libraries for /opt."""
    place = os.path.join(WORK, "make-root")
    run("make", "-s", "install", "DESTDIR=" + place, "PREFIX=/opt", CC=os.environ.get("CC", "cc"))
    return place


def stb_folder():
    """The folder in which CMakeLists.txt finds stb_ds.h."""
    by_cmake()
    return re.search(r"^DDP_STB_INCLUDE:PATH=(.*)", read(WORK, "shared", "CMakeCache.txt"), re.M).group(1)


def with_pkg_config(package, root, source, *flags, library_path=None, **paths):
    need("pkg-config")
    told = run("pkg-config", "--cflags", "--libs", package, PKG_CONFIG_SYSROOT_DIR=root, **paths).split()
    program = os.path.join(WORK, "program")
    run(*compiler(), "-std=c11", "-O0", *flags, source, *told, "-o", program)
    run(program, **({"LD_LIBRARY_PATH": library_path} if library_path else {}))


# ---- CMake and pkg-config ----

@case
def cmake_add_subdirectory_provides_the_header(_):
    build = consumer("add_subdirectory", "with_header", WARNINGS + " " + LESS)
    expect(not os.path.exists(os.path.join(build, "dreamddp", "libdreamddp.a")), "the library was built although no target uses it")


@case
def cmake_fetchcontent_provides_a_static_library(_):
    build = consumer("FetchContent", "with_library", "")
    shown = functions(os.path.join(build, "_deps", "dreamddp-build", "libdreamddp.a"), "-g")
    expect(shown == functions(LIBRARY, "-D"), "it exports other functions than build/lib/libdreamddp.so")


@case
def cmake_find_package_provides_the_shared_library(_):
    prefix = os.path.join(by_cmake(), "opt")
    library = os.path.join(prefix, "lib", "libdreamddp.so")
    expect(soname(library) == soname(LIBRARY) == "libdreamddp.so." + minor(), "its soname is " + soname(library))
    expect(functions(library, "-D") == functions(LIBRARY, "-D"), "it exports other functions than build/lib's")
    consumer("find_package", "with_library", WARNINGS, "-DCMAKE_PREFIX_PATH=" + prefix)


@case
def cmake_find_package_rejects_another_minor_version(folder):
    told = fails("cmake", "-S", CONSUMER, "-B", folder, "-DWANTED=0.1", "-DCMAKE_PREFIX_PATH=%s/opt" % by_cmake())
    expect("version: " + version() in told, told[-600:])


@case
def cmake_without_stb_ds_fails_with_a_remedy(folder):
    need("cmake")
    told = fails("cmake", "-S", ROOT, "-B", folder, "-DDDP_STB_INCLUDE=")
    expect("stb_ds.h was not found; install libstb-dev" in told, told[-600:])


@case
def make_and_cmake_install_the_same_files(_):
    made, by = by_make(), by_cmake()
    files = {root: {os.path.relpath(os.path.join(at, n), root) for at, _, names in os.walk(root) for n in names}
             for root in (made, by)}
    only = {n for n in files[made] ^ files[by] if "/cmake/" not in n}
    expect(only == {"opt/lib/libdreamddp.a"}, "one of them lacks " + " ".join(sorted(only)))
    expect("opt/include/dreamddp_cuda.cuh" in files[made], "the GPU companion is not installed")
    for pc in ("opt/share/pkgconfig/dreamddp.pc", "opt/lib/pkgconfig/libdreamddp.pc"):
        expect(read(made, pc) == read(by, pc), "%s differs:\n%s%s" % (pc, read(made, pc), read(by, pc)))


@case
def find_package_works_after_make_install(folder):
    prefix = os.path.join(by_make(), "opt")
    consumer("made", "with_library", WARNINGS, "-DCMAKE_PREFIX_PATH=" + prefix)
    consumer("made_header", "with_header", LESS + " -isystem " + stb_folder(), "-DCMAKE_PREFIX_PATH=" + prefix)
    for wanted in ("0.1", minor() + ".999", "1.2"):
        told = fails("cmake", "-S", CONSUMER, "-B", folder, "-DWANTED=" + wanted, "-DCMAKE_PREFIX_PATH=" + prefix)
        expect("version: " + version() in told, told[-600:])


@case
def static_library_links_with_the_libraries_that_make_prints(folder):
    told = run("make", "lib", CC=os.environ.get("CC", "cc"))
    flags = re.search(r"^link with: \S+ program\.c (.*)$", told, re.M)
    expect(flags, "make lib does not print how to link: " + told[-300:])
    program = os.path.join(folder, "program")
    run(*compiler(), "-std=c11", "-O0", "-I.", os.path.join(CONSUMER, "use.c"), *flags.group(1).split(), "-o", program)
    run(program)


@case
def pkg_config_works_for_the_library_and_the_header(folder):
    root = by_cmake()
    paths = {"PKG_CONFIG_PATH": "%s/opt/lib/pkgconfig:%s/opt/share/pkgconfig" % (root, root)}
    use = os.path.join(CONSUMER, "use.c")
    with_pkg_config("libdreamddp", root, use, library_path=root + "/opt/lib", **paths)
    flags = ["-DDREAMDDP_IMPLEMENTATION", "-isystem", stb_folder()] + LESS.split()
    with_pkg_config("dreamddp", root, use, *flags, **paths)


# ---- package managers ----

@case
def debian_packages_build_and_work(folder):
    need("dpkg-buildpackage", "dh")
    lacking = subprocess.run(["dpkg-checkbuilddeps", os.path.join(PACKAGING, "debian", "control")], cwd=folder,
                             stderr=subprocess.PIPE, universal_newlines=True)
    if lacking.returncode:
        raise Skipped(lacking.stderr.strip())
    source, root = os.path.join(folder, "dreamddp"), os.path.join(folder, "root")
    shutil.copytree(PACKAGING, os.path.join(source, "packaging"))
    shutil.copytree(os.path.join(PACKAGING, "debian"), os.path.join(source, "debian"))
    for name in ("CMakeLists.txt", "dreamddp.h", "dreamddp_cuda.cuh", "LICENSE", "CHANGELOG.md", "Makefile"):
        shutil.copy(os.path.join(ROOT, name), source)
    run("dpkg-buildpackage", "-b", "-us", "-uc", cwd=source,
        DEB_BUILD_OPTIONS="nostrip nocheck noautodbgsym optimize=-lto", DEB_CFLAGS_SET="-O0 " + LESS)
    packages = [n for n in os.listdir(folder) if n.endswith(".deb")]
    expect({n.split("_")[0] for n in packages} == {"libdreamddp" + minor(), "libdreamddp-dev"}, " ".join(packages))
    for name in packages:
        run("dpkg-deb", "-x", os.path.join(folder, name), root)
    arch = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
    libraries = os.path.join(root, "usr", "lib", arch)
    shown = set(functions(os.path.join(libraries, "libdreamddp.so"), "-D"))
    expect("ddp_open" in shown and shown < set(functions(LIBRARY, "-D")), "it exports private functions")
    expect("libdreamddp.so.%s" % minor() in os.listdir(libraries), "the link of the soname is missing")
    with_pkg_config("libdreamddp", root, os.path.join(CONSUMER, "use.c"), library_path=libraries,
                    PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"))


# A Conan package of stb with this machine's stb_ds.h, because tests download nothing.
STB = '''
from conan import ConanFile
from conan.tools.files import copy


class Stb(ConanFile):
    name, version = "stb", "%s"

    def package(self):
        copy(self, "stb_ds.h", "%s", self.package_folder + "/include")

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
'''


@case
def conan_package_builds_and_works(folder):
    conan = shutil.which("conan", path=os.path.join(ROOT, "build", "conan", "bin")) or shutil.which("conan")
    if not conan:
        raise Skipped("no conan")
    stb = stb_folder()
    wanted = re.search(r'"stb/(.*?)"', read(PACKAGING, "conan", "conanfile.py")).group(1)
    with open(os.path.join(folder, "conanfile.py"), "w", encoding="ascii") as f:
        f.write(STB % (wanted, stb if os.path.exists(os.path.join(stb, "stb_ds.h")) else os.path.join(stb, "stb")))
    test = os.path.join(folder, "test")  # Conan writes into this folder
    shutil.copytree(CONSUMER, test)
    home = {"CONAN_HOME": os.path.join(folder, "home")}
    run(conan, "profile", "detect", **home)
    run(conan, "remote", "disable", "*", **home)
    run(conan, "create", folder, **home)
    run(conan, "create", os.path.join(PACKAGING, "conan"), "--test-folder", test, "-s", "build_type=Debug", "-c",
        "tools.build:cflags=" + json.dumps(["-O0", "-g0"] + LESS.split()), **home)
    listed = json.loads(run(conan, "list", "dreamddp/*", "--format=json", **home))
    expect(list(listed["Local Cache"]) == ["dreamddp/" + version()], str(listed))


# The vcpkg functions that a port may call, implemented with plain cmake.
STAND_INS = '''
cmake_minimum_required(VERSION 3.16)
function(vcpkg_check_features)
    cmake_parse_arguments(arg "" "OUT_FEATURE_OPTIONS" "FEATURES" ${ARGN})
    set(options "")
    while(arg_FEATURES)
        list(GET arg_FEATURES 1 option)
        list(REMOVE_AT arg_FEATURES 0 1)
        list(APPEND options "-D${option}=OFF")
    endwhile()
    set(${arg_OUT_FEATURE_OPTIONS} "${options}" PARENT_SCOPE)
endfunction()
function(do)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
    if(result)
        message(FATAL_ERROR "${ARGN}: ${result}")
    endif()
endfunction()
function(vcpkg_cmake_configure)
    cmake_parse_arguments(arg "" "SOURCE_PATH" "OPTIONS" ${ARGN})
    do(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${BUILD} -DCMAKE_BUILD_TYPE=None "-DCMAKE_C_FLAGS=${FLAGS}"
       -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} ${arg_OPTIONS})
endfunction()
function(vcpkg_cmake_install)
    do(${CMAKE_COMMAND} --build ${BUILD} --target install)
endfunction()
function(vcpkg_cmake_config_fixup)
    cmake_parse_arguments(arg "" "CONFIG_PATH" "" ${ARGN})
    do(${CMAKE_COMMAND} -E rename ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/dreamddp)
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_install_copyright)
    cmake_parse_arguments(arg "" "" "FILE_LIST" ${ARGN})
    do(${CMAKE_COMMAND} -E copy ${arg_FILE_LIST} ${CURRENT_PACKAGES_DIR}/share/dreamddp/copyright)
endfunction()
include(${CURRENT_PORT_DIR}/portfile.cmake)
'''


@case
def vcpkg_port_builds_with_replaced_vcpkg_functions(folder):
    port = os.path.join(PACKAGING, "vcpkg", "dreamddp")
    installed, packages = os.path.join(folder, "installed"), os.path.join(folder, "packages")
    os.makedirs(os.path.join(installed, "include"))
    stb = stb_folder()
    shutil.copy(next(p for p in (os.path.join(stb, d, "stb_ds.h") for d in ("", "stb")) if os.path.exists(p)),
                os.path.join(installed, "include"))
    with open(os.path.join(folder, "run.cmake"), "w", encoding="ascii") as f:
        f.write(STAND_INS)
    run("cmake", "-DCURRENT_PORT_DIR=" + port, "-DCURRENT_INSTALLED_DIR=" + installed,
        "-DCURRENT_PACKAGES_DIR=" + packages, "-DBUILD=" + os.path.join(folder, "build"), "-DFLAGS=-O0 " + LESS, "-P", os.path.join(folder, "run.cmake"))
    for name in ("include/dreamddp.h", "lib/libdreamddp.a", "share/dreamddp/dreamddpConfig.cmake",
                 "share/dreamddp/copyright"):
        expect(os.path.isfile(os.path.join(packages, name)), "it installs no " + name)
    offered = set(json.loads(read(port, "vcpkg.json"))["features"])
    asked = re.findall(r"^ +(\w+) +(DDP_USE_\w+)$", read(port, "portfile.cmake"), re.M)
    options = set(re.findall(r"^(DDP_USE_\w+):BOOL=OFF$", read(folder, "build", "CMakeCache.txt"), re.M))
    expect({name for name, _ in asked} == offered and {o for _, o in asked} == options,
           "features %s, the port's %s, CMake's options %s" % (sorted(offered), asked, sorted(options)))


@case
def vcpkg_itself(_):
    raise Skipped("vcpkg downloads tools and ports, and tests do not use the network")


# ---- the ABI ----

@case
def abi_check_reports_removed_and_changed_functions(_):
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import abi
    have = abi.record()
    expect(have["function ddp_rank"] == "c_int(c_void_p)", have["function ddp_rank"])
    expect(abi.parsed(abi.text_of(have)) == (version(), have), "a written list reads back differently")
    more = dict(have, **{"function ddp_new": "c_int()"})
    expect(abi.breaks("0.2.0", have, "0.2.1", more) == [], "an addition fails")
    expect(len(abi.breaks("0.2.0", more, "0.2.1", have)) == 1, "a removed function is accepted")
    for what in ("function ddp_rank", "struct ddp_config", "field ddp_layer.params", "constant DDP_ARG"):
        other = dict(have, **{what: "another"})
        expect(abi.breaks("0.2.0", have, "0.2.1", other) == ["%s was %s and is another" % (what, have[what])], what)
        expect(abi.breaks("0.2.7", have, "0.3.0", other) == [], "0.3 may not change " + what)


def main():
    global WORK
    if not os.path.exists(LIBRARY):
        skip_script("build/lib/libdreamddp.so is missing: make lib")
    with tempfile.TemporaryDirectory() as WORK:
        return run_cases()


if __name__ == "__main__":
    sys.exit(main())
