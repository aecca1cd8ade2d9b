#!/usr/bin/env python3
"""build/ddprun as a user meets it: who is who, whose lines they are, how a run ends, mistakes.

    tests/programs/test_ddprun.py [WORD...]     only the cases whose names contain one of the words

Workers are shell scripts but for the case that trains; no process of a case may be left.
"""
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case, expect, processes_with, run_cases  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
DDPRUN = os.path.join(BUILD, "ddprun")


def run(*args, cwd=None, env=None, text_in=None, limit=180):
    own = dict(os.environ)
    for name in list(own):
        if name.startswith("DREAMDDP_"):
            del own[name]
    own.update(env or {})
    return subprocess.run([DDPRUN, *args], cwd=cwd, env=own, input=text_in, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=limit)


def script(folder, text, name="program"):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


@case
def each_worker_is_told_who_it_is(folder):
    program = script(folder, 'echo "$DREAMDDP_RANK of $DREAMDDP_WORLD_SIZE $DREAMDDP_NET $DREAMDDP_STRATEGY '
                     '$DREAMDDP_PERIOD $DREAMDDP_WIRE $1"\n')
    r = run("-n", "3", "--net", "100mbit,20ms", "--strategy", "dreamddp", "--period", "7", "--set", "DREAMDDP_WIRE=int8",
            program, "an argument")
    told = sorted(r.stdout.splitlines())
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    expect(told == ["[%d] %d of 3 100mbit,20ms dreamddp 7 int8 an argument" % (i, i) for i in range(3)], told)
    expect("3 workers" in r.stderr and "all well" in r.stderr, r.stderr)


@case
def streams_stay_apart_and_rank_0_has_the_input(folder):
    program = script(folder, 'read line; echo "out $line"; echo "err $line" >&2; printf unfinished\n')
    r = run("-n", "2", "--quiet", program, text_in="hello\n")
    expect(sorted(r.stdout.splitlines()) == ["[0] out hello", "[0] unfinished", "[1] out ", "[1] unfinished"], r.stdout)
    expect(sorted(r.stderr.splitlines()) == ["[0] err hello", "[1] err "], r.stderr)
    r = run("-n", "1", "--quiet", "--no-prefix", program, text_in="hello\n")
    expect(r.stdout.splitlines() == ["out hello", "unfinished"], r.stdout)


@case
def a_long_line_is_passed_on_whole(folder):
    program = script(folder, "head -c 100000 /dev/zero | tr '\\0' x; echo; echo last\n")
    r = run("-n", "1", "--quiet", "--no-prefix", program)
    expect(r.stdout.count("x") == 100000, "%d of 100000 bytes" % r.stdout.count("x"))
    expect(r.stdout.endswith("last\n"), r.stdout[-20:])


@case
def the_first_failure_ends_all_and_is_the_exit_code(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 1 ]; then exit 7; fi\nexec sleep 1000\n')
    r = run("-n", "3", program)
    expect(r.returncode == 7, "exit %d: %s" % (r.returncode, r.stderr))
    expect("worker 1 ended with 7" in r.stderr, r.stderr)
    expect(not processes_with(program), "a worker is left")


@case
def a_killed_worker_is_named_with_its_signal(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 2 ]; then kill -9 $$; fi\nexec sleep 1000\n')
    r = run("-n", "3", program)
    expect(r.returncode == 137, "exit %d" % r.returncode)
    expect("worker 2 was killed by signal 9" in r.stderr, r.stderr)


@case
def a_worker_that_ignores_the_end_is_killed(folder):
    program = script(folder, 'trap "" TERM\nif [ "$DREAMDDP_RANK" = 0 ]; then sleep 1; exit 3; fi\n'
                     'while :; do sleep 1; done\n')
    r = run("-n", "2", program)
    expect(r.returncode == 3, "exit %d" % r.returncode)
    expect(not processes_with(program), "a worker is left")


@case
def with_min_world_the_others_go_on(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 1 ]; then exit 7; fi\nsleep 2; echo "$DREAMDDP_MIN_WORLD"\n')
    r = run("-n", "3", "--min-world", "2", program)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    expect(sorted(r.stdout.splitlines()) == ["[0] 2", "[2] 2"], r.stdout)


