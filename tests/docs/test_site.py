#!/usr/bin/env python3
"""[test-all: needs MkDocs from PyPI and Doxygen] `make docs` builds the site without a warning, each link of a page to the API
reference has a target, and each public function has a man page."""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    os.chdir(ROOT)
    deps = subprocess.run(["tools/deps.sh", "docs"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if deps.returncode:
        print("skipped: make docs: " + deps.stdout.strip()[-200:])
        return 77
    made = subprocess.run(["make", "-s", "docs"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    faults = [] if made.returncode == 0 else ["make docs: exit %d: %s" % (made.returncode, made.stdout[-2000:])]
    for page in glob.glob("build/site/**/*.html", recursive=True) if not faults else ():
        if "/api/html/" in page:
            continue
        with open(page, encoding="utf-8") as f:
            text = f.read()
        for target in re.findall(r'(?:href|src)="([^"#:?]+)(?:#[^"]*)?"', text):
            if not os.path.exists(os.path.join(os.path.dirname(page), target)) and not target.startswith("/"):
                faults.append("%s links to %s, which does not exist" % (page, target))
    with open("packaging/abi.txt", encoding="utf-8") as f:
        functions = re.findall(r"^function (ddp_\w+)", f.read(), re.M)
    assert len(functions) > 300, len(functions)
    if not faults:
        faults += ["%s has no man page" % name for name in functions if not os.path.exists("build/docs/man/man3/%s.3" % name)]
    for fault in faults:
        print("FAILED   " + fault)
    if not faults:
        print("ok       the site has no dead link, and %d functions have man pages" % len(functions))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
