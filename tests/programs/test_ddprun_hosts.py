#!/usr/bin/env python3
"""ddprun --hosts, with a script instead of ssh that runs the command in a new session on this machine.

Workers are shell scripts. Every case must leave no process. test_ddprun_sshd.py uses a real sshd.
"""
import os
import shutil
import signal
import sys

from launcher import SSH, begin, hosts_file, run, script, wait_until_gone
from cases import Skipped, case, expect, run_cases

WHERE = 'echo "$DREAMDDP_RANK of $DREAMDDP_WORLD_SIZE at $DREAMDDP_ADDR"\n'


def lines(text):
    return sorted(text.splitlines())


@case
def each_rank_runs_on_its_host(folder):
    ssh = script(folder, SSH.replace("if host", "print('at', host, file=sys.stderr)\nif host"), "fake-ssh")
    hosts = hosts_file(folder, "# two here\nnear slots=2\nfar\n")
    r = run("--hosts", hosts, "--ssh", ssh, "--port", "4567", "--quiet", script(folder, WHERE), cwd=folder)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    expect(lines(r.stdout) == ["[%d] %d of 3 at near:4567" % (i, i) for i in range(3)], r.stdout)
    expect(lines(r.stderr) == ["[0] at near", "[1] at near", "[2] at far"], r.stderr)


@case
def torchrun_variables_are_set_on_hosts(folder):
    ssh = script(folder, 'while [ "$#" -gt 2 ]; do shift; done\nexec sh -c "$2"\n', "fake-ssh")
    told = 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $DREAMDDP_LOCAL_RANK, $MASTER_ADDR $MASTER_PORT"\n'
    program = script(folder, told)
    for text, more, where in (
            ("near slots=2\nfar\nnear\n", (), "near 29501"),
            ("me@near slots=2\nfar\nyou@near\n", ("--port", "65535"), "near 65534"),
            ("[fd00::7]:2\nfar\nfd00::7\n", ("--port", "4567"), "fd00::7 4568"),
            ("near slots=2\nfar\nnear\n", ("--set", "DREAMDDP_ADDR=tcp://[fd00::9]:77"), "fd00::9 78"),
            ("near slots=2\nfar\nnear\n", ("--set", "DREAMDDP_ADDR=10.0.0.9"), "10.0.0.9 29501"),
            ("near slots=2\nfar\nnear\n", ("--set", "DREAMDDP_ADDR=file:///run"), "near 29501"),
            ("near slots=2\nfar\nnear\n", ("--set", "MASTER_ADDR=there", "--set", "MASTER_PORT=5"), "there 5")):
        r = run("--hosts", hosts_file(folder, text), "--ssh", ssh, "--quiet", "--no-prefix", *more, program, cwd=folder)
        right = ["%d of 4, %d of %d, %d, %s" % (r, local, locals_, local, where)
                 for r, local, locals_ in ((0, 0, 3), (1, 1, 3), (2, 0, 1), (3, 2, 3))]
        expect(lines(r.stdout) == right, "%s %s: %s%s" % (text, more, r.stdout, r.stderr))


@case
def host_files_of_other_launchers_are_accepted(folder):
    ssh = script(folder, 'while [ "$#" -gt 2 ]; do shift; done\necho "to $1"\nexec sh -c "$2"\n', "fake-ssh")
    for line, target, address, slots in (
            (b"user@near", "user@near", "near", 1),
            (b"near:2", "near", "near", 2),
            (b"10.0.0.7:2", "10.0.0.7", "10.0.0.7", 2),
            (b"fd00::7 slots=2", "fd00::7", "[fd00::7]", 2),
            (b"fe80::7%eth0", "fe80::7%eth0", "[fe80::7%eth0]", 1),
            (b"me@[::1]:2", "me@::1", "[::1]", 2),
            (b"[::1]", "::1", "[::1]", 1),
            (b"near slots=2 max_slots=4", "near", "near", 2),
            (b"\xef\xbb\xbfnear slots=2 # both\r\n\r\n# end\r", "near", "near", 2),
            (b"\tnear  slots=1 \n  # end", "near", "near", 1)):
        r = run("--hosts", hosts_file(folder, line + b"\n"), "--ssh", ssh, "--quiet", "--no-prefix", script(folder, WHERE))
        right = ["to " + target] * slots + ["%d of %d at %s:29500" % (i, slots, address) for i in range(slots)]
        expect(lines(r.stdout) == sorted(right), "%s: %s%s" % (line, r.stdout, r.stderr))


