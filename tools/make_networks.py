#!/usr/bin/env python3
"""Writes the networks of the DT-FM paper (arXiv:2206.01288) as files for --network, --net and `build/plan`.

    tools/make_networks.py [FOLDER]    case1.json .. case5.json and fluidstack.json into FOLDER [build/networks]

The numbers are those of the paper: section 4.1, Tables 1 and 2, section 10.5. Each case has a second variant, `as_in_code`,
with the numbers of the authors' released scheduler (github.com/DS3Lab/DT-FM) where these differ.
"""
import copy
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Table 1, in the order of its columns. The diagonal is the link between two devices of one region, from section 4.1.
REGIONS_US = ["California", "Ohio", "Oregon", "Virginia"]
DELAY_US = [[5, 52, 12, 59],
            [52, 5, 49, 11],
            [12, 49, 5, 67],
            [59, 11, 67, 5]]  # ms
BANDWIDTH_US = [[2, 1.02, 1.25, 1.05],
                [1.02, 2, 1.10, 1.12],
                [1.25, 1.10, 2, 1.15],
                [1.05, 1.12, 1.15, 2]]  # Gbit/s
ORDER_US = ["Virginia", "Oregon", "California", "Ohio"]  # of the released scheduler. It decides the rank of each device.

# Table 2.
REGIONS = ["Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland"]
DELAY = [[5, 67, 49, 96, 124, 136, 143, 124],
         [67, 5, 11, 143, 172, 76, 90, 67],
         [49, 11, 5, 130, 159, 86, 99, 77],
         [96, 143, 130, 5, 34, 210, 235, 199],
         [124, 172, 159, 34, 5, 238, 235, 228],
         [136, 76, 86, 210, 238, 5, 14, 12],
         [143, 90, 99, 235, 235, 14, 5, 24],
         [124, 67, 77, 199, 228, 12, 24, 5]]  # ms
BANDWIDTH = [[2, 1.15, 1.10, 0.523, 0.46, 0.42, 0.404, 0.482],
             [1.15, 2, 1.12, 0.524, 0.500, 0.364, 1.02, 1.05],
             [1.10, 1.12, 2, 0.694, 0.529, 1.05, 0.799, 1.14],
             [0.523, 0.524, 0.694, 2, 1.1, 0.366, 0.36, 0.465],
             [0.46, 0.500, 0.529, 1.1, 2, 0.342, 0.358, 0.335],
             [0.42, 0.364, 1.05, 0.366, 0.342, 2, 1.14, 1.09],
             [0.404, 1.02, 0.799, 0.36, 0.358, 1.14, 2, 1.08],
             [0.482, 1.05, 1.14, 0.465, 0.335, 1.09, 1.08, 2]]  # Gbit/s
CODE_DIFFERS = [("bandwidth_gbps", "Oregon", "Virginia", 0.79), ("bandwidth_gbps", "Virginia", "London", 1.16),
                ("delay_ms", "Tokyo", "Frankfurt", 223)]

# Bytes of an iteration with a batch of 1e6 tokens, 24 layers and 8 stages, GPT3-1.3B.
STAGE = 1300000000 * 3 // 24 * 4  # float gradients of the parameters of a stage
EDGE = 1000000 // 8 * 2048 * 2    # half-precision activations of the tokens of one of 8 pipelines, hidden size 2048
EDGE_IN_CODE = round(2024 * 2048 * 2 * (1e6 / 8 / 2048) / 2**30 * 1e9, 3)  # the released scheduler: 2024 tokens, GiB read as GB


def square(size, inside, across):
    """A matrix with one value on its diagonal, a value for each group or one for all, and one elsewhere."""
    inside = inside if isinstance(inside, list) else [inside] * size
    return [[inside[i] if i == j else across for j in range(size)] for i in range(size)]


def reordered(matrix, names, wanted):
    at = [names.index(n) for n in wanted]
    return [[matrix[i][j] for j in at] for i in at]


def case(number, title, source, groups, devices, delay, bandwidth, code_delay=None, code_bandwidth=None):
    return {"case": number, "title": title, "source": source, "N": sum(devices), "D_dp": 8, "D_pp": 8, "c_pp_bytes": EDGE, "c_dp_bytes": STAGE,
            "groups": groups, "devices_per_group": devices, "delay_ms": delay, "bandwidth_gbps": bandwidth,
            "as_in_code": {"c_pp_bytes": EDGE_IN_CODE, "c_dp_bytes": STAGE, "delay_ms": code_delay or delay,
                           "bandwidth_gbps": code_bandwidth or bandwidth}}


