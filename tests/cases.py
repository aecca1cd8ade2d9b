"""What test scripts share: cases that are chosen by words, tried in a folder of their own, told apart and counted."""
import concurrent.futures
import sys
import tempfile
import time

CASES = []  # (name, function) of the script that runs


class Wrong(Exception):
    """What is wrong, in a sentence."""


class Skipped(Exception):
    """Why a case cannot be tried here."""


def expect(holds, message="wrong"):
    if not holds:
        raise Wrong(message)


def case(name):
    """@case or @case("name"): a function that gets an empty folder."""
    if not callable(name):
        return lambda function: CASES.append((name, function)) or function
    CASES.append((name.__name__.replace("_", " "), name))
    return name


def chosen(name):
    """Whether the command line asks for it: by no word, or by one that its name contains."""
    return not sys.argv[1:] or any(w.replace("_", " ") in name for w in sys.argv[1:])


def told(name, why, seconds=None):
    """Prints how a case ended: why is '', what was wrong, or a Skipped; 0, 1 or 2."""
    kind = 2 if isinstance(why, Skipped) else 1 if why else 0
    print("%-7s %s%s%s" % (("ok", "FAILED", "skipped")[kind], "" if seconds is None else "%5.1f s  " % seconds, name,
                           ": %s" % why if why else ""), flush=True)
    return kind


def attempt(item):
    name, function = item
    began, why = time.time(), ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            function(folder)
        except Skipped as e:
            why = e
        except Wrong as e:
            why = str(e) or "wrong"
        except Exception as e:  # a program that hangs, or a mistake of the test: one case failed
            why = "%s: %s" % (type(e).__name__, e)
    return name, why, time.time() - began


def run_cases(jobs=1, kinds=()):
    """Tries those that are chosen, the last first where jobs of them run at a time (the long ones stand last). kinds:
    of those that told() has been given before. The exit code."""
    kinds, own = list(kinds), [c for c in CASES if chosen(c[0])]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for ended in pool.map(attempt, own if jobs == 1 else own[::-1]):
            kinds.append(told(*ended))
    print("%d passed, %d failed, %d skipped" % tuple(kinds.count(k) for k in range(3)))
    return int(1 in kinds)
