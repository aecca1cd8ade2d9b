#!/usr/bin/env python3
"""build/ddprun on one machine: variables, output and input of the workers, signals, exit codes, errors.

    tests/programs/test_ddprun.py [WORD...]     only the cases whose names contain one of the words

Workers are shell scripts, except in the case that trains. Every case must leave no process.
"""
import os
import pty
import re
import signal
import subprocess
import sys
import termios

from launcher import BUILD, DDPRUN, SSH, begin, hosts_file, run, script, wait_until_gone, without_own
from cases import case, expect, processes_with, run_cases


@case
def each_worker_gets_its_rank_in_the_environment(folder):
    program = script(folder, 'echo "$DREAMDDP_RANK of $DREAMDDP_WORLD_SIZE $DREAMDDP_NET $DREAMDDP_STRATEGY '
                     '$DREAMDDP_PERIOD $DREAMDDP_WIRE $1"\n')
    r = run("-n", "3", "--net", "100mbit,20ms", "--strategy", "dreamddp", "--period", "7", "--set", "DREAMDDP_WIRE=int8",
            program, "an argument")
    told = sorted(r.stdout.splitlines())
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    expect(told == ["[%d] %d of 3 100mbit,20ms dreamddp 7 int8 an argument" % (i, i) for i in range(3)], told)
    expect("3 workers" in r.stderr and "all succeeded" in r.stderr, r.stderr)


@case
def two_hyphens_end_the_options(folder):
    program = script(folder, 'printf "%s " "$@"\n')
    r = run("-n", "1", "--quiet", "--no-prefix", "--", program, "-n", "--", "x")
    expect(r.returncode == 0 and r.stdout.strip() == "-n -- x", r.stdout + r.stderr)
    r = run("-n", "1", "--")
    expect(r.returncode == 2 and "PROGRAM is missing" in r.stderr, r.stderr)


