#!/usr/bin/env python3
"""The files of packaging/ have the version of the header, and the files that they name exist.

    tests/packaging/test_versions.py [WORD...]     only the cases whose names contain one of the words
"""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case, expect, run_cases  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "packaging")


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def version():
    return re.search(r'^#define DDP_VERSION_STRING "(.*)"', read(ROOT, "dreamddp.h"), re.M).group(1)


def minor():
    return version().rsplit(".", 1)[0]


@case
def every_package_has_the_version_of_the_header(_):
    for name in ("vcpkg/dreamddp/vcpkg.json", "clib.json"):
        expect(json.loads(read(PACKAGING, name))["version"] == version(), "%s does not have version %s" % (name, version()))
    first = read(PACKAGING, "debian", "changelog").split("\n")[0]
    expect(first.startswith("dreamddp (%s) " % version()), "debian/changelog begins with " + first)
    control = read(PACKAGING, "debian", "control")
    expect("Package: libdreamddp%s\n" % minor() in control, "debian/control has no libdreamddp" + minor())
    expect(os.path.exists(os.path.join(PACKAGING, "debian", "libdreamddp%s.install" % minor())), "debian/*.install")


@case
def clib_names_existing_files(_):
    package = json.loads(read(PACKAGING, "clib.json"))
    expect(package["name"] == "dreamddp" and "dreamddp.h" in package["src"], "clib.json lacks the header")
    for name in package["src"]:
        expect(os.path.isfile(os.path.join(ROOT, name)), "clib.json names a missing file: " + name)


if __name__ == "__main__":
    sys.exit(run_cases())
