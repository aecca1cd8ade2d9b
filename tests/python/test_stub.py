#!/usr/bin/env python3
"""The type hints of the Python package match the module, and `python3 -m dreamddp` works without a command.

    tests/python/test_stub.py [WORD...]     only the cases whose names contain one of the words
"""
import ast
import inspect
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case, expect, run_cases  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "python", "dreamddp")
sys.path.insert(0, os.path.join(ROOT, "python"))


def stub():
    """Returns {name: its definitions in the stub}, in any order of overloads."""
    with open(os.path.join(PACKAGE, "__init__.pyi"), encoding="utf-8") as f:
        body = ast.parse(f.read()).body
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            found.setdefault(node.target.id, []).append(node)
    return {name: nodes for name, nodes in found.items() if not name.startswith("_") or name == "__version__"}


def public(module):
    return {name: value for name, value in vars(module).items()
            if (not name.startswith("_") or name == "__version__") and not inspect.ismodule(value)}


def of_stub(nodes):
    """The names of a function's parameters over all its overloads, with * before keyword-only ones."""
    names = []
    for node in nodes:
        a = node.args
        every = [p.arg for p in a.args] + (["*" + a.vararg.arg] if a.vararg else []) + [p.arg for p in a.kwonlyargs] + \
            (["**" + a.kwarg.arg] if a.kwarg else [])
        names += [n for n in every if n not in names]
    return names


def of_function(function):
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [marks.get(p.kind, "") + n for n, p in inspect.signature(function).parameters.items()]


@case
def stub_and_module_have_the_same_names(_):
    import dreamddp
    have, told = set(public(dreamddp)), set(stub())
    expect(have == told, "python/dreamddp/__init__.pyi lacks %s and has %s, which the module lacks" % (
        ", ".join(sorted(have - told)) or "nothing", ", ".join(sorted(told - have)) or "nothing"))


@case
def stub_and_module_have_the_same_parameters(_):
    import dreamddp
    for name, nodes in stub().items():
        value = getattr(dreamddp, name)
        if isinstance(nodes[0], ast.FunctionDef):
            told, have = of_stub(nodes), of_function(value)
            if have[-1:] and have[-1].startswith("**") and len(nodes) > 1:  # the overloads name the keywords
                told, have = [n for n in told if n in have], have[:-1]
            expect(told == have, "%s(%s) in the module, (%s) in the stub" % (name, ", ".join(have), ", ".join(told)))
        if isinstance(nodes[0], ast.ClassDef):
            for method in (n for n in nodes[0].body if isinstance(n, ast.FunctionDef)):
                told, real = of_stub([method]), inspect.getattr_static(value, method.name, None)
                expect(real is not None, "%s has no %s" % (name, method.name))
                have = ["self"] if isinstance(real, property) else of_function(real)
                expect(told == have, "%s.%s(%s) in the module, (%s) in the stub" % (name, method.name, ", ".join(have),
                                                                                    ", ".join(told)))


def command(*arguments):
    env = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"), PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run([sys.executable, "-m", "dreamddp", *arguments], env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)


@case
def command_prints_its_help_and_rejects_unknown_commands(_):
    r = command("--help")
    expect(r.returncode == 0 and r.stdout.startswith("usage: python3 -m dreamddp COMMAND") and not r.stderr, r.stdout + r.stderr)
    for name in ("netcheck", "choose", "plan", "run"):
        expect("\n  %s " % name in r.stdout, "no %s in:\n%s" % (name, r.stdout))
    r = command()
    expect(r.returncode == 2 and r.stderr.startswith("usage: "), r.stdout + r.stderr)
    r = command("plna")
    expect(r.returncode == 2 and "no command 'plna'; the commands are netcheck" in r.stderr, r.stdout + r.stderr)
    r = command("--version")
    expect(r.returncode == 0 and r.stdout.count(".") == 2, r.stdout + r.stderr)


if __name__ == "__main__":
    sys.exit(run_cases())
