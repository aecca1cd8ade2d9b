#!/usr/bin/env python3
"""The trainers' presets: each trains with a small model on its own network, and with its own model on a fast network;
options override a preset in any order; unknown names and presets of the other trainer fail with a one-line error;
docs/results/presets.md and --help list all presets.

    tests/programs/test_presets.py      needs build/train_gpt and build/train_image
"""
import os
import re
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped  # noqa: E402
from presets import QUICK, ROOT, SMALL_IMAGE, SMALL_TEXT, TEXT, check, images, run, trains  # noqa: E402


def each_trains(pictures):
    small = [*SMALL_IMAGE, "--batch", 2, *pictures]
    trains("dreamddp-resnet18", "train_image", "dreamddp", 4, "network and strategy", *small)
    trains("deft-vgg19", "train_image", "deft", 2, "networks and strategy", *small)
    r = trains("osp-resnet50", "train_image", "osp", 3, "network and strategy", *small)
    check("osp-resnet50: one server, and some layers are deferred", r.get("servers") == 1 and r["deferred_pct"] > 0, r)


def own_data():
    folder = os.environ.get("DDP_DATA") or os.path.join(ROOT, "data")
    for preset, program, data, more in (("dreamddp-gpt2", "train_gpt", "wikitext-2/train.txt.gz", SMALL_TEXT),
                                        ("dreamddp-resnet18", "train_image", "cifar10", [*SMALL_IMAGE, "--test-batches", 1])):
        if not os.path.exists(os.path.join(folder, data)):
            check("%s: uses its own data and prints its options on stderr" % preset, Skipped("no %s in %s" % (data, folder)))
            continue
        code, result, err = run(program, "--preset", preset, "--steps", 1, *QUICK, *more)
        check("%s: uses its own data and prints its options on stderr" % preset,
              code == 0 and "preset %s: --data %s" % (preset, os.path.join(folder, data)) in err, (code, result, err))


def what_is_given_wins():
    given = ["--strategy", "localsgd", "--workers", 2, "--period", 3, *SMALL_TEXT, *TEXT, *QUICK, "--steps", 3, "--seed", 5]
    before, after = run("train_gpt", "--quiet", *given, "--preset", "dreamddp-gpt2"), run("train_gpt", "--quiet", "--preset", "dreamddp-gpt2", *given)
    without = run("train_gpt", "--quiet", *given, "--batch", 4, "--optimizer", "adam", "--lr", 0.001, "--weight-decay", 0.0001, "--clip", 1)
    ok = all(r[0] == 0 for r in (before, after, without))
    check("options are accepted before and after a preset", ok, (before, after, without))
    check("options override a preset in any order; the run is bit-identical to one with all options given",
          ok and before[1]["param_hash"] == after[1]["param_hash"] == without[1]["param_hash"] and before[1]["strategy"] == "localsgd"
          and before[1]["workers"] == 2, (before, after, without))
    code, _, err = run("train_gpt", "--preset", "dreamddp-gpt2", "--steps", "none")
    check("an invalid value next to a preset fails with the error of that option", code == 2 and "--steps none" in err, (code, err))


def refusals():
    code, _, err = run("train_gpt", "--preset", "osp-resnet50")
    check("a preset of the other trainer fails and names that trainer", code == 2 and "train_image --preset osp-resnet50" in err, err)
    code, _, err = run("train_image", "--preset", "dreamddp-resnet50")
    check("an unknown preset fails, suggests the nearest and lists all", code == 2 and "unknown preset dreamddp-resnet50; did you mean dreamddp-resnet18?" in err
          and "fusion-resnet101" in err, err)
    code, _, err = run("train_image", "--preset", "x")
    check("an unknown preset without a near name lists all", code == 2 and "did you mean" not in err and "deft-vgg19" in err, err)
    code, _, err = run("train_image", "--preset")
    check("--preset without a name fails", code == 2 and "--preset needs a value" in err, err)


def help_and_page():
    with open(os.path.join(ROOT, "examples", "train", "presets.h"), encoding="ascii") as f:
        source = f.read()
    table = source[source.index("presets[] = {"):source.index("\n};")]
    joined = re.sub(r'"\s*\n\s*"', "", table)
    entries = re.findall(r'\{"([^"]*)", "([^"]*)",\s*"([^"]*)",\s*"([^"]*)",?\s*"?([^"]*)"?\}', joined)
    with open(os.path.join(ROOT, "docs", "results", "presets.md"), encoding="ascii") as f:
        page = " ".join(f.read().split())
    check("six presets", len(entries) == 6, entries)
    helps = {name: run(name, "--help")[1] for name in ("train_gpt", "train_image")}
    for name, trainer, about, *_ in entries:
        check("%s: listed in --help of its trainer only" % name,
              all(("--preset %-18s %s\n" % (name, about) in text) == (of == trainer) for of, text in helps.items()), helps[trainer][:900])
    for name, options in re.findall(r'\{"([a-z0-9-]+)", "[^"]*",\n.*?\n.*?\n((?:\s+"[^"]*"\n?)+)\}', table):
        words = "".join(re.findall(r'"([^"]*)"', options))
        check("%s: docs/results/presets.md lists its options" % name, words in page, words)


def main():
    with tempfile.TemporaryDirectory() as folder:
        each_trains(images(folder))
    own_data()
    what_is_given_wins()
    refusals()
    help_and_page()
    return check.close()


if __name__ == "__main__":
    sys.exit(main())
