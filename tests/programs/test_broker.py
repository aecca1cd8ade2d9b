#!/usr/bin/env python3
"""[long] build/broker and build/compnode: results bit-identical to one worker, lost nodes, user mistakes.

    tests/programs/test_broker.py [WORD...]     only the cases whose names contain one of the words

Every case runs in its own folder, with its own port, and must leave no process.
"""
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from broker_job import GPT, MLP, Job, case, images, network, quick, same, trainer, word  # noqa: E402
from cases import expect, run_cases  # noqa: E402


# A perceptron with skip edges, a kernel that the nodes register, and one operator with its own optimizer.
def skip_graph(kernel="CustomReLU"):
    def op(name, kind, *args, **more):
        return dict({"name": name, "op": kind, "args": list(args)}, **more)
    shape = {"shape": [4, 12], "parameters": [], "flops": 48}
    return {"dreamddp_job": 1, "steps": 5, "micro_batches": 3, "seed": 9, "loss": "loss",
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "operators": [
                {"name": "inputs", "shape": [4, 30]}, {"name": "labels", "shape": [4, 1], "dtype": "i32"},
                op("a", "linear", "inputs", layer="a", attributes=[12]),
                op("b", kernel, "a", layer="a", **shape),
                op("c", "linear", "b", layer="c", attributes=[12], optimizer={"name": "adamw", "lr": 0.01}),
                op("d", "add", "c", "a", layer="c"),
                op("e", kernel, "d", layer="e", **shape),
                op("f", "linear", "e", layer="e", attributes=[12]),
                op("g", "add", "f", "b", layer="e"),
                op("h", "add", "g", "a", layer="h"),
                op("logits", "linear", "h", layer="h", attributes=[10]),
                op("loss", "cross_entropy", "logits", "labels", layer="h")]}


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    return name


# ---- a peer that violates the protocol ----

@case
def message_longer_than_the_limit_ends_the_node_with_an_error(job, folder):
    for kind, length in ((7, 2 ** 64 - 1), (7, 2 ** 63), (9, 2 ** 36), (10, 1 << 20), (11, 3)):
        with socket.socket() as broker:
            broker.bind(("127.0.0.1", 0))
            broker.listen(1)
            node = job.start("compnode", "--broker", "127.0.0.1:%d" % broker.getsockname()[1])
            job.nodes.append(node)
            peer, _ = broker.accept()
            with peer:
                peer.recv(300)
                try:
                    peer.sendall(word(kind, b"A" * 65536, length))
                except OSError:
                    pass  # the node closed the connection before it read everything
                said = node.communicate(timeout=60)[1]
        expect(node.returncode == 3 and "malformed message %d of %d bytes" % (kind, length) in said,
               "exit %d: %s" % (node.returncode, said))


def false_node(job, started):
    """Runs a job with one node. The node answers correctly until it is started, then sends the bytes `started`.
    Returns the broker's stderr, and the kinds of the messages that the node received."""
    job.listen("--nodes", 1, "--model", "gpt2", *GPT, "--data", "text", "--steps", 2, "--restarts", 0)
    received = []
    with job.connect() as s, s.makefile("rb") as stream:
        s.sendall(word(1, b"1 -"))
        reply = {3: word(4, b"1e9 9"), 7: word(8), 10: started}  # answers to: measure, job, start
        while 2 not in received:
            head = stream.read(16)
            if len(head) < 16:
                break
            _, kind, length = struct.unpack("<IIQ", head)
            stream.read(length)
            received.append(kind)
            if kind != 2:
                s.sendall(reply.get(kind, b""))
    return job.broker.communicate(timeout=60)[1], received


@case
def failure_message_without_a_code_fails_the_job(job, folder):
    err, received = false_node(job, word(16, bytes(512)))
    expect(job.broker.returncode == 1 and 10 in received and "node 0" in err, "the node received %s; the broker: %s" % (received, err))


@case
def node_that_sends_an_unexpected_message_is_declared_lost(job, folder):
    for started, kind in ((word(13), 13), (word(9, struct.pack("<ii", 999, 0)), 9), (word(9, struct.pack("<ii", -1, 0)), 9),
                          (word(8), 8)):  # saved; state of an operator that does not exist, twice; ready
        attempt = Job(folder)
        try:
            err, received = false_node(attempt, started)
            expect(attempt.broker.returncode == 3 and 10 in received and "sent message %d, which was not expected" % kind in err,
                   "the node received %s; the broker: exit %d: %s" % (received, attempt.broker.returncode, err))
        finally:
            attempt.close()


