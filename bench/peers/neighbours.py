"""The rows of bench/neighbours.exs with scikit-learn, on all cores.

    python3 bench/peers/neighbours.py [small] [ROWS ...]

ROWS are parts of the names of the rows to measure, all by default; `small` takes a 25th of the rows. "a call" is the
median of five, or of as many as fit into 20 s, after one that is not counted.
"""
import sys
import time

import numpy as np
import sklearn
from sklearn.cluster import DBSCAN, KMeans
from sklearn.manifold import TSNE
from sklearn.metrics import pairwise_distances_argmin
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

CALLS = 5
MOST_S = 20


def blobs(count, width):
    random = np.random.default_rng(width)
    centres = random.uniform(-4, 4, (20, width))
    points = random.normal(0, 0.5, (count, width)) + centres[np.arange(count) % 20]
    return points.astype(np.float32)


def neighbours(data, queries, algorithm="brute"):
    model = NearestNeighbors(n_neighbors=10, algorithm=algorithm, n_jobs=-1).fit(data)
    return lambda: model.kneighbors(queries)


def classifier(count, queries):
    data = blobs(count, 64)
    model = KNeighborsClassifier(n_neighbors=5, n_jobs=-1).fit(data, np.arange(count) % 10)
    queries = blobs(queries, 64)
    return lambda: model.predict(queries)


def nearest(count, queries):
    data, queries = blobs(count, 64), blobs(queries, 64)
    return lambda: pairwise_distances_argmin(queries, data)


def fitting(model, data):
    return lambda: model.fit(data)


def tsne(data):
    return TSNE(perplexity=30, init="random", max_iter=300, random_state=1, n_jobs=-1), data


def rows(part):
    def n(count):
        return count // part

    wide = n(50_000)
    return [
        ("t-SNE 5k x 50, 300 steps", lambda: fitting(*tsne(blobs(n(5000), 50)))),
        ("k-NN 50k x 64, 5k queries", lambda: neighbours(blobs(wide, 64), blobs(n(5000), 64))),
        ("k-NN 50k x 64, all", lambda: neighbours(blobs(wide, 64), blobs(wide, 64))),
        ("k-NN classifier 50k x 64, 5k queries", lambda: classifier(wide, n(5000))),
        ("nearest of 50k x 64 for 5k", lambda: nearest(wide, n(5000))),
        ("DBSCAN 10k x 2", lambda: fitting(DBSCAN(eps=0.1, min_samples=5, n_jobs=-1), blobs(n(10_000), 2))),
        ("DBSCAN 50k x 2", lambda: fitting(DBSCAN(eps=0.03, min_samples=5, n_jobs=-1), blobs(wide, 2))),
        ("KD tree 20k x 3, 2k queries", lambda: neighbours(blobs(n(20_000), 3), blobs(n(2000), 3), "kd_tree")),
        ("k-means 100k x 32, 16 clusters",
         lambda: fitting(KMeans(n_clusters=16, n_init=1, random_state=1), blobs(n(100_000), 32))),
    ]


def main():
    small = "small" in sys.argv[1:]
    wanted = [name for name in sys.argv[1:] if name != "small"]
    print(f"scikit-learn {sklearn.__version__}\n\n| | a call |\n|---|---:|")
    for name, setup in rows(25 if small else 1):
        if wanted and not any(part in name for part in wanted):
            continue
        call = setup()
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        times = []
        for _ in range(min(CALLS, max(int(MOST_S / max(once, 1e-6)), 1))):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        print(f"| {name} | {sorted(times)[len(times) // 2] * 1e3:.2f} ms |", flush=True)


main()
