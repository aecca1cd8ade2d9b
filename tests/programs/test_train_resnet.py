#!/usr/bin/env python3
"""[test-all: slow] build/train_image with ResNet-18: it learns, and a resumed run is bit-identical to an uninterrupted one.

    tests/programs/test_train_resnet.py [WORD...]     only the cases whose names contain one of the words
"""
import json
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import expect, run_cases  # noqa: E402
from image_data import case, run  # noqa: E402


@case
def resumed_batch_norms_are_bit_identical():
    """Trains a ResNet with the trainer; test_checkpoint covers the strategies. --eval-every must not change the
    running statistics, which are part of the checkpoint's hash."""
    base = "train_image --model resnet18 --batch 2 --data cifar10 --held-out 0.2 --val-batches 1".split()
    base += "--workers 2 --deterministic --strategy dreamddp --period 2 --optimizer sgd --lr 0.01 --schedule constant".split()
    whole = run([*base, "--steps", 3, "--save", "whole"])[0]["param_hash"]
    run([*base, "--steps", 2, "--save", "cut", "--eval-every", 1])
    again = run([*base, "--steps", 3, "--resume", "cut", "--save", "cut"])[0]["param_hash"]
    expect(whole == again, "%s uninterrupted, %s resumed" % (whole, again))
    hashes = []
    for folder in ("whole", "cut"):
        with open(os.path.join(folder, "step-000000000003", "manifest.json")) as f:
            hashes.append(json.load(f)["hash"])
    expect(hashes[0] == hashes[1], "checkpoints differ: %s" % hashes)


@case
def image_models_learn():
    """Trains two processes on the same few images again and again."""
    for args in ("resnet18 --steps 10 --lr 5e-4", "resnet18 --steps 10 --lr 5e-4 --data cifar100"):
        r = run(["train_image", "--batch", 2, "--data", "few", "--workers", 2, "--period", 3,
                 "--schedule", "constant", "--model", *args.split()])[0]
        expect(r["final_loss"] < 0.75 * r["first_loss"], "%s: loss %g to %g" % (
            args, r["first_loss"], r["final_loss"]))


if __name__ == "__main__":
    sys.exit(run_cases())
