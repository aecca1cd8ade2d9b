#!/usr/bin/env python3
"""[calm] Both trainers: evaluation during the training, checkpoints of image models, and what a user can do
wrong: one sentence each, exit code 2 for arguments and 1 for files, and no file changed.

Needs build/train_gpt and build/train_image (`make all`). Images are drawn here."""
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = "train_gpt --layers 1 --heads 2 --dim 16 --seq 20 --batch 3 --steps 12 --data text".split()
IMAGE = "train_image --hidden 8 --batch 4 --steps 12 --data cifar10 --held-out 0.25".split()
TWO = "--workers 2 --transport threads --deterministic --period 3".split()


class Wrong(Exception):
    pass


def expect(holds, message):
    if not holds:
        raise Wrong(message)


def start(command, limit=None, env=()):
    """limit: bytes a file can have at most."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "OMPI_", "SLURM_"))}
    return subprocess.Popen([os.path.join(BUILD, command[0]), *map(str, command[1:])], text=True,
                            env=dict(clean, **dict(env)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                                                             (limit, limit))))


def run(command, code=0, **how):
    """The object on the last line, and stderr."""
    p = start(command, **how)
    try:
        out, err = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        p.kill()
        raise Wrong("hangs: %s" % " ".join(map(str, command)))
    expect(p.returncode == code, "exit %d of %s: %s" % (p.returncode, command, err[-300:]))
    return json.loads(out.splitlines()[-1]) if code == 0 else None, err


def evaluation_changes_no_bit_of_the_training():
    for base in (GPT + ["--dropout", 0.1], IMAGE):
        for strategy in ("ssgd", "localsgd", "dreamddp"):
            plain = run([*base, *TWO, "--strategy", strategy])[0]
            judged, err = run([*base, *TWO, "--strategy", strategy, "--eval-every", 5,
                               "--json", "run.jsonl"])
            for key in ("param_hash", "val_loss", "final_loss"):
                expect(plain[key] == judged[key], "%s of %s: %s without, %s with --eval-every" % (
                    key, strategy, plain[key], judged[key]))
            expect(err.count("val_loss") == 2 and "step 5/12" in err, "stderr: " + err)
            with open("run.jsonl") as f:
                lines = [json.loads(line) for line in f]
            evals = [e for e in lines if e["event"] == "eval"]
            expect([e["step"] for e in evals] == [5, 10], str(evals))
            at = lines.index(evals[0])
            expect(lines[at - 1]["step"] == 4 and lines[at + 1]["step"] == 5, "it stands elsewhere")
            expect(all(0.1 < e["val_loss"] < 10 for e in evals), str(evals))
            expect(("val_accuracy" in evals[0]) == (base is IMAGE), str(evals[0]))


def all_ranks_together_evaluate_what_one_does():
    for base in (GPT, IMAGE):
        one, two = [*base, "--steps", 1, "--lr", 1e-30, "--eval-every", 1, "--json", "run.jsonl"], []
        for workers in ("1", "2", "3"):
            result = run([*one, "--workers", workers, "--strategy", "ssgd"])[0]
            with open("run.jsonl") as f:
                e = next(json.loads(line) for line in f if '"eval"' in line)
            two.append((e["val_loss"], e.get("val_accuracy"), result["val_loss"]))
        for got in two:
            expect(abs(got[0] - two[0][0]) < 1e-5 and got[1] == two[0][1]
                   and abs(got[0] - got[2]) < 1e-5, str(two))


def batch_norms_go_on_bit_for_bit():
    """A real ResNet through the trainer; test_checkpoint has the strategies. --eval-every leaves the
    running statistics alone: the checkpoint's hash covers them."""
    base = "train_image --model resnet18 --batch 2 --data cifar10 --held-out 0.2 --val-batches 1".split()
    base += "--workers 2 --deterministic --strategy dreamddp --period 2 --optimizer sgd --lr 0.01 --schedule constant".split()
    whole = run([*base, "--steps", 3, "--save", "whole"])[0]["param_hash"]
    run([*base, "--steps", 2, "--save", "cut", "--eval-every", 1])
    again = run([*base, "--steps", 3, "--resume", "cut", "--save", "cut"])[0]["param_hash"]
    expect(whole == again, "%s at once, %s cut in two" % (whole, again))
    hashes = []
    for folder in ("whole", "cut"):
        with open(os.path.join(folder, "step-000000000003", "manifest.json")) as f:
            hashes.append(json.load(f)["hash"])
    expect(hashes[0] == hashes[1], "checkpoints differ: %s" % hashes)


