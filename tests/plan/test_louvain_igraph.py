#!/usr/bin/env python3
"""[test-all: needs igraph] Modularity of our communities against igraph's multilevel: not below it on 100 random graphs.

Exit 77 where igraph or a C compiler is missing. CC chooses the compiler."""
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("igraph", "igraph")
import igraph


def graph(r, k):
    """Four kinds: unweighted, weights, planted groups, heavy tails. 10 to 90 nodes."""
    n = r.randrange(10, 91)
    groups = r.randrange(2, 9)
    w = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i):
            p = (0.6 if i % groups == j % groups else 0.05) if k % 4 == 2 else 0.15
            if r.random() < p:
                x = 1.0 if k % 4 == 0 else r.random() if k % 4 < 3 else r.paretovariate(1.2)
                w[i][j] = w[j][i] = x
    return w


def theirs(w):
    edges = [(i, j) for i in range(len(w)) for j in range(i) if w[i][j] > 0]
    weights = [w[i][j] for i, j in edges]
    g = igraph.Graph(n=len(w), edges=edges)
    found = g.community_multilevel(weights=weights)
    return g.modularity(found.membership, weights=weights)


def main():
    r = random.Random(1)
    igraph.set_random_number_generator(random.Random(2))
    graphs = [graph(r, k) for k in range(100)]
    text = "".join("%d\n%s\n" % (len(w), " ".join(repr(x) for row in w for x in row)) for w in graphs)
    out = companion.output(companion.build("plan/igraph_louvain"), input=text)
    ours = [float(x) for x in out.split()]
    if len(ours) != len(graphs):
        companion.result("all graphs", False, "%d answers for %d graphs" % (len(ours), len(graphs)))
        return companion.end()
    better, gain = 0, 0.0
    for k, w in enumerate(graphs):
        q = theirs(w)
        better += ours[k] > q + 1e-9
        gain += (ours[k] - q) / len(graphs)
        companion.result("graph %d of %d nodes" % (k, len(w)), ours[k] >= q - 1e-9, "%.9f, igraph's is %.9f" % (ours[k], q))
    print("above igraph's on %d of %d graphs, %.5f on average" % (better, len(graphs), gain))
    return companion.end()


if __name__ == "__main__":
    sys.exit(main())
