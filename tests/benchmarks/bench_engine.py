"""How fast the engine is, as ratios only. Not part of the tests, for it takes minutes and wants a quiet machine:

python -m pytest tests/benchmarks/bench_engine.py -s
"""

import resource
import statistics
import time

import pytest

from explorer import bench, engine
from explorer.config import RunConfig
from explorer.experiment import canonical


@pytest.fixture(scope="module")
def report():
    return bench.bench(listen=print)


@pytest.mark.parametrize(
    ("workload", "least"), [("default", 50), ("rnn", 70), ("attention", 25), ("gru", 20), ("lstm", 20)]
)
def test_times_faster_than_the_plain_loop(report, workload, least):
    assert report["ratio"][workload]["median"] >= least
    assert report["difference"][workload] < 1e-4


def test_twice_as_fast_as_jax(report):
    if "unavailable" in report["jax"]:
        pytest.skip(report["jax"]["unavailable"])
    assert report["jax"]["ratio to engine"]["median"] >= 2


def seconds(configs: list[RunConfig], repeats: int = 7) -> float:
    return statistics.median(bench.timed(bench.train_all, configs)[0] for _ in range(repeats))


@pytest.mark.parametrize("model", ["rnn", "gru", "lstm", "attention"])
@pytest.mark.parametrize("what", ["window", "seeds", "steps"])
def test_twice_the_work_takes_twice_the_time(model, what):
    """To within 15 %, from window 64 to 1024."""
    for window in (64, 128, 256, 512):
        base = {"model": model, "window": window, "steps": 240, "test_sequences": 1024}
        more = {"window": {"window": 2 * window}, "steps": {"steps": 480, "test_sequences": 2048}}.get(what, {})
        seeds = range(1, 5)
        once = [canonical(RunConfig(**base, init_seed=seed)) for seed in seeds]
        twice = [canonical(RunConfig(**base | more, init_seed=seed)) for seed in seeds]
        if what == "seeds":
            twice = [canonical(RunConfig(**base, init_seed=seed)) for seed in range(1, 9)]
        ratio = seconds(twice) / seconds(once)
        print(f"{model}, {what}, window {window}: {ratio:.2f}")
        assert 1.7 < ratio < 2.3


def test_memory_does_not_grow_with_steps():
    engine.prepare(wait=True)
    bench.train_all(bench.workload("default"))
    peaks = []
    for steps in (200, 1000):
        bench.train_all([canonical(RunConfig(window=512, sequences=128, fresh=True, steps=steps, test_sequences=64))])
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # kilobytes
    assert peaks[1] - peaks[0] < 20 * 1024


def test_a_cancelled_sweep_stops_at_once():
    engine.prepare(wait=True)
    late = []
    for _ in range(5):
        end = time.perf_counter() + 0.2
        with pytest.raises(engine.Cancelled):
            engine.run_group(
                [canonical(RunConfig(window=1024, init_seed=seed, steps=5000)) for seed in range(8)],
                lambda *_: None,
                lambda end=end: time.perf_counter() > end,
            )
        late.append(time.perf_counter() - end)
    assert statistics.median(late) < 0.1
