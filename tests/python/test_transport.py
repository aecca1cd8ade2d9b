#!/usr/bin/env python3
"""[long, test-all: needs PyTorch] init after torch.distributed was initialised: transport="torch" over gloo, and rank and world size from torch.distributed.

    PYTHON tests/python/test_transport.py [WORD...]     with another PyTorch; only cases whose names contain one of the words

The cases of torch_ranks.py run in processes that this script starts. Exit 77 if the library or PyTorch's gloo is missing.
"""
import os
import re
import subprocess
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import case, expect, run_cases, skip_script, unused_address  # noqa: E402
from ddprun import ROOT, built, clean, run  # noqa: E402

TORCH_RANKS = os.path.join(ROOT, "tests", "python", "torch_ranks.py")
NO_THREADS_LEFT = re.compile(r"terminate called|Fatal Python error|FATAL")


def ranks(world, *names, killed=(), stopped=(), failed=()):
    """Runs cases in `world` processes. killed, failed: ranks that end by a signal or by an exception. stopped:
    ranks that are killed here after the others have ended."""
    env = clean(DREAMDDP_LOG="off")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        env.pop(name, None)
    store = unused_address()
    started = [subprocess.Popen([sys.executable, TORCH_RANKS, str(r), str(world), store, *names], env=env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for r in range(world)]
    try:
        said = {r: started[r].communicate(timeout=200) for r in range(world) if r not in stopped}
    finally:
        for p in started:
            p.kill()
    said.update((r, started[r].communicate()) for r in stopped)
    for r, p in enumerate(started):
        out, err = said[r]
        told = "rank %d, exit %d: %s\n%s" % (r, p.returncode, err.strip().rpartition("\n")[2], err.strip()[-1500:])
        expect(not NO_THREADS_LEFT.search(err), told)
        if r in killed or r in stopped:
            expect(p.returncode < 0, told)
        elif r in failed:
            expect(p.returncode == 1, told)
        else:
            expect(p.returncode == 0, told)
            expect([n for n in names if "done %s\n" % n in out] == list(names), told)


@case
def training_over_gloo_is_bit_identical_to_tcp_next_to_user_collectives(_):
    ranks(3, "training_is_bit_identical_to_tcp")
    ranks(2, "training_is_bit_identical_to_tcp")


@case
def gloo_sends_every_byte_of_the_library(_):
    ranks(3, "gloo_sends_every_byte")


@case
def rank_and_world_come_from_torch_distributed(_):
    ranks(2, "rank_0_sends_a_reachable_address")
    ranks(3, "rank_and_world_come_from_torch_distributed")


@case
def user_mistakes_fail_with_a_one_line_error(_):
    ranks(2, "user_mistakes_fail_with_a_one_line_error")
    program = "import dreamddp\ntry:\n    dreamddp.init(transport='torch')\nexcept dreamddp.UsageError as e:\n    print(e)"
    for first in ("", "import torch.distributed\n"):
        r = run(sys.executable, "-c", first + program)
        expect("torch.distributed is not initialised: call torch.distributed.init_process_group first" in r.stdout,
               r.stdout + r.stderr)


@case
def killed_rank_is_lost_for_the_others(_):
    ranks(3, "killed_rank_is_lost_for_the_others", killed=[1])


@case
def stopped_rank_is_lost_for_the_others(_):
    ranks(3, "stopped_rank_is_lost_for_the_others", stopped=[1])


@case
def elastic_world_continues_without_the_killed_rank(_):
    ranks(3, "elastic_world_continues_without_the_killed_rank", killed=[1])


@case
def exception_of_a_rank_reaches_the_others(_):
    ranks(3, "exception_of_a_rank_reaches_the_others", failed=[1])


@case
def interrupt_ends_a_blocking_call_and_groups_may_be_destroyed_first(_):
    ranks(3, "interrupt_ends_a_blocking_call", "destroying_groups_first_ends_in_order")


def main():
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun")
    probe = "import torch.distributed as d; assert d.is_available() and (not hasattr(d, 'is_gloo_available') or d.is_gloo_available())"
    if run(sys.executable, "-c", probe).returncode:
        skip_script("PyTorch with gloo is missing")
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