def networks():
    """Returns the networks by file name without .json."""
    nodes = ["instance_%d" % i for i in range(8)]
    spot = ["spot_instance_%d" % i for i in range(8)] + ["standalone"]
    code = {"delay_ms": copy.deepcopy(DELAY), "bandwidth_gbps": copy.deepcopy(BANDWIDTH)}
    for key, a, b, value in CODE_DIFFERS:
        i, j = REGIONS.index(a), REGIONS.index(b)
        code[key][i][j] = code[key][j][i] = value
    us = [reordered(m, REGIONS_US, ORDER_US) for m in (DELAY_US, BANDWIDTH_US)]
    all_nets = [
        case(1, "data center on demand: 8 nodes of 8 GPUs",
             "section 4.1: NVLink with 150 GB/s each way in a node, 25 Gbit/s between nodes; no delay is given. "
             "The code has 100 and 3.125 (GB/s read as Gbit/s)",
             nodes, [8] * 8, square(8, 0, 0), square(8, 1200, 25), None, square(8, 100, 3.125)),
        case(2, "data center spot instances: 8 nodes of 4 GPUs and 32 nodes of one GPU",
             "section 4.1: 100 Gbit/s in a p3.8xlarge, else 10 Gbit/s; no delay is given. The text has 4 p3.8xlarge, which with 32 other "
             "GPUs are 48; the code has 8, which are the 64 of the evaluation. The code has 1.25 instead of 10 (GB/s read as Gbit/s)",
             spot, [4] * 8 + [32], square(9, 0, 0), square(9, [100] * 8 + [10], 10), None, square(9, [100] * 8 + [1.25], 1.25)),
        case(3, "two data centers: 32 GPUs in Ohio, 32 in Virginia",
             "section 4.1: 10 Gbit/s inside, 10 ms and 1.12 Gbit/s across. The 1 ms inside is the code's. The code has 5 Gbit/s inside and 11 ms across",
             ["Ohio", "Virginia"], [32, 32], square(2, 1, 10), square(2, 10, 1.12), square(2, 1, 11), square(2, 5, 1.12)),
        case(4, "four regions of the US, 16 GPUs each", "Table 1; section 4.1 for links inside a region. The code has the same",
             ORDER_US, [16] * 4, us[0], us[1]),
        case(5, "eight regions of the world, 8 GPUs each",
             "Table 2; section 4.1 for links inside a region. The code has other values for three links",
             REGIONS, [8] * 8, DELAY, BANDWIDTH, code["delay_ms"], code["bandwidth_gbps"])]
    nets = {"case%d" % n["case"]: n for n in all_nets}
    nets["fluidstack"] = {
        "case": "fluidstack", "title": "FluidStack: 32 A40 in US Mid and US East",
        "source": "section 10.5; the paper gives neither the devices of each site nor the degrees: 16 and 16, 4 pipelines of 8 stages are assumed",
        "N": 32, "D_dp": 4, "D_pp": 8, "c_pp_bytes": 2 * EDGE, "c_dp_bytes": STAGE, "groups": ["US-Mid", "US-East"],
        "devices_per_group": [16, 16], "delay_ms": square(2, 0.5, 21.8), "bandwidth_gbps": [[10.4, 3.87], [3.73, 11.98]],
        "delay_std_ms": square(2, 0.1, 0.3), "bandwidth_std_gbps": [[1.11, 1.07], [1.38, 1.92]]}
    return nets


def text(network):
    """The network as JSON, with the innermost lists on one line each."""
    return re.sub(r"\[[^][{}]*\]", lambda m: re.sub(r"\s+", " ", m.group()).replace("[ ", "[").replace(" ]", "]"), json.dumps(network, indent=1)) + "\n"


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] and sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "networks")
    os.makedirs(folder, exist_ok=True)
    for name, network in networks().items():
        path = os.path.join(folder, name + ".json")
        new = "%s.%d" % (path, os.getpid())  # renamed, so a program that runs at the same time never reads half a file
        with open(new, "w", encoding="ascii") as f:
            f.write(text(network))
        os.replace(new, path)
    print("make_networks.py: %d networks in %s" % (len(networks()), os.path.relpath(folder)))


if __name__ == "__main__":
    main()