@case
def network_with_too_many_devices_fails_the_job(job, folder):
    """A node reports a network with more devices than there are nodes. The broker must not use its device numbers."""
    rows = [[1 if i != j else 0 for j in range(700)] for i in range(700)]
    text = json.dumps({"N": 700, "delay_ms": rows, "bandwidth_gbps": rows, "tflops": [1] * 700}).encode()
    job.listen("--nodes", 2, "--model", "gpt2", *GPT, "--data", "text", "--steps", 2, "--restarts", 0)

    def node():
        with job.connect() as s, s.makefile("rb") as stream:
            s.sendall(word(1, b"1 -"))
            while True:
                head = stream.read(16)
                if len(head) < 16:
                    return
                _, kind, length = struct.unpack("<IIQ", head)
                first = stream.read(length).startswith(b"0 ")
                if kind == 2:
                    return
                try:
                    s.sendall({3: word(4, b"1e9 9"), 5: word(6, text) if first else word(8)}.get(kind, b""))
                except OSError:
                    return

    both = [threading.Thread(target=node) for _ in range(2)]
    for t in both:
        t.start()
    err = job.broker.communicate(timeout=60)[1]
    for t in both:
        t.join()
    expect(job.broker.returncode == 1 and "node 0 sent a network of 700 devices, and there are 2 nodes" in err,
           "exit %d: %s" % (job.broker.returncode, err))


def two_nodes_and_a_stranger(job, folder, stranger):
    """Trains with two nodes. stranger: called when the broker listens; returns sockets that stay open until the
    end."""
    images(os.path.join(folder, "data"))
    one = trainer(folder, "train_image", *MLP, "--data", "data", "--steps", 6)
    job.listen("--nodes", 2, *MLP, "--data", "data", "--steps", 6, "--lr", "0.001", *quick(folder, 2))
    sockets = stranger()
    try:
        for _ in range(2):
            job.node()
        result = job.end(timeout=50)[0]
    finally:
        for s in sockets:
            s.close()
    same(result, one, "with a stranger")


@case
def idle_connections_do_not_delay_nodes(job, folder):
    def stranger():
        return [job.connect() for _ in range(40)]
    two_nodes_and_a_stranger(job, folder, stranger)


@case
def partial_registrations_do_not_delay_nodes(job, folder):
    def stranger():
        sockets = [job.connect() for _ in range(300)]  # more connections than the broker accepts
        for i, s in enumerate(sockets):
            try:
                s.sendall(word(1, b"1 127.0.0.1" + b" " * 100)[:1 + i % 100])
            except OSError:
                pass  # the broker closed this connection to accept another
        return sockets
    two_nodes_and_a_stranger(job, folder, stranger)


@case
def partial_registration_is_closed_after_the_time_limit(job, folder):
    images(os.path.join(folder, "data"))
    job.listen("--nodes", 1, "--quiet", *MLP, "--data", "data", "--steps", 3, *quick(folder, 1))
    with job.connect() as s:
        s.settimeout(0.5)
        closed = False
        for byte in word(1, b"1 127.0.0.1" + b" " * 200):
            try:
                s.sendall(bytes([byte]))
                closed = s.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                closed = True
            if closed:
                break
        expect(closed, "the broker waits for every byte of a registration")
    job.node()
    job.end()


@case
def spare_that_sends_a_partial_message_does_not_delay_nodes(job, folder):
    images(os.path.join(folder, "data"))
    job.listen("--nodes", 2, "--spares", 1, *MLP, "--data", "data", "--steps", 6, *quick(folder, 2))
    job.node()
    job.line("1 of 2 nodes")
    job.node()
    job.line("2 of 2 nodes")
    with job.connect() as s:
        s.sendall(word(1, b"1 -") + word(6, b"{", 1 << 20))  # a spare node that sends part of a network description
        job.end(timeout=50)


