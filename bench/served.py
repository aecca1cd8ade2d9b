#!/usr/bin/env python3
"""Strategies with servers: step time compared with the prediction.

    bench/served.py [--only WORD] [--json FILE]

Workers of build/train_gpt sleep 100 ms per step over ten equal layers, whose 2 MB travel over emulated links to one server, two servers or
co-located servers. The prediction is ddp_served_step's, from --net and the measured computing.
"""
import argparse
import os
import statistics
import tempfile
import time

import overlap

LAYERS, PARAMS, COMPUTE_S = 10, 50000, 0.1
KINDS = (("bsp",), ("asp",), ("ssp", "--staleness", "2"), ("r2sp",), ("osp", "--defer", "0.4"), ("osp", "--defer", "0.8"))
NETS = ("200mbit,1ms", "400mbit,5ms")
STEPS, SKIP = 24, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="WORD", help="cells whose description contains WORD, e.g. 'osp'")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    overlap.keep_cores_awake()
    check, out, begin = overlap.Checks(), [], time.monotonic()
    print("|strategy|workers|servers|net|step ms|predicted|ratio|\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "profile.csv")
        with open(profile, "w") as f:
            f.write("layer,params,forward_s,backward_s,comm_s\n")
            for i in range(LAYERS):
                f.write(f"{i},{PARAMS},{COMPUTE_S / LAYERS / 3},{2 * COMPUTE_S / LAYERS / 3},0\n")
        for kind in KINDS:
            for workers, servers, net in ((w, s, n) for n in NETS for w in (2, 4) for s in ("1", "2", "colocated")):
                where = f"{' '.join(kind)} {workers} workers, servers {servers}, {net}"
                if args.only and args.only not in where:
                    continue
                r = overlap.run(["--emulate-compute", profile, "--strategy", *kind, "--servers", servers, "--net", net,
                                 "--steps", str(STEPS)], workers, False)
                ms, said = statistics.median(r["steps_ms"][SKIP:]), r["predicted_step_ms"]
                print(f"|{' '.join(kind)}|{workers}|{servers}|{net}|{ms:.1f}|{said:.1f}|{ms / said:.3f}|", flush=True)
                check("within 5 % of the prediction", abs(ms / said - 1) <= 0.05, where)
                out.append({"strategy": " ".join(kind), "workers": workers, "servers": servers, "net": net,
                            "step_ms": ms, "predicted_step_ms": said})
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