@case
def torchrun_variables_are_set(folder):
    program = script(folder, 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $DREAMDDP_LOCAL_RANK, '
                     '$MASTER_ADDR $MASTER_PORT"\n')
    stale = {"RANK": "7", "LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "9", "MASTER_PORT": ""}
    for addr in ((), ("--set", "DREAMDDP_ADDR=127.0.0.9:20077")):
        r = run("-n", "3", "--quiet", "--no-prefix", *addr, program, env=stale)
        told = [re.fullmatch(r"(\d) of 3, \1 of 3, \1, 127.0.0.1 (\d+)", line) for line in r.stdout.splitlines()]
        expect(all(told) and sorted(t.group(1) for t in told) == ["0", "1", "2"], r.stdout + r.stderr)
        expect(len({t.group(2) for t in told}) == 1 and told[0].group(2) != "20077", r.stdout)
    sets = ("--set", "MASTER_ADDR=there", "--set", "MASTER_PORT=77", "--set", "LOCAL_RANK=0", "--set", "DREAMDDP_LOCAL_RANK=1")
    r = run("-n", "1", "--quiet", "--no-prefix", *sets, program)
    expect(r.stdout == "0 of 1, 0 of 1, 1, there 77\n", r.stdout + r.stderr)
    r = run("-n", "1", "--quiet", "--no-prefix", program, env={"MASTER_ADDR": "here", "MASTER_PORT": "78"})
    expect(r.stdout == "0 of 1, 0 of 1, 0, here 78\n", r.stdout + r.stderr)


@case
def final_line_sums_the_bytes_of_all_workers(folder):
    line = "dreamddp info: %sclosed: %s%s MB sent"
    program = script(folder, 'case $RANK in\n'
                     '0) echo "%s" >&2;;\n' % line % ("", "wfbp, 3 steps of 1.0 ms, ", "1.2e+03") +
                     '1) printf "50 %%%% %s\\ndreamddp info: hidden\\n" >&2; echo "%s" >&2; echo "dreamddp warn: shown" >&2;;\n' % (
                         line % ("rank 1 ", "", "34"), line % ("rank 1 ", "", "0.5")) +
                     'esac\n')
    r = run("-n", "3", program)
    lines = r.stderr.splitlines()
    expect(sorted(lines[:-1]) == ["[0] " + line % ("", "wfbp, 3 steps of 1.0 ms, ", "1.2e+03"), "[1] 50 % ",
                                  "[1] dreamddp warn: shown"], r.stderr)
    expect(lines[-1].endswith("all succeeded; wfbp, 3 steps of 1.0 ms, 1.23e+03 MB sent by 2 workers"), lines[-1])
    r = run("-n", "3", program, env={"DREAMDDP_LOG": "info"})
    expect(r.stderr.count("[1] dreamddp info: ") == 2, r.stderr)
    expect(r.stderr.splitlines()[-1].endswith(" MB sent by 2 workers"), r.stderr)


@case
def stdout_and_stderr_stay_separate_and_rank_0_reads_stdin(folder):
    program = script(folder, 'read line; echo "out $line"; echo "err $line" >&2; printf unfinished\n')
    r = run("-n", "2", "--quiet", program, text_in="hello\n")
    expect(sorted(r.stdout.splitlines()) == ["[0] out hello", "[0] unfinished", "[1] out ", "[1] unfinished"], r.stdout)
    expect(sorted(r.stderr.splitlines()) == ["[0] err hello", "[1] err "], r.stderr)
    r = run("-n", "1", "--quiet", "--no-prefix", program, text_in="hello\n")
    expect(r.stdout.splitlines() == ["out hello", "unfinished"], r.stdout)


@case
def long_lines_are_forwarded_whole(folder):
    program = script(folder, "head -c 100000 /dev/zero | tr '\\0' x; echo; echo last\n")
    r = run("-n", "1", "--quiet", "--no-prefix", program)
    expect(r.stdout.count("x") == 100000, "%d of 100000 bytes" % r.stdout.count("x"))
    expect(r.stdout.endswith("last\n"), r.stdout[-20:])


@case
def first_failure_ends_all_workers_and_is_the_exit_code(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 1 ]; then exit 7; fi\nexec sleep 1000\n')
    r = run("-n", "3", program)
    expect(r.returncode == 7, "exit %d: %s" % (r.returncode, r.stderr))
    expect("worker 1 ended with 7" in r.stderr, r.stderr)
    expect(not processes_with(program), "a worker still runs")


@case
def killed_worker_is_reported_with_its_signal(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 2 ]; then kill -9 $$; fi\nexec sleep 1000\n')
    r = run("-n", "3", program)
    expect(r.returncode == 137, "exit %d" % r.returncode)
    expect("worker 2 was killed by signal 9" in r.stderr, r.stderr)


@case
def worker_that_ignores_sigterm_is_killed(folder):
    program = script(folder, 'trap "" TERM\nif [ "$DREAMDDP_RANK" = 0 ]; then sleep 1; exit 3; fi\n'
                     'while :; do sleep 1; done\n')
    r = run("-n", "2", program)
    expect(r.returncode == 3, "exit %d" % r.returncode)
    expect(not processes_with(program), "a worker still runs")


@case
def min_world_keeps_the_other_workers_running(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 1 ]; then exit 7; fi\nsleep 2; echo "$DREAMDDP_MIN_WORLD"\n')
    r = run("-n", "3", "--min-world", "2", program)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    expect(sorted(r.stdout.splitlines()) == ["[0] 2", "[2] 2"], r.stdout)


@case
def signals_are_forwarded_to_the_workers(folder):
    program = script(folder, 'trap "echo got; exit 0" TERM\necho ready\nwhile :; do sleep 0.1; done\n')
    p = subprocess.Popen([DDPRUN, "-n", "2", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = [p.stdout.readline() for _ in range(2)]
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=180)
    expect(all("ready" in line for line in ready), ready)
    expect(sorted(out.splitlines()) == ["[0] got", "[1] got"], out + err)
    expect(p.returncode == 0, "exit %d" % p.returncode)


@case
def workers_end_when_ddprun_is_killed(folder):
    seconds = "98765.%d" % os.getpid()
    p = subprocess.Popen([DDPRUN, "-n", "1", "sh", "-c", "echo ready; exec sleep " + seconds], stdout=subprocess.PIPE, text=True)
    p.stdout.readline()
    p.kill()
    p.wait()
    wait_until_gone("sleep " + seconds)


@case
def ranks_connect_and_train(folder):
    r = run("-n", "2", "--net", "1gbit", "--strategy", "wfbp", os.path.join(BUILD, "own_loop"), cwd=folder, limit=180)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-400:]))
    expect(re.search(r"^\[0\] .*loss", r.stdout, re.M), r.stdout[-400:])
    told = re.search(r"^\[0\] dreamddp info: closed: (wfbp, \d+ steps of .* ms, \d+ % of communication hidden, )(.*) MB sent$",
                     r.stderr, re.M)
    expect(told, r.stderr[-400:])
    end = re.search("all succeeded; (.*, )(.*) MB sent by 2 workers$", r.stderr.splitlines()[-1])
    expect(end and end.group(1) == told.group(1), r.stderr[-400:])
    expect(1.8 < float(end.group(2)) / float(told.group(2)) < 2.2, r.stderr[-400:])
    r = run("-n", "2", "--strategy", "dreamddp", os.path.join(BUILD, "own_loop"), cwd=folder, limit=180)
    expect(re.search(r"^\[0\] dreamddp info: step \d+: dreamddp sends \d+ messages in 4 steps \(\d+( \d+){3}\); a step should "
                     r"take [\d.]+ ms, with \d+ % of communication hidden$", r.stderr, re.M), r.stderr[-400:])
    expect(r.stderr.count("closed: ") == 1, r.stderr)


