#!/usr/bin/env python3
"""Writes the layer profiles that the DreamDDP authors published as CSV for --profile and --emulate-compute.

    tools/make_profiles.py [FOLDER]    a6000_gpt2.csv, a6000_llama2-175m.csv, a6000_resnet18-cifar10.csv,
                                       a6000_resnet50-cifar100.csv, a800_llama2-175m.csv and h100_gpt2.csv into FOLDER
                                       [build/profiles]
    tools/make_profiles.py --source DIR [FOLDER]    the same from local copies of the authors' files

Downloads A6000_time.py, A800_time.py and H100_time.py of github.com/trl730109/DreamDDP (MIT licence): seconds of the backward
pass and of the all-reduce for each layer. The files have no forward times, so that column stays empty. Parameter counts follow
from the definitions of the models.
"""
import ast
import csv
import os
import re
import sys
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
URL = "https://raw.githubusercontent.com/trl730109/DreamDDP/15ec29eef217ec8ef7f2d4ddc897b5e083d43918/plots/DearmDDP/%s_time.py"


def gpt2_params(layer):
    """GPT-2 small: width 768, 50,257 tokens, 1,024 positions; biases included. The head is tied to wte and counted again."""
    d = 768
    sizes = {"wte": 50257 * d, "lm_head": 50257 * d, "wpe": 1024 * d, "ln_1": 2 * d, "ln_2": 2 * d, "ln_f": 2 * d, "attn.c_attn": 3 * d * d + 3 * d,
             "attn.c_proj": d * d + d, "mlp.c_fc": 4 * d * d + 4 * d, "mlp.c_proj": 4 * d * d + d}
    return sizes.get(re.sub(r"^(transformer\.)?(h\.\d+\.)?", "", layer), 0)


def llama_params(layer):
    """The Llama-2 of 176 M parameters: width 512, 8 blocks, MLP width 11,008, 32,000 tokens, no biases."""
    d, mlp, tokens = 512, 11008, 32000
    last = layer.split(".")[-1]
    if last.endswith("_proj"):
        return d * d if ".self_attn." in layer else d * mlp
    return tokens * d if last in ("embed_tokens", "lm_head") else d if last.endswith("norm") else 0


def resnet_params(blocks, convs, classes):
    """Returns the count by layer of a ResNet for images of 32 x 32: blocks of each stage, convolutions of a block (2 or 3)."""
    expand = 4 if convs == 3 else 1
    sizes = {"conv1": 3 * 64 * 9, "bn1": 2 * 64, "linear": 512 * expand * classes + classes}
    last = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name = "layer%d.%d." % (stage + 1, block)
            widths = [last] + [width] * (convs - 1) + [width * expand]
            for i in range(convs):
                kernel = 9 if convs == 2 or i == 1 else 1
                sizes["%sconv%d" % (name, i + 1)] = widths[i] * widths[i + 1] * kernel
                sizes["%sbn%d" % (name, i + 1)] = 2 * widths[i + 1]
            sizes[name + "shortcut.0"] = last * width * expand
            sizes[name + "shortcut.1"] = 2 * width * expand
            last = width * expand
    return lambda layer: sizes.get(layer, 0)


# File: device, name of the model in the source, parameters of a layer.
PROFILES = {"a6000_gpt2": ("A6000", "gpt", gpt2_params),
            "a6000_llama2-175m": ("A6000", "llama", llama_params),
            "a6000_resnet18-cifar10": ("A6000", "resnet18", resnet_params((2, 2, 2, 2), 2, 10)),
            "a6000_resnet50-cifar100": ("A6000", "resnet50", resnet_params((3, 4, 6, 3), 3, 100)),
            "a800_llama2-175m": ("A800", "llama", llama_params),
            "h100_gpt2": ("H100", "gpt", gpt2_params)}


def dictionaries(source):
    """Returns the dictionaries of a Python text by name. Evaluates literals only."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            value = ast.literal_eval(node.value)
            found.update({t.id: value for t in node.targets if isinstance(t, ast.Name)})
    return found


def write(folder, sources):
    """sources: the text of each device's file."""
    os.makedirs(folder, exist_ok=True)
    for name, (device, model, params) in PROFILES.items():
        found = dictionaries(sources[device])
        backward, comm = found["%s_%s_bp_dict" % (device, model)], found["%s_%s_comm_dict" % (device, model)]
        with open(os.path.join(folder, name + ".csv"), "w", encoding="ascii", newline="") as f:
            rows = csv.writer(f, lineterminator="\n")
            rows.writerow(["layer", "params", "forward_s", "backward_s", "comm_s"])
            for layer in comm:
                rows.writerow([layer, params(layer), "", "%.9g" % backward[layer], "%.9g" % comm[layer]])


def fetched(device, local):
    """The text of a device's file, from the folder local if it is given."""
    if local:
        with open(os.path.join(local, device + "_time.py"), encoding="utf-8") as f:
            return f.read()
    try:
        with urllib.request.urlopen(URL % device, timeout=60) as reply:
            return reply.read().decode()
    except OSError as why:
        sys.exit("make_profiles.py: cannot download %s: %s; fetch the file elsewhere and pass its folder with --source" % (URL % device, why))


def main():
    args = sys.argv[1:]
    local = args[1] if len(args) > 1 and args[0] == "--source" else None
    args = args[2:] if local else args
    if len(args) > 1 or args and args[0].startswith("-"):
        sys.exit(__doc__)
    folder = args[0] if args else os.path.join(ROOT, "build", "profiles")
    write(folder, {device: fetched(device, local) for device, _, _ in PROFILES.values()})
    print("make_profiles.py: %d profiles in %s" % (len(PROFILES), os.path.relpath(folder)))


if __name__ == "__main__":
    main()
