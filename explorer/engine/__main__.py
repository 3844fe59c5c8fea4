"""Compiles the kernels into numba's cache, and says of each model when it is done: python -m explorer.engine"""

from explorer.engine import KNOWN, kernels

if __name__ == "__main__":
    for model in KNOWN:
        kernels.prepare(model)
        print(model, flush=True)