def another_world_goes_on_bit_for_bit():
    """Two workers, then four: stopped once more, the four take the batches they would have taken."""
    base = [*GPT, "--strategy", "ssgd", "--transport", "threads", "--keep", 0]
    run([*base, "--workers", 2, "--steps", 3, "--save", "two"])
    four = [*base, "--workers", 4, "--steps", 12]
    whole = run([*four, "--resume", "two"])[0]["param_hash"]
    run([*four, "--steps", 7, "--resume", "two", "--save", "four"])
    again = run([*four, "--resume", "four"])[0]["param_hash"]
    expect(whole == again, "%s at once, %s cut in two" % (whole, again))


def mistakes_are_refused_in_a_sentence():
    run([*GPT, "--steps", 2, "--export", "w", "--save", "saved"])
    run([*IMAGE, "--steps", 2, "--export", "i"])
    with open("w", "rb") as f, open("cut", "wb") as cut:
        cut.write(f.read()[:4000])
    before = everything()
    for base, code, words, args in (
            (GPT, 2, "--batch 0", "--batch 0"),
            (GPT, 2, "context 0", "--seq 0"),
            (GPT, 2, "seq is 100000, but the data has 9000 tokens", "--seq 100000"),
            (GPT, 2, "leaves 9 to train on", "--held-out 0.999"),
            (GPT, 2, "--lr nan", "--lr nan"),
            (GPT, 2, "--lr -1", "--lr -1"),
            (GPT, 2, "--steps -3", "--steps -3"),
            (GPT, 2, "threads 2000: 1 to 1024", "--threads 2000"),
            (GPT, 2, "at most 10000 blocks", "--layers 1000000"),
            (GPT, 2, "1 to 1000000 steps", "--period 2000000000"),
            (GPT, 2, "at most 1000000 micro-batches", "--accumulate 2000000000"),
            (GPT, 1, "use a smaller batch", "--batch 2000000000"),
            (GPT, 1, "out of memory: the graph needs", "--heads 2000 --dim 1000000 --vocab 1000000000"),
            (GPT, 1, "take fewer", "--steps 2000000000"),
            (GPT, 2, "add --held-out 0.1", "--eval-every 2 --held-out 0"),
            (GPT, 1, "the loss is", "--lr 1e30 --optimizer sgd"),
            (GPT, 1, "No such file", "--data none"),
            (GPT, 1, "is empty", "--data empty"),
            (GPT, 1, "holds 1 token", "--data one"),
            (GPT, 1, "an even number", "--data odd.bin"),
            (GPT, 1, "it is a directory", "--data folder"),
            (GPT, 1, "it is a device", "--data /dev/zero"),
            (GPT, 2, "one kind of token", "--data same"),
            (GPT, 1, "cannot make the folder /proc/x", "--save /proc/x"),
            (GPT, 1, "cannot write into the folder w", "--save w"),
            (GPT, 2, "holds checkpoints of another run", "--save saved"),
            (GPT, 2, "holds checkpoints of another run", "--save saved --resume folder"),
            (GPT, 2, "--overwrite needs --save", "--overwrite"),
            (GPT, 1, "Is a directory", "--export folder"),
            (GPT, 1, "No such file", "--json none/x"),
            (GPT, 1, "holds no whole checkpoint", "--resume folder"),
            (GPT, 1, "cannot read none", "--resume none"),
            (GPT, 2, "nothing is left to train", "--resume saved --steps 2"),
            (GPT, 1, "layer embed: its parameters from number", "--resume saved --vocab 9"),
            (GPT, 1, "of a model of 4 layers", "--resume saved --layers 2"),
            (GPT, 1, "another model: its layer 1", "--resume saved --model llama2"),
            (GPT, 1, "with other arguments (the number of heads", "--resume saved --heads 4"),
            (GPT, 1, "optimizer adamw, this run has sgd", "--resume saved --optimizer sgd"),
            (GPT, 1, "not a safetensors file", "--load text"),
            (GPT, 1, "is it cut off?", "--load cut"),
            (GPT, 1, "is it cut off?", "--load cut --workers 2"),
            (GPT, 1, "the model needs [9, 16]", "--load w --vocab 9"),
            (GPT, 1, "the model needs [21, 16]", "--load w --seq 21"),
            (GPT, 1, "is not one of the", "--load i"),
            (IMAGE, 1, "is not one of the", "--load w"),
            (IMAGE, 1, "is it cut off?", "--data odd"),
            (IMAGE, 1, "record 0 has label 200", "--data label"),
            (IMAGE, 1, "no training images", "--data folder"),
            (IMAGE, 2, "leaves a part empty", "--held-out 0.01"),
            (IMAGE, 2, "up to 8 widths", "--hidden 5,0"),
            (IMAGE, 2, "too small", "--model vgg16 --data small")):
        err = run([*base, "--quiet", *args.split()], code)[1]
        expect(words in err and err.count("\n") == 1, "%s: no '%s' in: %s" % (args, words, err))
        expect(everything() == before, args + " changed a file")
    torch = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711"}
    err = run([*GPT, "--workers", 4, "--epochs", 1], 2, env=torch)[1]
    expect("1 workers were launched, but --workers says 4" in err, err)


