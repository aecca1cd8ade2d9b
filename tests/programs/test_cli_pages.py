#!/usr/bin/env python3
"""docs/reference/cli/ lists the options that the programs print with --help.

    tests/programs/test_cli_pages.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import BUILD, ROOT, case, expect, run_script  # noqa: E402

PROGRAMS = ["train_gpt", "train_image", "simulate", "quickstart", "plan", "netcheck", "ddprun", "broker", "compnode"]


@case("the pages of the programs are those of their --help")
def check(folder):
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "cli_pages.py"), "--check"], env=dict(os.environ, BUILD=BUILD),
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    expect(r.returncode == 0, "run make cli-pages: " + r.stdout)
    pages = {name[:-3] for name in os.listdir(os.path.join(ROOT, "docs", "reference", "cli")) if name != "index.md"}
    expect(pages == set(PROGRAMS), "pages: %s" % sorted(pages))


if __name__ == "__main__":
    sys.exit(run_script(1, *PROGRAMS))
