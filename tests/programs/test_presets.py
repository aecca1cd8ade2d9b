#!/usr/bin/env python3
"""The trainers' presets: each trains, its network and strategy with a small model and its model over a quick network;
what is given beside a preset wins wherever it stands; unknown names and the other trainer's are refused in a sentence;
docs/results/presets.md and --help have all of them.

    tests/programs/test_presets.py      build/train_gpt and build/train_image are built
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
    check("osp-resnet50: a server, and some layers are late", r.get("servers") == 1 and r["deferred_pct"] > 0, r)


def own_data():
    folder = os.environ.get("DDP_DATA") or os.path.join(ROOT, "data")
    for preset, program, data, more in (("dreamddp-gpt2", "train_gpt", "wikitext-2/train.txt.gz", SMALL_TEXT),
                                        ("dreamddp-resnet18", "train_image", "cifar10", [*SMALL_IMAGE, "--test-batches", 1])):
        if not os.path.exists(os.path.join(folder, data)):
            check("%s: its own data, and what it means on stderr" % preset, Skipped("no %s in %s" % (data, folder)))
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
    with open(os.path.join(ROOT, "docs", "results", "presets.md"), encoding="ascii") as f:
        page = " ".join(f.read().split())
    check("six presets", len(entries) == 6, entries)
    helps = {name: run(name, "--help")[1] for name in ("train_gpt", "train_image")}
    for name, trainer, about, *_ in entries:
        check("%s: one line of its trainer's --help, none of the other's" % name,
              all(("--preset %-18s %s\n" % (name, about) in text) == (of == trainer) for of, text in helps.items()), helps[trainer][:900])
    for name, options in re.findall(r'\{"([a-z0-9-]+)", "[^"]*",\n.*?\n.*?\n((?:\s+"[^"]*"\n?)+)\}', table):
        words = "".join(re.findall(r'"([^"]*)"', options))
        check("%s: docs/results/presets.md has its options" % name, words in page, words)


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
