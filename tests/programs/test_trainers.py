#!/usr/bin/env python3
"""Both trainers: evaluation during training, checkpoints of image models, and user mistakes.
A mistake gives a one-line error, exit code 2 for arguments and 1 for files, and changes no file.

Needs build/train_gpt and build/train_image (`make all`). The images are generated here."""
import json
import os
import signal
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Wrong, expect, run_cases, ticks  # noqa: E402
from image_data import GPT, IMAGE, TWO, case, run, start  # noqa: E402


@case
def evaluation_does_not_change_the_training():
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
            expect(lines[at - 1]["step"] == 4 and lines[at + 1]["step"] == 5, "the eval event is at another place")
            expect(all(0.1 < e["val_loss"] < 10 for e in evals), str(evals))
            expect(("val_accuracy" in evals[0]) == (base is IMAGE), str(evals[0]))


@case
def evaluation_is_the_same_on_any_number_of_ranks():
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


@case
def resuming_with_another_world_size_is_bit_identical():
    """Trains on two workers, then on four. If the four are stopped again, they must resume with the same batches."""
    base = [*GPT, "--strategy", "ssgd", "--transport", "threads", "--keep", 0]
    run([*base, "--workers", 2, "--steps", 3, "--save", "two"])
    four = [*base, "--workers", 4, "--steps", 12]
    whole = run([*four, "--resume", "two"])[0]["param_hash"]
    run([*four, "--steps", 7, "--resume", "two", "--save", "four"])
    again = run([*four, "--resume", "four"])[0]["param_hash"]
    expect(whole == again, "%s uninterrupted, %s resumed" % (whole, again))


@case
def user_mistakes_give_a_one_line_error_and_change_no_file():
    run([*GPT, "--steps", 2, "--export", "w", "--save", "saved"])
    run([*IMAGE, "--steps", 2, "--export", "i"])
    with open("w", "rb") as f, open("cut", "wb") as cut:
        cut.write(f.read()[:4000])
    before = everything()
    for base, code, words, args in (
            (GPT, 2, "--batch 0", "--batch 0"),
            (GPT, 2, "--seq 0 must be at least 1", "--seq 0"),
            (GPT, 2, "seq is 100000, but the data has 9000 tokens", "--seq 100000"),
            (GPT, 2, "leaves 9 to train on", "--held-out 0.999"),
            (GPT, 2, "--lr nan", "--lr nan"),
            (GPT, 2, "--lr -1", "--lr -1"),
            (GPT, 2, "--steps -3", "--steps -3"),
            (GPT, 2, "choose 1 to 1024", "--threads 2000"),
            (GPT, 2, "must be at most 10000", "--layers 1000000"),
            (GPT, 2, "1 to 1000000 steps", "--period 2000000000"),
            (GPT, 2, "at most 1000000 micro-batches", "--accumulate 2000000000"),
            (GPT, 1, "use a smaller batch", "--batch 2000000000"),
            (GPT, 1, "out of memory: the graph needs", "--heads 2000 --dim 1000000 --vocab 1000000000"),
            (GPT, 1, "train fewer", "--steps 2000000000"),
            (GPT, 2, "add --held-out 0.1", "--eval-every 2 --held-out 0"),
            (GPT, 1, "the gradient of layer", "--lr 1e30 --optimizer sgd"),
            (GPT, 1, "No such file", "--data none"),
            (GPT, 1, "is empty", "--data empty"),
            (GPT, 1, "holds 1 token", "--data one"),
            (GPT, 1, "an even number", "--data odd.bin"),
            (GPT, 1, "it is a directory", "--data folder"),
            (GPT, 1, "it is a device", "--data /dev/zero"),
            (GPT, 2, "only one distinct token", "--data same"),
            (GPT, 1, "cannot create the folder /proc/x", "--save /proc/x"),
            (GPT, 1, "cannot write into the folder w", "--save w"),
            (GPT, 2, "contains checkpoints of another run", "--save saved"),
            (GPT, 2, "contains checkpoints of another run", "--save saved --resume folder"),
            (GPT, 2, "--overwrite needs --save", "--overwrite"),
            (GPT, 1, "Is a directory", "--export folder"),
            (GPT, 1, "No such file", "--json none/x"),
            (GPT, 1, "has no complete checkpoint", "--resume folder"),
            (GPT, 1, "cannot read none", "--resume none"),
            (GPT, 2, "nothing is left to train", "--resume saved --steps 2"),
            (GPT, 1, "layer embed has 368 parameters in ", "--resume saved --vocab 9"),
            (GPT, 1, "belongs to a model with 4 layers", "--resume saved --layers 2"),
            (GPT, 1, "another model: its layer 1", "--resume saved --model llama2"),
            (GPT, 1, "arguments (for example vocabulary, heads", "--resume saved --heads 4"),
            (GPT, 1, "optimizer adamw, but this run uses sgd", "--resume saved --optimizer sgd"),
            (GPT, 1, "not a safetensors file", "--load text"),
            (GPT, 1, "is it truncated?", "--load cut"),
            (GPT, 1, "is it truncated?", "--load cut --workers 2"),
            (GPT, 1, "the model needs [9, 16]", "--load w --vocab 9"),
            (GPT, 1, "the model needs [21, 16]", "--load w --seq 21"),
            (GPT, 1, "is not one of the", "--load i"),
            (IMAGE, 1, "is not one of the", "--load w"),
            (IMAGE, 1, "is it truncated?", "--data odd"),
            (IMAGE, 1, "record 0 has label 200", "--data label"),
            (IMAGE, 1, "no training images", "--data folder"),
            (IMAGE, 2, "leaves a part empty", "--held-out 0.01"),
            (IMAGE, 2, "at most 8 widths", "--hidden 5,0"),
            (IMAGE, 2, "too small", "--model vgg16 --data small")):
        err = run([*base, "--quiet", *args.split()], code)[1]
        expect(words in err and err.count("\n") == 1, "%s: no '%s' in: %s" % (args, words, err))
        expect(everything() == before, args + " changed a file")
    torch = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711"}
    err = run([*GPT, "--workers", 4, "--epochs", 1], 2, env=torch)[1]
    expect("--workers 4, but torchrun started 1 rank; leave --workers out, or start 4" in err, err)


