#!/usr/bin/env python3
"""tools/check_prose.py finds odd phrases in Markdown, C and scripts, not in code, and long paragraphs of docs."""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHECK = os.path.join(ROOT, "tools", "check_prose.py")
TEXTS = [  # (name, text, phrases found)
    ("a.md", "The workers go on anew.\n", ["go on", "anew"]),
    ("b.md", "`go on anew`\n```\ngo on anew\n```\n[a link](anew.md)\n", []),
    ("c.c", '/* Nobody knocks. */\nint x; /* waits at the door */\nf("newcomers go on");\nint anew;\n', ["knocks", "at the door", "newcomers", "go on"]),
    ("d.py", 'x = anew  # a step behind the others\ny = "so many steps"\n', ["behind the", "so many"]),
    ("e.md", "What is sent is a frame.\n", ["What is"]),
    ("f.md", "The worker sends a frame and continues.\n", []),
]


def run(folder, *words):
    return subprocess.run([sys.executable, os.path.join(folder, "tools", "check_prose.py") if not words else CHECK, *words], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def phrases_are_found(folder):
    for name, text, phrases in TEXTS:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
        found = [line.split('"')[1] for line in run(folder, name).stdout.splitlines()]
        assert sorted(p.lower() for p in found) == sorted(p.lower() for p in phrases), (name, found)


def a_tree_above_a_limit_fails(folder):
    os.makedirs(os.path.join(folder, "tools"))
    os.makedirs(os.path.join(folder, "docs"))
    with open(CHECK, encoding="utf-8") as f, open(os.path.join(folder, "tools", "check_prose.py"), "w", encoding="utf-8") as copy:
        copy.write(f.read())
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    page = os.path.join(folder, "docs", "a.md")
    for text, message in (("word " * 119 + "\n", ""), ("word " * 121 + "\n", "has 121 words"), (("word " * 99 + "anew\n\n") * 3, "docs has 10.0 odd phrases")):
        with open(page, "w", encoding="utf-8") as f:
            f.write(text)
        subprocess.run(["git", "add", "docs"], cwd=folder, check=True)
        r = run(folder)
        assert (r.returncode == 1) == bool(message) and message in r.stdout, (text[:40], r.returncode, r.stdout)


def main():
    failed = 0
    for name, case in (("phrases are found in text and not in code", phrases_are_found), ("a tree above a limit fails", a_tree_above_a_limit_fails)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(folder)
                print("ok       " + name)
            except AssertionError as e:
                failed += 1
                print("FAILED   %s: %s" % (name, e))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
