"""How much faster than the plain loop, measured in one process, as ratios: seconds differ between machines.

The workload everyone quotes: windows 4 8 16 32 64 128, weight seeds 1 to 10, the lesson's budget, 4096 test sequences.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from explorer import engine, experiment
from explorer.config import RunConfig
from explorer.tasks import task_named

WINDOWS = (4, 8, 16, 32, 64, 128)
SEEDS = tuple(range(1, 11))
WORKLOADS = {
    "rnn": ("rnn",),
    "attention": ("attention",),
    "gru": ("gru",),
    "lstm": ("lstm",),
    "default": ("rnn", "attention"),
}

COLD = """
import time
start = time.perf_counter()
from explorer import bench
imported = time.perf_counter()
bench.engine.prepare(wait=True)
prepared = time.perf_counter()
bench.train_all(bench.workload("default"))
done = time.perf_counter()
print([imported - start, prepared - imported, done - prepared, done - start])
"""


def workload(name: str, windows: Sequence[int] = WINDOWS, seeds: Sequence[int] = SEEDS) -> list[RunConfig]:
    """The canonical configs of a workload named in WORKLOADS."""
    return [experiment.canonical(c) for c in experiment.grid(RunConfig(), WORKLOADS[name], windows, seeds, [10])]


def train_all(configs: Sequence[RunConfig]) -> dict[RunConfig, float]:
    """The engine's test losses, from nothing but the compiled kernels."""
    from explorer.engine import single

    single.forget()
    losses = {}
    engine.run_group(configs, lambda config, trained, score, seconds: losses.update({config: score.loss}))
    return losses


def train_all_plain(configs: Sequence[RunConfig]) -> dict[RunConfig, float]:
    """The plain loop's test losses, one run after the other on one thread."""
    return {config: experiment.run(config, reference=True).test_loss for config in configs}


def bench(repeats: int = 5, listen: Callable[[str], None] = lambda line: None) -> dict:
    """Measures everything; takes minutes, nearly all of them in the plain loop.

    Args:
        repeats: how often each is measured. Engine and plain loop take turns, so that both meet the same disturbances.
        listen: called with a line of text as each measurement is done.

    Returns:
        Plain JSON values. `seconds`: for each workload and way, every repeat. `ratio`: plain over engine, repeat by
        repeat: min, median, max. `difference`: largest between the two ways' test losses. `cold`: seconds of a fresh
        process. `jax`: the same for jax, warm, on the rnn workload, or why not.

    Raises:
        RuntimeError: the engine is unavailable.
    """
    engine.prepare(wait=True)
    if engine.status() != "ready":
        raise RuntimeError(engine.status())
    report: dict = {
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "processor": platform.machine()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "repeats": repeats,
        "seconds": {},
        "ratio": {},
        "difference": {},
    }
    for name in WORKLOADS:
        configs = workload(name)
        train_all(configs)
        fast, plain = [], []
        for repeat in range(repeats):
            seconds, losses = timed(train_all, configs)
            fast.append(seconds)
            seconds, reference = timed(train_all_plain, configs)
            plain.append(seconds)
            listen(f"{name} {repeat + 1}/{repeats}: plain {plain[-1]:.2f} s, engine {fast[-1]:.3f} s")
        report["seconds"][name] = {"plain": plain, "engine": fast}
        report["ratio"][name] = spread(plain, fast)
        report["difference"][name] = max(abs(losses[config] - reference[config]) for config in configs)
    report["cold"] = cold(repeats)
    listen(f"fresh process to finished default workload: {report['cold']['total']['median']:.2f} s")
    report["jax"] = jax_peer(repeats, report["seconds"]["rnn"])
    return report


def timed(work: Callable, *arguments) -> tuple[float, object]:
    """Seconds that a call takes, and what it returns."""
    start = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - start, result


def spread(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest of the ratios, repeat by repeat."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)}


def cold(repeats: int) -> dict[str, dict[str, float]]:
    """The default workload as the first thing a fresh process does, kernels on disk: seconds of each part."""
    rows = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    parts = zip(("import", "prepare", "train", "total"), zip(*rows, strict=True), strict=True)
    return {name: spread(seconds, [1.0] * repeats) for name, seconds in parts}


def jax_peer(repeats: int, seconds: dict[str, list[float]]) -> dict:
    """The rnn workload as jit(vmap(scan)) in jax, warm."""
    try:
        import jax
        import jax.numpy as jnp
        import optax
    except ImportError as error:
        return {"unavailable": str(error)}
    from explorer.engine import single

    def predict(weights, inputs):  # inputs (B, n, 1)
        w_in, w, b_in, b, w_out, b_out = weights

        def step(hidden, x):
            return jnp.tanh(x @ w_in.T + b_in + hidden @ w.T + b), None

        last, _ = jax.lax.scan(step, jnp.zeros((len(inputs), len(w))), inputs.swapaxes(0, 1))
        return last @ w_out.T + b_out

    def loss(weights, inputs, targets):
        return ((predict(weights, inputs) - targets) ** 2).mean()

    base = RunConfig()
    adam = optax.adam(base.learning_rate)

    @jax.jit
    def train(weights, inputs, targets, test_inputs, test_targets):
        def one(weights):
            def step(carry, _):
                weights, state = carry
                value, gradient = jax.value_and_grad(loss)(weights, inputs, targets)
                updates, state = adam.update(gradient, state)
                return (optax.apply_updates(weights, updates), state), value

            (weights, _), losses = jax.lax.scan(step, (weights, adam.init(weights)), None, length=base.steps)
            return losses, loss(weights, test_inputs, test_targets)

        return jax.vmap(one)(weights)

    def draw(count, window, seed):
        generator = torch.Generator().manual_seed(seed)
        return [part.numpy() for part in task_named(base.task).sample(count, window, generator)]

    def sweep():
        single.forget()
        for window in WINDOWS:
            runs = [single.Run(config, np.zeros(1, np.uint8)) for config in workload("rnn", [window])]
            weights = tuple(np.stack(parts) for parts in zip(*(run.layout(window, 1)[0] for run in runs), strict=True))
            data = draw(base.sequences, window, base.data_seed), draw(base.test_sequences, window, base.test_seed)
            np.asarray(train(weights, *data[0], *data[1])[1])

    first, _ = timed(sweep)
    warm = [timed(sweep)[0] for _ in range(repeats)]
    return {
        "version": jax.__version__,
        "seconds": {"first": first, "warm": warm},
        "ratio of plain": spread(seconds["plain"], warm),
        "ratio to engine": spread(warm, seconds["engine"]),
    }
