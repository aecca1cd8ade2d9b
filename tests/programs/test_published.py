#!/usr/bin/env python3
"""Networks and profiles that tools/make_networks.py and tools/make_profiles.py write, compared with $DDP_DATA where it is set."""
import csv
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "tools")]
from cases import case, expect, run_cases  # noqa: E402
import make_profiles  # noqa: E402

DATA = os.environ.get("DDP_DATA") or os.path.join(ROOT, "data")
VALUES = ("N", "D_dp", "D_pp", "c_pp_bytes", "c_dp_bytes", "groups", "devices_per_group", "delay_ms", "bandwidth_gbps", "delay_std_ms",
          "bandwidth_std_gbps", "as_in_code")
PARAMS = {"a6000_gpt2": 163037184, "a6000_llama2-175m": 176431616, "a6000_resnet18-cifar10": 11173962, "a6000_resnet50-cifar100": 23705252,
          "a800_llama2-175m": 176431616, "h100_gpt2": 163037184}


def tool(name, *args):
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", name), *args], capture_output=True, text=True, timeout=60)
    expect(r.returncode == 0, "%s: %s" % (name, r.stderr))


@case
def make_networks_writes_the_published_values(folder):
    tool("make_networks.py", folder)
    names = ["case%d" % i for i in range(1, 6)] + ["fluidstack"]
    for name in names:
        with open(os.path.join(folder, name + ".json"), encoding="ascii") as f:
            made = json.load(f)
        size = len(made["groups"])
        expect(made["N"] == sum(made["devices_per_group"]) == made["D_dp"] * made["D_pp"] and len(made["devices_per_group"]) == size, name)
        for variant in (made, made.get("as_in_code", made)):
            for key in ("delay_ms", "bandwidth_gbps"):
                m = variant[key]
                expect(len(m) == size and all(len(row) == size for row in m), "%s: %s is not square" % (name, key))
                expect(name == "fluidstack" or all(m[i][j] == m[j][i] for i in range(size) for j in range(size)), "%s: %s" % (name, key))
        path = os.path.join(DATA, "networks", name + ".json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                published = json.load(f)
            for key in VALUES:
                expect(made.get(key) == published.get(key), "%s: %s is %s instead of %s" % (name, key, made.get(key), published.get(key)))


@case
def make_profiles_converts_the_dictionaries_of_the_authors(folder):
    sources, known = {}, {}
    for name, (device, model, _) in make_profiles.PROFILES.items():
        path = os.path.join(DATA, "profiles", name + ".csv")
        rows = [{"layer": layer, "comm_s": "0.25", "backward_s": "0.5"} for layer in ("conv1", "layer1.0.shortcut.0", "lm_head", "linear")]
        if os.path.exists(path):
            with open(path, encoding="ascii") as f:
                rows = known[name] = list(csv.DictReader(f))
        for kind, column in (("comm", "comm_s"), ("bp", "backward_s")):
            values = "".join("    %r: %s,\n" % (r["layer"], r[column]) for r in rows)
            sources[device] = sources.get(device, "import os\n") + "%s_%s_%s_dict = alias = {\n%s}\n" % (device, model, kind, values)
    for device, text in sources.items():
        with open(os.path.join(folder, device + "_time.py"), "w", encoding="ascii") as f:
            f.write(text)
    tool("make_profiles.py", "--source", folder, folder)
    for name in make_profiles.PROFILES:
        with open(os.path.join(folder, name + ".csv"), encoding="ascii") as f:
            made = list(csv.DictReader(f))
        if name in known:
            expect(sum(int(r["params"]) for r in made) == PARAMS[name], "parameters of %s" % name)
        for a, b in zip(made, known.get(name, made)):
            expect(a == b or all(float(a[k]) == float(b[k]) for k in ("params", "backward_s", "comm_s")), "%s: %s instead of %s" % (name, a, b))
        expect(len(made) == len(known.get(name, made)), "rows of %s" % name)


if __name__ == "__main__":
    sys.exit(run_cases())