@case
def invalid_host_line_fails_with_its_number_and_a_remedy(folder):
    for text, words in (("near slots=2x", "line 1: slots=2x: the number of workers must be a whole number from 1 to 1024"),
                        ("near\nfar slots=0", "line 2: slots=0"), ("near:29500", "from 1 to 1024, as in: node1 slots=4"),
                        ("near slots=", "slots="), ("near:", "from 1 to 1024"),
                        ("near:2 slots=3", "slots=3: this host already has 2 slots"),
                        ("near gpus=4", "gpus=4 is unknown; write [USER@]HOST [slots=N]"), ("user@", "names no host"),
                        ("@near", "names no host"), ("-oProxyCommand=x", "names no host"), ("[::1", "[ADDRESS]:SLOTS"),
                        ("near:2:3", "near:2:3 is not an IPv6 address"), ("near slots=4 max_slots=2", "more than max_slots=2"),
                        ("# none\n", "names no host")):
        r = run("--hosts", hosts_file(folder, text), "true")
        expect(r.returncode == 2 and words in r.stderr and r.stderr.count("\n") == 1, "%s: %s" % (text, r.stderr))


@case
def ssh_options_are_split_as_by_a_shell(folder):
    ssh = script(folder, 'echo "$1|$2|$3|$4"\n', "fake ssh")
    hosts = hosts_file(folder, "near\n")
    r = run("--hosts", hosts, "--ssh", "'%s' -F \"a b\" c\\ d''" % ssh, "--quiet", "--no-prefix", "true")
    expect(r.stdout == "-F|a b|c d|-T\n", r.stdout + r.stderr)
    for given, code, words in (("'x", 2, "is not closed"), (" ", 2, "a command is needed"),
                               ("no-such-ssh -v", 127, "no-such-ssh: not found")):
        r = run("--hosts", hosts, "--ssh", given, "true")
        expect(r.returncode == code and words in r.stderr and r.stderr.count("\n") == 1, r.stderr)


@case
def variables_and_arguments_arrive_unchanged(folder):
    odd = "it's \"$HOME\" `id` \\n \\ !! * ; & | # ~ \t\nend\\"
    ssh = script(folder, SSH, "fake-ssh")
    os.mkdir(os.path.join(folder, "rate=0.1"))
    text = 'printf "%s" "$OMP_NUM_THREADS,$ODD,$DREAMDDP_NET,$DREAMDDP_WIRE,$1,$2,$#" >"$2"\n'
    program = script(folder, text, "rate=0.1/program's")
    result = os.path.join(folder, "result")
    r = run("--hosts", hosts_file(folder, "near\n"), "--ssh", ssh, "--quiet", "--set", "OMP_NUM_THREADS=1",
            "--set", "OMP_NUM_THREADS=2", "--set", "ODD=" + odd, "--set", "DREAMDDP_WIRE=int8",
            os.path.relpath(program, folder), odd, "result", "",
            cwd=folder, env={"DREAMDDP_NET": odd, "DREAMDDP_WIRE": "f16"})
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    with open(result) as f:
        text = f.read()
    expect(text == "2,%s,%s,int8,%s,result,3" % (odd, odd, odd), text)


def shells(folder):
    """(name, PATH) for each shell of this machine that may be sh on a host."""
    found = []
    for name in ("dash", "bash", "busybox"):
        if shutil.which(name):
            path = os.path.join(folder, name)
            os.mkdir(path)
            os.symlink(shutil.which(name), os.path.join(path, "sh"))
            found.append((name, path + os.pathsep + os.environ["PATH"]))
    if not found:
        raise Skipped("no shell is called dash, bash or busybox")
    return found


def each_shell(function):
    """Registers a case that runs with each shell. function(folder, options): options of ddprun for two workers on
    hosts."""
    def with_shells(folder):
        ssh = script(folder, SSH, "fake-ssh")
        for name, path in shells(folder):
            local = script(folder, 'PATH="%s"; export PATH; exec %s "$@"\n' % (path, ssh), name + "-ssh")
            try:
                function(folder, ["--quiet", "--ssh", local, "--hosts", hosts_file(folder, "near slots=2\n")])
            except Exception as e:
                raise type(e)("%s as sh: %s" % (name, e)) from e
    return case(function.__name__.replace("_", " "))(with_shells)


@each_shell
def signal_to_ddprun_ends_the_workers(folder, options):
    for sig, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        seconds = "98764.%d%d" % (os.getpid(), sig)
        p = begin(*options, "sh", "-c", "echo ready; exec sleep " + seconds)
        for _ in range(2):
            p.stdout.readline()
        p.send_signal(sig)
        _, err = p.communicate(timeout=180)
        expect(p.returncode == code, "%s: exit %d, not %d: %s" % (sig, p.returncode, code, err))
        if code > 0:
            expect("was killed by signal %d" % sig in err and "Terminated\n" not in err, err)
        wait_until_gone("sleep " + seconds)


