#!/usr/bin/env python3
"""[calm] The trainers' presets: each trains, its network and strategy with a small model and its model over a quick network;
what is given beside a preset wins wherever it stands; unknown names and the other trainer's are refused in a sentence;
docs/presets.md and --help have all of them.

    tests/programs/test_presets.py      build/train_gpt and build/train_image are built
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXT = ["--data", "dreamddp.h"]
QUICK = ["--net", "10gbit,0.1ms"]
SMALL_IMAGE = ["--model", "mlp", "--hidden", 8]
SMALL_TEXT = ["--layers", 1, "--heads", 1, "--dim", 8, "--seq", 16]
failed = passed = skipped = 0


def check(name, good, said=""):
    global failed, passed
    passed += bool(good)
    failed += not good
    print("%s - %s%s" % ("ok" if good else "not ok", name, "" if good else "\n    " + str(said)[-900:]), flush=True)


def run(program, *options):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    try:
        r = subprocess.run([os.path.join(ROOT, "build", program), *map(str, options)], capture_output=True, text=True, timeout=120,
                           cwd=ROOT, env=env)
    except subprocess.TimeoutExpired:
        return None, "", "hangs"
    result = json.loads(r.stdout.splitlines()[-1]) if r.returncode == 0 and r.stdout.endswith("}\n") else None
    return r.returncode, result or r.stdout, r.stderr


def images(folder):
    """Two files of CIFAR-10's kind: 80 and 16 pictures of noise."""
    r = random.Random(3)
    for name, count in (("data_batch_1.bin", 80), ("test_batch.bin", 16)):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(b"".join(bytes([i % 10]) + r.randbytes(3072) for i in range(count)))
    return ["--data", folder]


def trains(preset, program, strategy, workers, what, *options):
    code, result, err = run(program, "--quiet", "--preset", preset, "--steps", 2, *options)
    check("%s: %s" % (preset, what),
          code == 0 and result["strategy"] == strategy and result["workers"] == workers and result["steps"] == 2
          and result["final_loss"] > 0, (code, result, err))
    return result or {}


def each_trains(pictures):
    few = ["--batch", 1, "--test-batches", 1, *pictures, *QUICK]
    small = [*SMALL_IMAGE, "--batch", 2, *pictures]
    trains("dreamddp-resnet18", "train_image", "dreamddp", 4, "network and strategy", *small)
    trains("dreamddp-resnet18", "train_image", "dreamddp", 4, "the model", *few)
    trains("deft-vgg19", "train_image", "deft", 2, "networks and strategy", *small)
    trains("deft-vgg19", "train_image", "deft", 2, "the model", "--net2", "5gbit,0.1ms", *few)
    r = trains("osp-resnet50", "train_image", "osp", 3, "network and strategy", *small)
    check("osp-resnet50: a server, and some layers are late", r.get("servers") == 1 and r["deferred_pct"] > 0, r)
    trains("osp-resnet50", "train_image", "osp", 3, "the model", *few)
    r = trains("fusion-resnet101", "train_image", "ssgd", 6, "network, cut and model", "--microbatches", 1, *pictures)
    check("fusion-resnet101: six stages of one pipeline, Top-K between them",
          r.get("stages") == 6 and r["bytes_by_coding"].get("topk", 0) > 0, r)
    trains("dreamddp-gpt2", "train_gpt", "dreamddp", 4, "network, strategy and model", "--val-batches", 2, *TEXT)
    r = trains("dtfm-gpt", "train_gpt", "ssgd", 8, "network, placement and model", "--val-batches", 2, *TEXT)
    check("dtfm-gpt: four stages, eight micro-batches", r.get("stages") == 4 and r["microbatches"] == 8, r)