@case
def unexpected_messages_do_not_change_the_result(job, folder):
    one = undisturbed(folder)
    job.listen("--nodes", 3, "--spares", 2, *MLP, "--data", "data", *SLOW, "--network", "net.json", "--emulate")
    for _ in range(3):
        job.node()
        job.line("nodes are here")
    sockets = [job.connect() for _ in range(2)]
    for s, text in zip(sockets, (word(14, bytes(16)) * 3, word(12, bytes(8)))):  # the messages done and loss
        s.sendall(word(1, b"1 -"))
        s.sendall(text)
    for s in sockets:
        expect(not b"".join(iter(lambda: s.recv(1000), b"")), "the broker answers")
    result, err, _ = job.end()
    expect("sent message 14, which was not expected" in err and "sent message 12, which was not expected" in err, err)
    same(result, one, "with false messages")


# ---- results bit-identical to one worker ----

@case
def perceptron_on_three_nodes_is_bit_identical_to_one_worker(job, folder):
    images(os.path.join(folder, "data"))
    one = trainer(folder, "train_image", *MLP, "--data", "data", "--steps", 6)
    for solver in ("fence", "equal_flops", "equal_ops"):
        r = Job(folder).run(3, *MLP, "--data", "data", "--steps", 6, "--lr", "0.001", "--solver", solver, *quick(folder, 3))
        expect(r["stages"] == 3, "%s: %d stages" % (solver, r["stages"]))
        same(r, one, solver)


@case
def gpt_on_three_nodes_is_bit_identical_to_one_worker(job, folder):
    one = trainer(folder, "train_gpt", *GPT, "--data", "text", "--steps", 6, "--export", "one.safetensors")
    for schedule in ("gpipe", "1f1b", "zb"):
        r = Job(folder).run(3, "--model", "gpt2", *GPT, "--data", "text", "--steps", 6, "--pipeline", schedule,
                            "--export", "three.safetensors", *quick(folder, 3))
        same(r, one, schedule)
        expect(r["final_loss"] == one["final_loss"], "final loss %s, one worker's %s" % (r["final_loss"], one["final_loss"]))
    with open(os.path.join(folder, "one.safetensors"), "rb") as a, open(os.path.join(folder, "three.safetensors"), "rb") as b:
        expect(a.read() == b.read(), "the exported weights differ")


@case
def edge_wires_are_bit_identical_to_the_trainer_with_the_same_cut(job, folder):
    hashes = set()
    for wire in ("f32", "bf16", "int8", "topk:8", "adatopk:8"):
        j = Job(folder)
        j.listen("--nodes", 3, "--model", "gpt2", *GPT, "--data", "text", "--steps", 3, "--edge-wire", wire, *quick(folder, 3))
        for _ in range(3):
            j.node()
        r, err, _ = j.end()
        cut = re.findall(r"stage (\d) on .*operators (\d+) to (\d+) of", err)
        write(folder, "cut.json", {"pipeline_s": 1, "segments": [{"device": int(s), "first": int(a), "end": int(b) + 1} for s, a, b in cut]})
        three = trainer(folder, "train_gpt", *GPT, "--data", "text", "--steps", 3, "--workers", 3, "--stages", 3, "--cut", "cut.json",
                        "--edge-wire", wire, pipeline=True)
        expect(r["param_hash"] == three["param_hash"], "%s: param_hash is %s, the trainer's %s" % (wire, r["param_hash"], three["param_hash"]))
        expect(abs(r["first_loss"] - three["first_loss"]) < 1e-6, "%s: the first loss differs" % wire) # the
                                                                                                          # trainer's
                                                                                                          # first loss
                                                                                                          # is a mean
                                                                                                          # over three
        hashes.add(r["param_hash"])
    expect(len(hashes) == 5, "two wire formats give the same param_hash: %s" % hashes)


@case
def loaded_weights_are_sent_to_the_nodes(job, folder):
    trainer(folder, "train_gpt", *GPT, "--data", "text", "--steps", 3, "--export", "w.safetensors")
    one = trainer(folder, "train_gpt", *GPT, "--data", "text", "--steps", 4, "--load", "w.safetensors")
    same(job.run(3, "--model", "gpt2", *GPT, "--data", "text", "--steps", 4, "--load", "w.safetensors", *quick(folder, 3)), one,
         "with weights from a file")