@case
def signals_reach_the_workers(folder):
    program = script(folder, 'trap "echo got; exit 0" TERM\necho ready\nwhile :; do sleep 0.1; done\n')
    p = subprocess.Popen([DDPRUN, "-n", "2", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = [p.stdout.readline() for _ in range(2)]
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=180)
    expect(all("ready" in line for line in ready), ready)
    expect(sorted(out.splitlines()) == ["[0] got", "[1] got"], out + err)
    expect(p.returncode == 0, "exit %d" % p.returncode)


@case
def workers_do_not_outlive_it(folder):
    seconds = "98765.%d" % os.getpid()
    p = subprocess.Popen([DDPRUN, "-n", "1", "sh", "-c", "echo ready; exec sleep " + seconds], stdout=subprocess.PIPE, text=True)
    p.stdout.readline()
    p.kill()
    p.wait()
    until = time.monotonic() + 60
    while processes_with("sleep " + seconds) and time.monotonic() < until:
        time.sleep(0.02)
    expect(not processes_with("sleep " + seconds), "the worker is left")


@case
def ranks_meet_and_train(folder):
    r = run("-n", "2", "--net", "1gbit", "--strategy", "wfbp", os.path.join(BUILD, "own_loop"), cwd=folder, limit=180)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-400:]))
    expect(re.search(r"^\[0\] .*loss", r.stdout, re.M), r.stdout[-400:])
    told = re.search(r"^\[0\] dreamddp info: closed: (wfbp, \d+ steps of .* ms, \d+ % of communication hidden, .* MB sent)$",
                     r.stderr, re.M)
    expect(told, r.stderr[-400:])
    expect(r.stderr.splitlines()[-1].endswith("all well; " + told.group(1)), r.stderr[-400:])
    r = run("-n", "2", "--strategy", "dreamddp", os.path.join(BUILD, "own_loop"), cwd=folder, limit=180)
    expect(re.search(r"^\[0\] dreamddp info: step \d+: dreamddp sends \d+ messages in 4 steps \(\d+( \d+){3}\); a step should "
                     r"take [\d.]+ ms, with \d+ % of communication hidden$", r.stderr, re.M), r.stderr[-400:])
    expect(r.stderr.count("closed: ") == 1, r.stderr)


@case
def hosts_are_reached_by_ssh(folder):
    # in place of ssh: "host" is this machine; words in front are options
    ssh = script(folder, 'while [ "$#" -gt 2 ]; do shift; done\nhost=$1\necho "at $host" >&2\n'
                 '[ "$host" = away ] && exit 255\nexec sh -c "$2"\n', "fake-ssh")
    program = script(folder, "echo \"$DREAMDDP_RANK of $DREAMDDP_WORLD_SIZE at $DREAMDDP_ADDR, $1\"\n")
    hosts = os.path.join(folder, "hosts")
    with open(hosts, "w") as f:
        f.write("# two here\nnear slots=2\nfar\n")
    r = run("--hosts", hosts, "--ssh", ssh, "--port", "4567", program, "it's one word", cwd=folder)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    told = sorted(r.stdout.splitlines())
    expect(len(told) == 3 and all("%d of 3" % i in told[i] and "near:4567" in told[i] and "it's one word" in told[i]
                                  for i in range(3)), told)
    with open(hosts, "w") as f:
        f.write("near\naway\n")
    r = run("--hosts", hosts, "--ssh", ssh, program, cwd=folder)
    expect(r.returncode == 255 and "away does not answer" in r.stderr, "exit %d: %s" % (r.returncode, r.stderr))


@case
def mistakes_are_one_sentence(folder):
    plain = os.path.join(folder, "plain")
    with open(plain, "w") as f:
        f.write("no program\n")
    bad_hosts = os.path.join(folder, "bad")
    with open(bad_hosts, "w") as f:
        f.write("near slots=none\n")
    for args, code, words in [
            (["-n", "2", "./missing"], 127, "./missing: No such file"),
            (["-n", "2", "no-such-program-at-all"], 127, "not found in PATH"),
            (["-n", "2", plain], 126, "Permission denied"),
            (["true"], 2, "how many workers"),
            (["-n", "2"], 2, "which program"),
            (["-n", "none", "true"], 2, "-n none"),
            (["-n", "0", "true"], 2, "-n 0"),
            (["-n", "2", "--min-world", "3", "true"], 2, "--min-world 3"),
            (["-n", "2", "--set", "WIRE", "true"], 2, "NAME=VALUE"),
            (["--hosts", os.path.join(folder, "nowhere"), "true"], 2, "No such file"),
            (["--hosts", bad_hosts, "true"], 2, "line 1"),
            (["-n", "2", "--sprocket", "3", "true"], 2, "--sprocket")]:
        r = run(*args, cwd=folder)
        expect(r.returncode == code, "%s: exit %d, not %d: %s" % (args, r.returncode, code, r.stderr))
        expect(words in r.stderr and r.stderr.count("\n") == 1 and r.stdout == "", "%s: %s" % (args, r.stderr))
    r = run("--help")
    expect(r.returncode == 0 and "--min-world" in r.stdout, r.stdout)


def main():
    if not os.access(DDPRUN, os.X_OK):
        print("FAILED: build/ddprun is not built: make build/ddprun build/own_loop")
        return 1
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
