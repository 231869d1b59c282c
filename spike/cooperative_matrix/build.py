"""Compiles the shaders to OUT/*.spv for the variants below, and OUT/variants.json: python3 build.py OUT"""
import json, os, subprocess, sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shaders")


def khr(bm, bn, wm, wn, block=32, drain=1, order=3, planes=2):
    name = f"khr{'' if planes == 2 else '_f16'}_{bm}x{bn}x{block}_w{wm}x{wn}_o{order}_d{drain}"
    lo_shift = 11 if order > 1 else 0
    return name, "product_khr", dict(BM=bm, BN=bn, WM=wm, WN=wn, BLOCK=block, DRAIN=drain, ORDER=order, PLANES=planes, LO_SHIFT=lo_shift)


def nv(bm, bn, threads, block=64, drain=1, order=3, planes=2):
    name = f"nv{'' if planes == 2 else '_f16'}_{bm}x{bn}x{block}_t{threads}_o{order}_d{drain}"
    lo_shift = 11 if order > 1 else 0
    return name, "product_nv", dict(BM=bm, BN=bn, THREADS=threads, BLOCK=block, DRAIN=drain, ORDER=order, PLANES=planes, LO_SHIFT=lo_shift)


VARIANTS = [
    # Tiles.
    khr(128, 128, 32, 64), khr(128, 128, 64, 32), khr(128, 128, 32, 32), khr(256, 64, 64, 32), khr(128, 64, 64, 32), khr(64, 64, 32, 32),
    khr(64, 32, 32, 16), khr(32, 32, 16, 16),
    # Sums.
    khr(128, 128, 64, 32, order=1, drain=0), khr(128, 128, 64, 32, order=1), khr(128, 128, 64, 32, order=1, drain=2),
    khr(128, 128, 64, 32, order=1, drain=4), khr(128, 128, 32, 32, order=2, drain=2), khr(128, 128, 64, 32, block=16),
    # One product of f16.
    khr(128, 128, 64, 32, block=64, drain=0, order=1, planes=1), khr(128, 128, 64, 64, block=64, drain=0, order=1, planes=1),
    khr(256, 64, 64, 32, block=64, drain=0, order=1, planes=1), khr(64, 64, 32, 32, block=64, drain=0, order=1, planes=1),
    # VK_NV_cooperative_matrix2.
    nv(128, 128, 256), nv(128, 128, 256, drain=0, order=1), nv(64, 64, 128), nv(128, 256, 256, drain=0, order=1, planes=1),
    nv(128, 128, 256, drain=0, order=1, planes=1),
]
SPLITS = ["split_rows", "columns_max", "split_columns"]


def main(out):
    os.makedirs(out, exist_ok=True)
    manifest = []

    def compile(source, name, macros):
        path = os.path.join(out, name + ".spv")
        if not os.path.exists(path):
            flags = [f"-D{k}={v}" for k, v in macros.items()]
            done = subprocess.run(["glslangValidator", "-V", "--target-env", "vulkan1.3", "-g0", *flags, os.path.join(HERE, source + ".comp"), "-o", path], capture_output=True, text=True)
            if done.returncode:
                sys.exit(name + "\n" + done.stdout)
            subprocess.run(["spirv-val", "--target-env", "vulkan1.3", path], check=True)

    scalar = ("scalar", "product_scalar", dict(BM=1, BN=1, BLOCK=32, PLANES=2, LO_SHIFT=11))
    for name, source, macros in [scalar] + VARIANTS:
        compile(source, name, macros)
        key = {k: macros[k] for k in ("BLOCK", "PLANES", "LO_SHIFT")}
        tag = "_".join(map(str, key.values()))
        for split in SPLITS:
            compile(split, f"{split}_{tag}", key)
        manifest.append(dict(name=name, tag=tag, planar=source == "product_nv", **macros))
    compile("add_splits", "add_splits", {})
    json.dump(manifest, open(os.path.join(out, "variants.json"), "w"))
    print(len(manifest), "variants")


main(sys.argv[1])