@case
def skip_edges_and_user_kernels_train_on_any_number_of_nodes(job, folder):
    images(os.path.join(folder, "data"))
    write(folder, "job.json", skip_graph())
    one = Job(folder).run(1, "--job", "job.json", "--data", "data", *quick(folder, 1))
    for n in (2, 3, 4):
        same(Job(folder).run(n, "--job", "job.json", "--data", "data", *quick(folder, n)), one, "%d nodes" % n)
    plain = skip_graph("relu")
    write(folder, "plain.json", plain)
    same(Job(folder).run(2, "--job", "plain.json", "--data", "data", *quick(folder, 2)), one, "with the library's relu")
    del plain["operators"][4]["optimizer"]
    write(folder, "plain.json", plain)
    other = job.run(2, "--job", "plain.json", "--data", "data", *quick(folder, 2))
    expect(other["param_hash"] != one["param_hash"], "the operator's own optimizer has no effect")


@case
def written_job_trains_as_the_model_itself(job, folder):
    images(os.path.join(folder, "data"))
    direct = Job(folder).run(2, *MLP, "--data", "data", "--steps", 4, *quick(folder, 2))
    b = job.start("broker", *MLP, "--data", "data", "--steps", 4, "--write-job", "job.json")
    expect(b.wait(60) == 0, "--write-job: exit %d" % b.returncode)
    same(job.run(3, "--job", "job.json", "--data", "data", *quick(folder, 3)), direct, "the written job")


@case
def job_without_a_network_file_measures_nodes_and_links(job, folder):
    one = trainer(folder, "train_gpt", *GPT, "--data", "text", "--steps", 4)
    same(job.run(3, "--model", "gpt2", *GPT, "--data", "text", "--steps", 4), one, "measured")


@case
def temporary_files_are_written_to_tmpdir_and_removed(job, folder):
    images(os.path.join(folder, "data"))
    args = [*MLP, "--data", "data", "--steps", 2]
    temporary = os.path.join(folder, "temporary")
    os.mkdir(temporary)
    job.env = {"TMPDIR": temporary}
    job.run(2, *args)
    expect(not os.listdir(temporary), "left: %s" % os.listdir(temporary))
    other = Job(folder)
    other.env = {"TMPDIR": os.path.join(folder, "missing")}
    _, err, _ = other.run(2, *args, code=1)
    expect("cannot create a temporary file in" in err and "set TMPDIR" in err, err)


# ---- lost nodes ----

SLOW = ["--steps", 24, "--lr", "0.001"]  # a step takes about 60 ms with link delays of 10 ms


def undisturbed(folder, *more):
    images(os.path.join(folder, "data"))
    network(folder, 3, delay_ms=10)
    return trainer(folder, "train_image", *MLP, "--data", "data", *SLOW, *more)


def lose_one(job, folder, *args, after=0.5):
    """Kills one of three nodes. Returns the broker's line about it, and the result."""
    job.listen("--nodes", 3, *MLP, "--data", "data", *SLOW, "--network", "net.json", "--emulate", "--peer-timeout", 60, *args)
    for _ in range(3):
        job.node()
    job.line("stage 2 on node")
    time.sleep(after)
    job.nodes[1].kill()
    said = job.line("node was lost")
    job.node()
    r = job.end()[0]
    expect(r["restarts"] == 1, "%d restarts" % r["restarts"])
    return said, r


@case
def lost_node_restarts_the_job_from_the_beginning(job, folder):
    one = undisturbed(folder)
    said, r = lose_one(job, folder)
    expect("starts again from the beginning" in said, "the broker printed: " + said)
    same(r, one, "with a lost node")


@case
def lost_node_restarts_the_job_from_a_checkpoint(job, folder):
    one = undisturbed(folder, "--steps", 100)
    for after in (0.9, 2.5, 5):  # on a busy machine the first checkpoint comes later
        attempt = Job(folder)
        try:
            said, r = lose_one(attempt, folder, "--steps", 100, "--save-every", 3, after=after)
        finally:
            attempt.close()
        if "from the beginning" not in said:
            break
    expect("resumes from its checkpoint after step" in said, "the broker printed: " + said)
    expect(r["param_hash"] == one["param_hash"], "with a checkpoint: %s, one worker's %s" % (r["param_hash"], one["param_hash"]))