def everything():
    """The bytes of each file. Empty folders are ignored."""
    out = {}
    for folder, _, files in os.walk("."):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                out[os.path.join(folder, name)] = f.read()
    return out


@case
def full_disk_leaves_existing_files_unchanged():
    run([*GPT, "--steps", 2, "--export", "w", "--save", "saved", "--json", "j"])
    before = everything()
    for args in ("--export w", "--save saved --overwrite", "--save saved --overwrite --steps 2 --workers 2", "--json j --steps 90"):
        err = run([*GPT, "--quiet", *args.split()], 1, limit=8000)[1]
        expect("cannot write" in err and "File too large" in err, err)
        after = {name: data for name, data in everything().items() if not name.startswith("./saved/dump.")}
        expect(after == before, args + " changed a file")
    run([*GPT, "--quiet", *"--save fresh --steps 2 --save-every 1".split()], 1, limit=8000)
    expect([name for name in os.listdir("fresh") if name.startswith("step-")] == [], "a folder of a step remains")


@case
def more_threads_than_cores_do_not_change_the_result():
    hashes = {run([*GPT, "--threads", n])[0]["param_hash"] for n in (1, 100)}
    expect(len(hashes) == 1, str(hashes))


@case
def signal_ends_a_long_sample():
    p = start([*GPT, "--sample", 100000000])
    while p.poll() is None and ticks(p.pid) < 20:  # it is sampling by then
        time.sleep(0.02)
    p.send_signal(signal.SIGTERM)
    try:
        err = p.communicate(timeout=180)[1]
    except subprocess.TimeoutExpired:
        p.kill()
        raise Wrong("the program ignores SIGTERM")
    expect(p.returncode == 130 and "interrupted" in err, "exit %d: %s" % (p.returncode, err))


if __name__ == "__main__":
    sys.exit(run_cases())