@each_shell
def the_workers_receive_each_signal_once(folder, options):
    program = script(folder, 'trap "echo usr1" USR1\ntrap "echo term; exit 0" TERM\n'
                     'echo ready\nwhile :; do sleep 0.1; done\n')
    p = begin(*options, program)
    got = [p.stdout.readline() for _ in range(2)]
    for sig in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
        p.send_signal(sig)
        if sig == signal.SIGUSR1:
            got += [p.stdout.readline() for _ in range(2)]
    out, err = p.communicate(timeout=180)
    right = ["[%d] %s\n" % (r, w) for w in ("ready", "usr1", "usr1", "usr1", "term") for r in range(2)]
    expect(sorted(got + out.splitlines(True)) == sorted(right), "%s%s%s" % (got, out, err))
    expect(p.returncode == 0, "exit %d: %s" % (p.returncode, err))


@case
def failure_of_a_worker_ends_the_others(folder):
    options = ["--ssh", script(folder, SSH, "fake-ssh"), "--hosts", hosts_file(folder, "near slots=2\n")]
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 1 ]; then exit 7; fi\nexec sleep 98763.%d\n' % os.getpid())
    r = run(*options, program)
    expect(r.returncode == 7 and "worker 1 ended with 7" in r.stderr, "exit %d: %s" % (r.returncode, r.stderr))
    wait_until_gone("sleep 98763.%d" % os.getpid())


@each_shell
def rank_0_reads_stdin(folder, options):
    data = "".join(map(chr, range(1, 128))) * 20
    program = script(folder, 'cat >"$DREAMDDP_RANK"; echo end\n')
    r = run(*options, program, text_in=data, cwd=folder)
    expect(lines(r.stdout) == ["[0] end", "[1] end"] and r.stderr == "", "exit %d: %s%s" % (r.returncode, r.stdout, r.stderr))
    for rank, right in ((0, data), (1, "")):
        with open(os.path.join(folder, str(rank)), newline="") as f:
            expect(f.read() == right, "rank %d read other bytes" % rank)


@case
def unread_stdin_does_not_delay_signals(folder):
    ssh, hosts = script(folder, SSH, "fake-ssh"), hosts_file(folder, "near\n")
    program = script(folder, 'trap "echo got; exit 9" USR1\necho ready\nwhile :; do sleep 0.1; done\n')
    p = begin("--quiet", "--ssh", ssh, "--hosts", hosts, program)
    p.stdout.readline()
    os.set_blocking(p.stdin.fileno(), False)
    p.stdin.write("x" * 60000)
    p.send_signal(signal.SIGUSR1)
    expect(p.stdout.readline() == "[0] got\n", "no signal")
    expect(p.wait(timeout=180) == 9, "exit %d" % p.returncode)


@case
def worker_that_ignores_signals_is_killed(folder):
    ssh, hosts = script(folder, SSH, "fake-ssh"), hosts_file(folder, "near\n")
    mark = "98762.%d" % os.getpid()
    text = 'trap "" INT; trap "echo got" USR1; echo ready; while :; do sleep 0.1; done; : ' + mark
    p = begin("--quiet", "--ssh", ssh, "--hosts", hosts, "sh", "-c", text)
    p.stdout.readline()
    for sig in (signal.SIGINT, signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1, signal.SIGINT):
        p.send_signal(sig)
        if sig == signal.SIGUSR1:  # ddprun has forwarded the previous signal
            p.stdout.readline()
    _, err = p.communicate(timeout=180)
    expect(p.returncode == 137, "exit %d: %s" % (p.returncode, err))
    wait_until_gone(mark)


@case
def unreachable_host_is_named(folder):
    ssh = script(folder, SSH, "fake-ssh")
    r = run("--hosts", hosts_file(folder, "near\naway\n"), "--ssh", ssh, "sleep", "1000")
    expect(r.returncode == 255 and "worker 1: cannot connect to away with " in r.stderr, "exit %d: %s" % (r.returncode, r.stderr))
    hang = script(folder, "echo connecting; exec sleep 1000\n", "hang")
    p = begin("--quiet", "--hosts", hosts_file(folder, "near\n"), "--ssh", hang, "true")
    p.stdout.readline()
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=180)
    expect(p.returncode == 130, "exit %d: %s" % (p.returncode, err))


if __name__ == "__main__":
    sys.exit(run_cases())