@case
def spare_node_replaces_a_lost_node(job, folder):
    one = undisturbed(folder)
    job.listen("--nodes", 3, "--spares", 1, *MLP, "--data", "data", *SLOW, "--network", "net.json", "--emulate", "--peer-timeout", 60,
               "--save-every", 5)
    for _ in range(3):
        job.node()
        job.line("nodes are here")
    job.node()
    job.line("stage 2 on node")
    time.sleep(0.5)
    job.nodes[0].kill()
    r = job.end()[0]
    expect(r["restarts"] == 1 and r["param_hash"] == one["param_hash"], "with a spare: %s" % r)


@case
def job_fails_if_a_lost_node_is_not_replaced(job, folder):
    undisturbed(folder)
    job.listen("--nodes", 3, *MLP, "--data", "data", *SLOW, "--network", "net.json", "--emulate", "--peer-timeout", 60, "--join-timeout", 0.3)
    for _ in range(3):
        job.node()
    job.line("stage 2 on node")
    time.sleep(0.3)
    job.nodes[2].kill()
    _, err, said = job.end(3)
    expect("2 of 3 nodes registered within 0.3 s" in err, err)
    expect("2 of 3 nodes registered within 0.3 s" in said[0] and "\n" not in said[0], "a node printed: %s" % said[0])


@case
def death_of_the_broker_ends_its_nodes(job, folder):
    undisturbed(folder)
    job.listen("--nodes", 2, *MLP, "--data", "data", *SLOW, "--steps", 100000, *quick(folder, 2))
    for _ in range(2):
        job.node()
    job.line("stage 1 on node")
    time.sleep(0.3)
    job.broker.kill()
    for n in job.nodes:
        said = n.communicate(timeout=60)[1].strip()
        expect(n.returncode == 3 and "closed the connection" in said and "\n" not in said, "exit %d: %s" % (n.returncode, said))


@case
def ctrl_c_ends_the_broker_and_all_nodes(job, folder):
    undisturbed(folder)
    for who in ("broker", "a node"):
        j = Job(folder)
        try:
            j.listen("--nodes", 2, *MLP, "--data", "data", "--steps", 100000, *quick(folder, 2), "--join-timeout", 0.2)
            j.node(), j.node()
            j.line("stage 1 on node")
            time.sleep(0.3)
            (j.broker if who == "broker" else j.nodes[0]).send_signal(signal.SIGINT)
            _, err, said = j.end(130 if who == "broker" else 3)
            expect("interrupted" in (err if who == "broker" else said[0]), "%s does not print it: %s %s" % (who, err, said))
            expect(j.nodes[1].returncode == (130 if who == "broker" else 3), "the other node: exit %d" % j.nodes[1].returncode)
        finally:
            j.close()


# ---- user mistakes ----

@case
def missing_operator_is_named_by_broker_and_nodes(job, folder):
    images(os.path.join(folder, "data"))
    write(folder, "job.json", skip_graph("SwishOfMine"))
    out, err, said = job.run(3, "--job", "job.json", "--data", "data", *quick(folder, 3), code=2)
    expect("is of kind SwishOfMine, which this program does not know: register it" in err and err.count("\n") == 1, err)
    for text in said:
        expect("SwishOfMine" in text and "\n" not in text, "a node printed: %s" % text)
    expect(not out, "results were printed")


@case
def surplus_node_ends_with_an_error(job, folder):
    alone = job.node("--connect-timeout", 0.3)
    said = alone.communicate(timeout=60)[1].strip()
    expect(alone.returncode == 1 and "no broker answers at" in said and "\n" not in said, said)
    job.nodes = []
    undisturbed(folder)
    job.listen("--nodes", 2, *MLP, "--data", "data", *SLOW, "--network", network(folder, 2, 10), "--emulate")
    job.node(), job.node()
    job.line("stage 1 on node")
    third = job.start("compnode", "--broker", job.addr)
    said = third.communicate(timeout=60)[1].strip()
    expect(third.returncode == 1 and "expects no other" in said and "\n" not in said, said)
    job.end()