def everything():
    """Each file's bytes; folders that hold nothing are not seen."""
    out = {}
    for folder, _, files in os.walk("."):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                out[os.path.join(folder, name)] = f.read()
    return out


def a_full_disk_leaves_what_was_there():
    run([*GPT, "--steps", 2, "--export", "w", "--save", "saved", "--json", "j"])
    before = everything()
    for args in ("--export w", "--save saved --overwrite", "--save saved --overwrite --steps 2 --workers 2", "--json j --steps 90"):
        err = run([*GPT, "--quiet", *args.split()], 1, limit=8000)[1]
        expect("cannot write" in err and "File too large" in err, err)
        after = {name: data for name, data in everything().items() if not name.startswith("./saved/dump.")}
        expect(after == before, args + " changed a file")


def more_threads_than_cores_change_no_bit():
    hashes = {run([*GPT, "--threads", n])[0]["param_hash"] for n in (1, 100)}
    expect(len(hashes) == 1, str(hashes))


def a_signal_ends_even_a_long_sample():
    p = start([*GPT, "--sample", 100000000])
    time.sleep(1)
    p.send_signal(signal.SIGTERM)
    try:
        err = p.communicate(timeout=20)[1]
    except subprocess.TimeoutExpired:
        p.kill()
        raise Wrong("SIGTERM is not heard")
    expect(p.returncode == 130 and "interrupted" in err, "exit %d: %s" % (p.returncode, err))


def image_models_learn():
    """The same few images again and again, on two processes."""
    for args in ("resnet18 --steps 10 --lr 5e-4", "resnet18 --steps 10 --lr 5e-4 --data cifar100"):
        r = run(["train_image", "--batch", 2, "--data", "few", "--workers", 2, "--period", 3,
                 "--schedule", "constant", "--model", *args.split()])[0]
        expect(r["final_loss"] < 0.75 * r["first_loss"], "%s: loss %g to %g" % (
            args, r["first_loss"], r["final_loss"]))


CASES = [evaluation_changes_no_bit_of_the_training, all_ranks_together_evaluate_what_one_does,
         batch_norms_go_on_bit_for_bit, another_world_goes_on_bit_for_bit, mistakes_are_refused_in_a_sentence,
         a_full_disk_leaves_what_was_there, more_threads_than_cores_change_no_bit,
         a_signal_ends_even_a_long_sample, image_models_learn]


def records(count, head):
    """CIFAR's: labels that head draws, then an image that tells them apart."""
    r = random.Random(3)
    out = b""
    for _ in range(count):
        labels = head(r)
        shade = 25 * (labels[-1] % 10)
        out += bytes(labels) + bytes(min(255, shade + r.randrange(30)) for _ in range(3072))
    return out


def make_files():
    def put(name, data):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as f:
            f.write(data)

    ten = records(40, lambda r: [r.randrange(10)])
    put("text", "".join("abcde"[i * i % 5] for i in range(9000)).encode())
    put("same", b"a" * 500)
    put("empty", b"")
    put("one", b"x")
    put("odd.bin", b"abc")
    put("cifar10/data_batch_1.bin", ten)
    put("few/data_batch_1.bin", ten[:8 * 3073])
    put("odd/data_batch_1.bin", ten[:-5])
    put("label/data_batch_1.bin", bytes([200]) + ten[1:])
    put("cifar100/train.bin", records(8, lambda r: [r.randrange(20), r.randrange(100)]))
    put("small/train-images-idx3-ubyte", bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(3136))
    put("small/train-labels-idx1-ubyte", bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]))
    os.mkdir("folder")


def main():
    failed = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            make_files()
            began = time.time()
            try:
                case()
                print("ok     %s, %.1f s" % (case.__name__, time.time() - began))
            except Wrong as why:
                failed += 1
                print("FAILED %s: %s" % (case.__name__, why))
            os.chdir(ROOT)
    print("%d passed, %d failed, 0 skipped" % (len(CASES) - failed, failed))
    return 1 if failed else 0


sys.exit(main())
