"""Compiles the kernels into numba's cache, and says of each model when it is done: python -m explorer.engine"""

import os

from explorer.engine import KNOWN, kernels

if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(10)  # the app goes first
    for model in KNOWN:
        kernels.prepare(model)
        print(model, flush=True)