def own_data():
    global skipped
    folder = os.environ.get("DDP_DATA") or os.path.join(ROOT, "data")
    for preset, program, data, more in (("dreamddp-gpt2", "train_gpt", "wikitext-2/train.txt.gz", SMALL_TEXT),
                                        ("dreamddp-resnet18", "train_image", "cifar10", [*SMALL_IMAGE, "--test-batches", 1])):
        if not os.path.exists(os.path.join(folder, data)):
            skipped += 1
            print("skipped: %s with its own data: no %s" % (preset, data))
            continue
        code, result, err = run(program, "--preset", preset, "--steps", 1, *QUICK, *more)
        check("%s: its own data, and what it means on stderr" % preset,
              code == 0 and "preset %s: --data %s" % (preset, os.path.join(folder, data)) in err, (code, result, err))


def what_is_given_wins():
    given = ["--strategy", "localsgd", "--workers", 2, "--period", 3, *SMALL_TEXT, *TEXT, *QUICK, "--steps", 3, "--seed", 5]
    before, after = run("train_gpt", "--quiet", *given, "--preset", "dreamddp-gpt2"), run("train_gpt", "--quiet", "--preset", "dreamddp-gpt2", *given)
    without = run("train_gpt", "--quiet", *given, "--batch", 4, "--optimizer", "adam", "--lr", 0.001, "--weight-decay", 0.0001, "--clip", 1)
    ok = all(r[0] == 0 for r in (before, after, without))
    check("options before and behind a preset", ok, (before, after, without))
    check("both win, and the rest is the preset's: the same bits as all of them given",
          ok and before[1]["param_hash"] == after[1]["param_hash"] == without[1]["param_hash"] and before[1]["strategy"] == "localsgd"
          and before[1]["workers"] == 2, (before, after, without))
    code, _, err = run("train_gpt", "--preset", "dreamddp-gpt2", "--steps", "none")
    check("a wrong value beside a preset is that option's error", code == 2 and "--steps none" in err, (code, err))


def refusals():
    code, _, err = run("train_gpt", "--preset", "osp-resnet50")
    check("the other trainer's preset names the trainer", code == 2 and "train_image --preset osp-resnet50" in err, err)
    code, _, err = run("train_image", "--preset", "dreamddp-resnet50")
    check("an unknown name: the nearest, and all", code == 2 and "unknown preset dreamddp-resnet50; did you mean dreamddp-resnet18?" in err
          and "fusion-resnet101" in err, err)
    code, _, err = run("train_image", "--preset", "x")
    check("nothing near: the list alone", code == 2 and "did you mean" not in err and "deft-vgg19" in err, err)
    code, _, err = run("train_image", "--preset")
    check("no name", code == 2 and "--preset needs a value" in err, err)


def help_and_page():
    with open(os.path.join(ROOT, "examples", "train", "presets.h"), encoding="ascii") as f:
        source = f.read()
    table = source[source.index("presets[] = {"):source.index("\n};")]
    joined = re.sub(r'"\s*\n\s*"', "", table)
    entries = re.findall(r'\{"([^"]*)", "([^"]*)",\s*"([^"]*)",\s*"([^"]*)",?\s*"?([^"]*)"?\}', joined)
    with open(os.path.join(ROOT, "docs", "presets.md"), encoding="ascii") as f:
        page = " ".join(f.read().split())
    check("six presets", len(entries) == 6, entries)
    helps = {name: run(name, "--help")[1] for name in ("train_gpt", "train_image")}
    for name, trainer, about, *_ in entries:
        check("%s: one line of its trainer's --help, none of the other's" % name,
              all(("--preset %-18s %s\n" % (name, about) in text) == (of == trainer) for of, text in helps.items()), helps[trainer][:900])
    for name, options in re.findall(r'\{"([a-z0-9-]+)", "[^"]*",\n.*?\n.*?\n((?:\s+"[^"]*"\n?)+)\}', table):
        words = "".join(re.findall(r'"([^"]*)"', options))
        check("%s: docs/presets.md has its options" % name, words in page, words)


def main():
    with tempfile.TemporaryDirectory() as folder:
        each_trains(images(folder))
    own_data()
    what_is_given_wins()
    refusals()
    help_and_page()
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
