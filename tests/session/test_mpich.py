#!/usr/bin/env python3
"""[test-all: needs MPICH] Runs started by MPICH's mpirun: two at a time on one machine, and a program built with Open MPI.

Needs mpiexec.hydra and build/train_gpt (`make all`)."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from training import alone, case, expect, finish, start, trained  # noqa: E402
from cases import run_cases, skip_script  # noqa: E402


def mpich(ranks, args=()):
    """Starts mpirun. The last line of its output is rank 0's result."""
    return start(args, launcher=["mpiexec.hydra", "-n", str(ranks)])


@case
def two_runs_at_the_same_time_do_not_mix():
    right = {2: alone(2), 3: alone(3)}
    for _ in range(2):
        for ranks, done in zip((2, 3), finish([mpich(2), mpich(3)])):
            expect(trained([done], ranks) == right[ranks], "other parameters than a run that one command starts")


@case
def program_built_with_another_mpi_fails_with_an_error():
    code, _, err = finish([mpich(2, ["--transport", "mpi"])])[0]
    expect(code, "it trained")
    expect("built without MPI" in err or ("was built with Open MPI" in err and "sees only one rank" in err), err)


if __name__ == "__main__":
    if not shutil.which("mpiexec.hydra"):
        skip_script("MPICH is not installed (Debian: mpich)")
    sys.exit(run_cases())