@case
def malformed_connections_do_not_disturb_a_job(job, folder):
    images(os.path.join(folder, "data"))
    job.listen("--nodes", 1, "--quiet", *MLP, "--data", "data", "--steps", 3, *quick(folder, 1))
    for words in (b"GET / HTTP/1.0\r\n\r\n", b"", struct.pack("<IIQ", 0x6a706464, 1, 1 << 40),
                  struct.pack("<IIQ", 0x6a706464, 5, 4) + b"{}{}"):
        with job.connect() as s:
            s.sendall(words)
    with job.connect() as s:
        s.sendall(struct.pack("<IIQ", 0x6a706464, 1, 3) + b"9 -")
        told = b"".join(iter(lambda: s.recv(1000), b""))
        expect(b"speaks version 9, the broker version 1" in told, "no error about another version: %s" % told)
    with job.connect() as s:
        s.sendall(word(1, b"1 \x1b[2J"))
        told = b"".join(iter(lambda: s.recv(1000), b""))
        expect(b"--host must be a name" in told, "a host with control characters: %s" % told)
    job.node()
    job.end()


@case
def invalid_jobs_fail_with_a_one_line_error(job, folder):
    images(os.path.join(folder, "data"))
    b = job.start("broker", *MLP, "--data", "data", "--write-job", "job.json")
    b.wait(60)
    with open(os.path.join(folder, "job.json")) as f:
        good = f.read()
    other = skip_graph()
    other["operators"][0]["shape"] = [4, 29]
    for text, says in ((good.replace('_job": 1', '_job": 2'), "of version 2"), (good.replace('"relu"', '"gelu"', 1), "does not match its hash"),
                       (good[:len(good) // 2], "job.json, line"), ("[]", "no job description"),
                       (json.dumps(other), "its samples have 30 values"),
                       (json.dumps(skip_graph()).replace('"inputs"', '"pixels"'), "input pixels"),
                       (json.dumps(skip_graph()).replace('"parameters": [], ', ""), "CustomReLU, which this program does not know")):
        write(folder, "job.json", text)
        b = job.start("broker", "--job", "job.json", "--data", "data")
        err = b.communicate(timeout=60)[1]
        expect(b.returncode in (1, 2) and says in err and err.count("\n") == 1, "exit %d: %s" % (b.returncode, err))


@case
def invalid_options_fail_with_a_one_line_error(job, folder):
    images(os.path.join(folder, "data"))
    good = MLP + ["--data", "data"]
    for args, says in ((["--nodes", 2], "--model"), (MLP, "--data is missing"), (good + ["--nodes", 0], "--nodes 0"),
                       (good + ["--speed", "guess"], "--speed guess"), (good + ["--emulate"], "--emulate needs"),
                       (good + ["--lr", 0], "--lr 0"), (good + ["--spares", 1000], "--spares 1000"), (good + ["--pipeline", "x"], "x"), (good + ["--edge-wire", "topk"], "unknown edge wire 'topk'"),
                       (good + ["--edge-wire", "bottleneck:4"], "adds operators at the cut"), (MLP + ["--data", "text"], "--model mlp"),
                       (good + ["--listen", "10.1.2.3:4"], "--insecure"), (good + ["--listen", "nowhere"], "HOST:PORT"),
                       (good + ["--load", "none.safetensors"], "none.safetensors"), (good + ["--steps", 0], "--steps 0")):
        b = job.start("broker", *args)
        err = b.communicate(timeout=60)[1]
        expect(b.returncode in (1, 2) and says in err and err.count("\n") == 1, "%s: exit %d: %s" % (args, b.returncode, err))
    n = job.start("compnode", "--broker", "nowhere")
    expect("HOST:PORT" in n.communicate(timeout=60)[1] and n.returncode == 2, "compnode --broker nowhere: exit %d" % n.returncode)
    bad = network(folder, 3)
    b = job.start("broker", *good, "--network", bad)
    expect("has 3 devices, --nodes says 2" in b.communicate(timeout=60)[1] and b.returncode == 2, "a network with another number of nodes is accepted")
    _, err, said = job.run(3, *good, "--network", bad, "--solver", "fastest", code=2)
    expect("fastest" in err and all("fastest" in text and "\n" not in text for text in said), err)


if __name__ == "__main__":
    sys.exit(run_cases())
