#!/usr/bin/env python3
"""Random kills, stalls, drops and joins for some minutes, several worlds at a time.

    tests/member/soak.py build/plain --minutes 10 [--events 10000] [--jobs 8] [--seed N]

Ends after so many minutes, or as soon as there were so many events. The last line is a JSON object.
Exit 1: a run failed or hung; its output is shown, and the line that repeats it.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time

# test, case, runs of one call, seconds after which it hangs
MIX = [
    ("member/test_elastic", "one_death_at_any_moment_over_threads", 50, 300),
    ("wire/test_resume", "operations_keep_their_bits_over_breaks", 1, 300),
    ("member/test_elastic", "one_death_in_a_ring", 50, 300),
    ("member/test_admit", "deaths_in_the_midst_of_an_admission", 50, 300),
    ("member/test_elastic", "a_stall_at_any_moment", 20, 300),
    ("member/test_elastic", "one_death_at_any_moment_over_tcp", 50, 300),
    ("member/test_admit", "deaths_in_the_midst_of_an_admission", 50, 300),
    ("member/test_elastic", "processes_are_killed", 40, 300),
    ("member/test_elastic", "two_deaths_in_a_row_or_at_once", 20, 300),
    ("member/test_join", "newcomers_that_die_are_forgotten", 1, 300),
    ("member/test_admit", "deaths_in_the_midst_of_an_admission", 50, 300),
    ("member/test_join", "a_killed_worker_comes_back", 1, 300),
]
KINDS = ("kills", "stalls", "drops", "joins")


class Soak:
    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.next = 0
        self.runs = 0
        self.count = dict.fromkeys(KINDS, 0)
        self.failed = None
        self.begin = time.monotonic()

    def over(self):
        return (self.failed or time.monotonic() > self.begin + 60 * self.args.minutes or
                sum(self.count.values()) >= self.args.events)

    def one(self, number):
        test, case, runs, limit = MIX[number % len(MIX)]
        setting = {"ONLY": case, "ELASTIC": str(runs), "SOAK": "1",
                   "SEED_BASE": str(self.args.seed + 100000 + 1000 * number)}
        program = os.path.join(self.args.folder, test)
        repeat = " ".join(f"{k}={v}" for k, v in setting.items()) + " " + program
        try:
            done = subprocess.run([program], env={**os.environ, **setting}, timeout=limit,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as e:
            code, text = f"none after {limit} s: it hangs", (e.stdout or b"").decode()
        with self.lock:
            self.runs += 1
            for line in text.splitlines():
                if line.startswith("events "):
                    for kind, n in zip(KINDS, line.split()[1:]):
                        self.count[kind] += int(n)
            if code and not self.failed:
                self.failed = f"{text}\nsoak: exit code {code}; again: {repeat}"

    def work(self):
        while not self.over():
            with self.lock:
                number, self.next = self.next, self.next + 1
            self.one(number)

    def note(self, done):
        events = ", ".join(f"{n} {kind}" for kind, n in self.count.items())
        print(f"soak: {time.monotonic() - self.begin:.0f} s, {events}", flush=True)
        if done:
            seconds = round(time.monotonic() - self.begin, 1)
            print(json.dumps({"build": os.path.basename(os.path.normpath(self.args.folder)),
                              "seconds": seconds, "events": sum(self.count.values()),
                              **self.count, "calls": self.runs, "failed": bool(self.failed)}))


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("folder", help="of the tests: build/plain, build/asan or build/tsan")
    parse.add_argument("--minutes", type=float, default=10)
    parse.add_argument("--events", type=int, default=10**9)
    parse.add_argument("--jobs", type=int, default=6)
    parse.add_argument("--seed", type=int, default=0)
    soak = Soak(parse.parse_args())
    for test in sorted({test for test, _, _, _ in MIX}):
        program = os.path.join(soak.args.folder, test)
        if not os.access(program, os.X_OK):
            parse.error(f"{program} is not there: build it, or say `make soak`")
    threads = [threading.Thread(target=soak.work) for _ in range(soak.args.jobs)]
    for t in threads:
        t.start()
    last = time.monotonic()
    while any(t.is_alive() for t in threads):
        time.sleep(0.2)
        if time.monotonic() > last + 30:
            last = time.monotonic()
            soak.note(False)
    if soak.failed:
        print(soak.failed)
    soak.note(True)
    return 1 if soak.failed else 0


if __name__ == "__main__":
    sys.exit(main())