def at_terminal(*args, typed, until, times=1):
    """Runs ddprun at a new terminal and types the text once its output contains `until` that many times. Returns
    its exit code and output."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(DDPRUN, [DDPRUN, *args], without_own())
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    output = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the last process has closed the terminal
            break
        if not data:
            break
        output += data
        if typed and output.count(until) >= times:
            os.write(terminal, typed)
            typed = b""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode().replace("\r\n", "\n")


@case
def rank_0_reads_from_a_terminal(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 0 ]; then echo ask; fi\nwhile read -r line; do echo "read $line"; done\n')
    places = (["-n", "2"], ["--hosts", hosts_file(folder, "near slots=2\n"), "--ssh", script(folder, SSH, "fake-ssh")])
    for place in places:
        code, output = at_terminal("--quiet", *place, program, typed=b"hello\n\x04", until=b"ask\r\n")
        expect(code == 0 and output == "[0] ask\n[0] read hello\n", "exit %d: %s" % (code, output))


@case
def interrupt_key_reaches_all_workers(folder):
    program = script(folder, 'trap "echo got; exit 5" INT\necho ready\nwhile :; do sleep 0.1; done\n')
    code, output = at_terminal("--quiet", "-n", "2", program, typed=b"\x03", until=b"ready", times=2)
    expect(code == 5 and "[0] got" in output and "[1] got" in output, "exit %d: %s" % (code, output))


@case
def ignored_hangup_stays_ignored(folder):
    program = script(folder, 'echo ready; read line; echo "read $line"\n')
    p = begin("-n", "1", "--quiet", program, ignored=signal.SIGHUP)
    p.stdout.readline()
    p.send_signal(signal.SIGHUP)
    out, err = p.communicate("on\n", timeout=180)
    expect(p.returncode == 0 and out == "[0] read on\n", "exit %d: %s%s" % (p.returncode, out, err))
    p = begin("-n", "1", "--quiet", program)
    p.stdout.readline()
    p.send_signal(signal.SIGHUP)
    code = p.wait(timeout=180)  # the standard input stays open
    p.communicate()
    expect(code == 129, "exit %d" % code)


@case
def repeated_user_signals_do_not_kill_workers(folder):
    program = script(folder, 'trap "echo got" USR1\necho ready\nwhile :; do read line && exit 0; done\n')
    p = begin("-n", "1", "--quiet", program)
    p.stdout.readline()
    for _ in range(4):
        p.send_signal(signal.SIGUSR1)
        expect(p.stdout.readline() == "[0] got\n", "no signal")
    p.communicate("end\n", timeout=180)
    expect(p.returncode == 0, "exit %d" % p.returncode)


@case
def user_address_and_run_id_are_passed_to_the_workers(folder):
    program = script(folder, 'echo "$DREAMDDP_ADDR $DREAMDDP_RUN_ID"\n')
    r = run("-n", "1", "--quiet", "--no-prefix", program, env={"TMPDIR": folder})
    expect(re.fullmatch(r"file://%s/ddprun-\w+/addr ddprun-\w+-\w+\n" % folder, r.stdout), r.stdout + r.stderr)
    own = ("DREAMDDP_ADDR=127.0.0.9:77", "DREAMDDP_RUN_ID=x")
    sets = [word for one in own for word in ("--set", one)]
    for args, env in ((sets, ()), ([], dict(one.split("=") for one in own))):
        for place in (["-n", "1"], ["--hosts", hosts_file(folder, "near\n"), "--ssh", script(folder, SSH, "fake-ssh")]):
            r = run(*place, "--quiet", "--no-prefix", *args, program, env=env)
            expect(r.stdout == "127.0.0.9:77 x\n", r.stdout + r.stderr)
    r = run("-n", "1", program, env={"TMPDIR": folder + "/none"})
    expect(r.returncode == 1 and folder + "/none: No such file" in r.stderr and "set TMPDIR" in r.stderr, r.stderr)


@case
def program_that_never_joins_causes_a_warning(folder):
    words = "no worker used the library, so"
    program = script(folder, "exit $1\n")
    r = run("-n", "2", program, "0")
    expect(r.returncode == 0 and r.stderr.count(words) == 1 and "2 independent programs" in r.stderr, r.stderr)
    for args in (("-n", "2", "--quiet", program, "0"), ("-n", "1", program, "0"), ("-n", "2", program, "3"),
                 ("-n", "2", "--set", "DREAMDDP_ADDR=127.0.0.9:77", program, "0"),
                 ("-n", "2", os.path.join(BUILD, "own_loop")),
                 ("-n", "2", "--set", "DREAMDDP_LOG=error", os.path.join(BUILD, "own_loop"))):
        r = run(*args, cwd=folder)
        expect(words not in r.stderr, "%s: %s" % (args, r.stderr[-400:]))


@case
def ranks_connect_with_a_long_temporary_path(folder):
    deep = folder
    for _ in range(6):
        deep += "/" + 40 * "d"
        os.mkdir(deep)
    r = run("-n", "2", "--quiet", os.path.join(BUILD, "own_loop"), cwd=folder, env={"TMPDIR": deep})
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-400:]))
    expect(not os.listdir(deep), os.listdir(deep))


@case
def closed_standard_streams_do_not_become_pipes(folder):
    p = subprocess.run(["sh", "-c", '"$0" -n 2 --quiet sh -c "cat; echo done" <&-', DDPRUN], env=without_own(),
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=180)
    expect(sorted(p.stdout.splitlines()) == ["[0] done", "[1] done"] and p.stderr == "", p.stdout + p.stderr)


@case
def user_mistakes_fail_with_a_one_line_error(folder):
    plain = os.path.join(folder, "plain")
    with open(plain, "w") as f:
        f.write("no program\n")
    for args, code, words in [
            (["-n", "2", "./missing"], 127, "./missing: No such file"),
            (["-n", "2", "no-such-program-at-all"], 127, "not found in PATH"),
            (["-n", "2", plain], 126, "Permission denied"),
            (["true"], 2, "the number of workers must be from 1 to 1024"),
            (["-n", "2"], 2, "PROGRAM is missing"),
            (["-n", "none", "true"], 2, "-n none"),
            (["-n", "0", "true"], 2, "-n 0"),
            (["-n", "2", "--min-world", "3", "true"], 2, "--min-world 3"),
            (["-n", "2", "--set", "WIRE", "true"], 2, "NAME=VALUE"),
            (["--hosts", os.path.join(folder, "nowhere"), "true"], 2, "No such file"),
            (["-n", "2", "--set", "DREAMDDP_RANK=1", "true"], 2, "use -n"),
            (["-n", "2", "--set", "WORLD_SIZE=1", "true"], 2, "use -n"),
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
