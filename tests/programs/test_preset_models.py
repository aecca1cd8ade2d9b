#!/usr/bin/env python3
"""[long, test-all: slow] The trainers' presets with their own models: two steps of each over a fast network.

    tests/programs/test_preset_models.py      needs build/train_gpt and build/train_image
"""
import os
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from presets import QUICK, TEXT, check, images, trains  # noqa: E402


def each_model_trains(pictures):
    few = ["--batch", 1, "--test-batches", 1, *pictures, *QUICK]
    trains("dreamddp-resnet18", "train_image", "dreamddp", 4, "the model", *few)
    trains("deft-vgg19", "train_image", "deft", 2, "the model", "--net2", "5gbit,0.1ms", *few)
    trains("osp-resnet50", "train_image", "osp", 3, "the model", *few)
    r = trains("fusion-resnet101", "train_image", "ssgd", 6, "network, cut and model", "--microbatches", 1, *pictures)
    check("fusion-resnet101: six stages of one pipeline, Top-K between them",
          r.get("stages") == 6 and r["bytes_by_coding"].get("topk", 0) > 0, r)
    trains("dreamddp-gpt2", "train_gpt", "dreamddp", 4, "network, strategy and model", "--val-batches", 2, *TEXT)
    r = trains("dtfm-gpt", "train_gpt", "ssgd", 8, "network, placement and model", "--val-batches", 2, *TEXT)
    check("dtfm-gpt: four stages, eight micro-batches", r.get("stages") == 4 and r["microbatches"] == 8, r)


def main():
    with tempfile.TemporaryDirectory() as folder:
        each_model_trains(images(folder))
    return check.close()


if __name__ == "__main__":
    sys.exit(main())
