"""python3 -m dreamddp COMMAND: runs a program of the library with the remaining arguments."""
import os
import sys

from . import Error, __version__
from ._programs import find

HELP = """\
usage: python3 -m dreamddp COMMAND [arguments]

Each command runs a program of the library, which receives all further arguments. The exit code is that of the
program. `python3 -m dreamddp COMMAND --help` prints its options.

Before training
  netcheck     measure latency and rate between the workers
  choose       compare the strategies for a model, a network and a number of workers
  plan         run the other planners: partial, timeline, place, pipeline, ...

Training
  run          start N workers of a program on this machine or on several hosts (ddprun)

Examples
  python3 -m dreamddp run -n 4 --net 100mbit,20ms python3 train.py
  python3 -m dreamddp netcheck --workers 4 --net 100mbit,20ms
  python3 -m dreamddp choose --model gpt2 --speed 30 --net 200mbit,10ms --workers 8

Options
  --help       print this text
  --version    print the version of the library
"""
COMMANDS = {"netcheck": ["netcheck"], "choose": ["plan", "choose"], "plan": ["plan"], "run": ["ddprun"]}


def main(arguments):
    """Runs the program, which replaces this process. Returns the exit code if there is no program to run."""
    first = arguments[0] if arguments else None
    if first in (None, "-h", "--help"):
        print(HELP, end="", file=sys.stderr if first is None else sys.stdout)
        return 2 if first is None else 0
    if first == "--version":
        print(__version__)
        return 0
    if first not in COMMANDS:
        print("dreamddp: no command '%s'; the commands are %s" % (first, ", ".join(COMMANDS)), file=sys.stderr)
        return 2
    program, *begin = COMMANDS[first]
    try:
        path = find(program)
    except Error as e:
        print("dreamddp: %s" % e, file=sys.stderr)
        return 1
    os.execv(path, [path] + begin + arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
