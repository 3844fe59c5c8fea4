"""Each run is trained once, for as long as somebody wants it, and no request goes without an answer."""

import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from explorer import experiment, jobs
from explorer.config import RunConfig
from explorer.experiment import Cancelled
from explorer.jobs import Pool, cost
from explorer.models import MODELS
from explorer.store import Store

TINY = RunConfig(window=4, steps=3, sequences=8, test_sequences=16)
run = partial(experiment.run, reference=True)  # the plain loop, which tells of each step
TOO_LONG = 30  # seconds after which a test that waits gives up


def seeds(*numbers, base=TINY):
    return [replace(base, init_seed=number) for number in numbers]


def until(true):
    """Waits for what another thread is about to make true."""
    end = time.monotonic() + TOO_LONG
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


class Runs:
    """The real `run`, which notes what it does. Before its first step it waits until `open` is set.

    started, ended: configs in that order. steps: how many each config has done. looks: how often a run that waits has
    asked whether it is still wanted. cancelled: configs that stopped on being told to.
    """

    def __init__(self, is_open=True, on_step=lambda config, step: None):
        self.open = threading.Event()
        if is_open:
            self.open.set()
        self.on_step = on_step
        self.lock = threading.Lock()
        self.started, self.ended, self.cancelled = [], [], []
        self.steps = Counter()
        self.looks = self.now = self.most = 0

    def __call__(self, config, listen, cancelled):
        with self.lock:
            self.started.append(config)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            while not self.open.wait(0.005):
                self.looks += 1
                if cancelled():
                    raise Cancelled
            return run(config, lambda step, loss: self.step(config, listen, step, loss), cancelled)
        except Cancelled:
            self.cancelled.append(config)
            raise
        finally:
            with self.lock:
                self.now -= 1
                self.ended.append(config)

    def step(self, config, listen, step, loss):
        with self.lock:
            listen(step, loss)
            self.steps[config] = step
            self.on_step(config, step)

    def looked(self):
        """Waits until a run that waits has asked, from now on, whether it is still wanted, and has the answer."""
        before = self.looks
        until(lambda: self.looks >= before + 2 or self.cancelled)


@pytest.fixture
def clock(monkeypatch):
    """The time by which a pool judges whether a request is still wanted; it stands until a test moves it."""
    clock = SimpleNamespace(now=1000.0, readers=set())

    def monotonic():
        clock.readers.add(threading.current_thread())
        return clock.now

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=monotonic))
    return clock


def unwanted(config, listen, cancelled):
    raise AssertionError("nothing has to be trained")


# Results


def test_results_come_in_the_order_asked_and_equal_those_of_run():
    configs = [
        replace(TINY, model="attention", window=8),
        replace(TINY, model="mean"),
        replace(TINY, steps=40),
        replace(TINY, model="gru"),
    ]
    request = Pool(Store(None), workers=2, run=run).submit(configs)
    assert request.wait(TOO_LONG)
    assert [result.config for result in request.results] == configs
    assert [result.test_loss for result in request.results] == [run(config).test_loss for config in configs]
    assert (request.total, request.ended, request.trained, request.stored) == (4, 4, 4, 0)
    assert not request.errors and not request.lost and not request.stopped


@pytest.mark.parametrize("model", MODELS)
def test_each_model_can_be_trained_by_a_pool(model):
    request = Pool(Store(None), workers=1).submit([replace(TINY, model=model)])
    assert request.wait(TOO_LONG)
    assert np.isfinite(request.results[0].test_loss)


def test_stored_results_are_there_when_submit_returns(tmp_path):
    configs = seeds(1, 2, 3)
    for config in configs:
        Store(tmp_path).save(run(config))
    request = Pool(Store(tmp_path), run=unwanted).submit(configs)
    assert [result.config for result in request.results] == configs
    assert request.finished and request.fraction == 1
    assert (request.stored, request.trained, request.ended) == (3, 0, 3)


def test_only_what_is_not_stored_is_trained(tmp_path):
    stored, fresh = seeds(1, 2), seeds(3, 4)
    for config in stored:
        Store(tmp_path).save(run(config))
    runs = Runs()
    request = Pool(Store(tmp_path), workers=1, run=runs).submit([fresh[0], *stored, fresh[1]])
    assert request.wait(TOO_LONG)
    assert runs.started == fresh
    assert (request.stored, request.trained) == (2, 2)


def test_nothing_asked_is_finished_at_once():
    request = Pool(Store(None), run=unwanted).submit([])
    assert request.finished and request.results == [] and request.errors == []


def test_a_config_that_cannot_be_run_is_refused_by_submit_with_a_sentence():
    with pytest.raises(ValueError, match="model is 'nonsense'"):
        Pool(Store(None), run=unwanted).submit([TINY, replace(TINY, model="nonsense")])


# One job a config


def test_two_requests_for_the_same_runs_train_each_once():
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=2, run=runs)
    one, other = pool.submit(seeds(1, 2, 3)), pool.submit(seeds(3, 2, 4))
    runs.open.set()
    assert one.wait(TOO_LONG) and other.wait(TOO_LONG)
    assert sorted(config.init_seed for config in runs.started) == [1, 2, 3, 4]
    assert [result.config for result in other.results] == seeds(3, 2, 4)
    assert np.array_equal(one.results[2].weights, other.results[0].weights)


def test_a_run_asked_for_twice_in_one_request_is_trained_once_and_given_twice():
    runs = Runs()
    # A baseline reads no seed: these are three names of one run.
    configs = [replace(TINY, model="mean", init_seed=seed) for seed in (1, 2, 1)]
    request = Pool(Store(None), workers=2, run=runs).submit(configs)
    assert request.wait(TOO_LONG)
    assert len(runs.started) == 1
    assert [result.config for result in request.results] == configs


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_more_runs_than_workers_go_on_at_once(workers):
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=workers, run=runs)
    requests = [pool.submit(seeds(*range(start, start + 4))) for start in (1, 5, 9)]
    until(lambda: len(runs.started) >= workers)  # all of them are at work, not only the first
    runs.open.set()
    assert all(request.wait(TOO_LONG) for request in requests)
    assert runs.most == workers
    assert len(runs.started) == 12


def test_a_free_worker_takes_the_next_request_while_another_still_trains():
    runs = Runs(is_open=False)
    pool = Pool(
        Store(None), workers=2, run=lambda config, *rest: (run if config.model == "mean" else runs)(config, *rest)
    )
    slow = pool.submit(seeds(1))
    until(lambda: runs.started)
    assert pool.submit([replace(TINY, model="mean")]).wait(10), "the second worker stood idle"
    assert not slow.finished
    runs.open.set()
    assert slow.wait(TOO_LONG)


# Cancel


def test_cancel_stops_training_at_its_next_step():
    def cancel_at_three(config, step):
        if step == 3:
            request.cancel()

    runs = Runs(is_open=False, on_step=cancel_at_three)
    request = Pool(Store(None), workers=1, run=runs).submit([replace(TINY, steps=5000)])
    runs.open.set()
    until(lambda: runs.ended)
    assert runs.cancelled == runs.started
    assert set(runs.steps.values()) == {3}
    assert request.finished and request.stopped and request.results == [] and not request.errors


def test_cancel_wakes_whoever_waits_though_the_run_goes_on_for_another():
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=1, run=runs)
    one, other = pool.submit(seeds(1)), pool.submit(seeds(1))
    until(lambda: runs.started)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(one.wait(TOO_LONG)), daemon=True)
    waiting.start()
    one.cancel()
    waiting.join(TOO_LONG / 3)
    assert answers == [True]
    runs.open.set()
    assert other.wait(TOO_LONG)
    assert len(other.results) == 1


def test_cancel_drops_the_runs_that_have_not_begun():
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=1, run=runs)
    request = pool.submit(seeds(1, 2, 3, 4))
    until(lambda: runs.started)
    request.cancel()
    later = pool.submit(seeds(5))
    runs.open.set()
    assert later.wait(TOO_LONG)
    assert runs.started == seeds(1, 5)


def test_cancel_of_one_request_leaves_the_runs_that_another_waits_for():
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=1, run=runs)
    one, other = pool.submit(seeds(1, 2, 3)), pool.submit(seeds(3, 1))
    until(lambda: runs.started)
    one.cancel()
    runs.looked()
    runs.open.set()
    assert other.wait(TOO_LONG)
    assert [result.config for result in other.results] == seeds(3, 1)
    assert runs.started == seeds(1, 3) and not runs.cancelled
    assert other.alive and not other.lost and not other.stopped


def test_a_cancelled_request_counts_as_ended_only_what_is_there():
    def cancel_in_the_third(config, step):
        if config.init_seed == 3:
            request.cancel()

    runs = Runs(is_open=False, on_step=cancel_in_the_third)
    pool = Pool(Store(None), workers=1, run=runs)
    request = pool.submit(seeds(1, 2, 3, 4, 5))
    runs.open.set()
    until(lambda: runs.cancelled)
    assert pool.submit(seeds(6)).wait(TOO_LONG)  # by now the dropped ones are behind it
    assert len(request.results) == 2
    assert request.ended == 2
    assert request.fraction < 1


def test_the_store_holds_every_run_that_finished_before_a_cancel(tmp_path):
    def cancel_in_the_third(config, step):
        if config.init_seed == 3:
            request.cancel()

    runs = Runs(is_open=False, on_step=cancel_in_the_third)
    request = Pool(Store(tmp_path), workers=1, run=runs).submit(seeds(1, 2, 3, 4))
    runs.open.set()
    until(lambda: runs.cancelled)
    stored = Store(tmp_path)
    assert [config.init_seed for config in seeds(1, 2, 3, 4) if stored.load(config) is not None] == [1, 2]
    assert [result.config for result in request.results] == seeds(1, 2)


def test_a_run_wanted_again_while_it_stops_is_given():
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=2, run=runs)
    first = pool.submit(seeds(1))
    until(lambda: runs.started)
    first.cancel()
    again = pool.submit(seeds(1))  # the first training has not noticed yet, or just has
    runs.open.set()
    assert again.wait(TOO_LONG)
    assert [result.test_loss for result in again.results] == [run(TINY).test_loss]


def test_cancel_and_asking_again_never_loses_a_run():
    pool = Pool(Store(None), workers=2, run=run)
    for config in seeds(*range(1, 16), base=replace(TINY, steps=10)):
        for _ in range(config.init_seed % 4):  # cancelled at various moments: at once, or some way in
            earlier = pool.submit([config])
            earlier.wait(0.001 * (config.init_seed % 7))
            earlier.cancel()
        again = pool.submit([config])
        assert again.wait(TOO_LONG)
        assert [result.config for result in again.results] == [config]
        assert not again.lost


# Patience


def test_a_request_that_nobody_asks_about_ends_and_says_it_was_lost(clock):
    runs = Runs(is_open=False)
    request = Pool(Store(None), workers=1, run=runs).submit(seeds(1, 2))
    until(lambda: runs.started)
    clock.now += jobs.PATIENCE - 0.1
    runs.looked()
    assert request.alive and not runs.cancelled
    clock.now += 0.2
    until(lambda: runs.cancelled)
    until(lambda: request.lost)
    assert not request.alive and not request.stopped and not request.errors
    assert runs.started == seeds(1)


def test_a_lost_run_can_be_asked_for_again(clock):
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=1, run=runs)
    request = pool.submit(seeds(1))
    until(lambda: runs.started)
    clock.now += jobs.PATIENCE + 0.1
    until(lambda: request.lost)
    runs.open.set()
    again = pool.submit(seeds(1))
    assert again.wait(TOO_LONG)
    assert [result.config for result in again.results] == seeds(1)
    assert request.results == [] and request.lost


@pytest.mark.parametrize("question", ["finished", "results"])
def test_asking_keeps_a_request_alive(clock, question):
    runs = Runs(is_open=False)
    request = Pool(Store(None), workers=1, run=runs).submit(seeds(1))
    until(lambda: runs.started)
    for _ in range(3):
        clock.now += jobs.PATIENCE - 0.1
        getattr(request, question)
        runs.looked()
    runs.open.set()
    assert request.wait(TOO_LONG)
    assert len(request.results) == 1 and not runs.cancelled


def test_waiting_longer_than_the_patience_is_asking_all_the_while(clock):
    runs = Runs(is_open=False)
    request = Pool(Store(None), workers=1, run=runs).submit(seeds(1, 2))
    until(lambda: runs.started)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(request.wait(TOO_LONG)))
    waiting.start()
    until(lambda: waiting in clock.readers)
    clock.now += 3 * jobs.PATIENCE
    runs.looked()
    runs.open.set()
    waiting.join(TOO_LONG)
    assert answers == [True]
    assert not runs.cancelled and len(request.results) == 2


def test_a_store_that_is_slow_to_read_does_not_use_up_the_patience(clock):
    class Slow(Store):
        def load(self, config):
            if threading.current_thread() is threading.main_thread():
                clock.now += 1
            return super().load(config)

    pool = Pool(Slow(None), workers=1)
    count = int(jobs.PATIENCE) + 3
    request = pool.submit(seeds(*range(1, count + 1)))
    assert pool.submit(seeds(100)).wait(TOO_LONG)  # by now all of the first request's runs are behind it
    assert not request.lost
    assert len(request.results) == count


# Progress


def test_progress_grows_from_nothing_to_all_and_never_falls():
    fractions = []
    runs = Runs(is_open=False, on_step=lambda config, step: fractions.append(request.fraction))
    configs = [replace(TINY, model=model, window=window, steps=10) for window in (4, 32) for model in ("rnn", "mean")]
    request = Pool(Store(None), workers=2, run=runs).submit(configs)
    assert request.fraction == 0
    runs.open.set()
    assert request.wait(TOO_LONG)
    assert 0 < fractions[0] < fractions[-1] < 1
    assert fractions == sorted(fractions)
    assert len(set(fractions)) > 10  # it grows within a run, not only from one run to the next
    assert request.fraction == 1


def test_a_longer_training_counts_for_more_of_the_progress():
    assert cost(replace(TINY, window=8)) > cost(TINY)
    assert cost(replace(TINY, steps=300)) > 10 * cost(TINY)
    stages = replace(TINY, window=32, steps=20, curriculum=((4, 10), (32, 10)))
    assert cost(replace(TINY, window=4, steps=20)) < cost(stages) < cost(replace(TINY, window=32, steps=20))


def test_the_time_left_is_told_from_the_pace_so_far(clock):
    runs = Runs(is_open=False)
    pool = Pool(Store(None), workers=1, run=runs)
    request = pool.submit(seeds(1, 2, 3, 4))
    assert request.seconds_left is None  # no pace yet
    runs.on_step = lambda config, step: runs.open.clear() if config.init_seed == 1 and step == TINY.steps else None
    runs.open.set()
    until(lambda: len(runs.started) == 2)
    clock.now += 2.0  # one of four took two seconds
    assert request.seconds_left == pytest.approx(6.0)
    runs.open.set()
    assert request.wait(TOO_LONG)
    assert request.seconds_left == 0


# Failures


def test_a_run_that_fails_becomes_a_sentence_and_the_others_finish():
    def fails_at_eight(config, listen, cancelled):
        if config.window == 8:
            raise RuntimeError("the disk is on fire")
        return run(config, listen, cancelled)

    configs = [replace(TINY, window=window, init_seed=seed) for seed in (1, 2) for window in (4, 8, 16)]
    pool = Pool(Store(None), workers=2, run=fails_at_eight)
    request = pool.submit(configs)
    assert request.wait(TOO_LONG)
    assert [result.config for result in request.results] == [config for config in configs if config.window != 8]
    assert len(request.errors) == 1  # said once, though two runs failed
    for part in ("rnn", "window 8", "the disk is on fire"):
        assert part in request.errors[0]
    assert not request.lost
    assert (request.ended, request.trained, request.fraction) == (6, 4, 1)
    assert pool.submit(seeds(9)).wait(TOO_LONG)  # the workers outlive it


def test_too_little_memory_is_said_in_plain_words():
    def too_large(config, listen, cancelled):
        raise MemoryError

    request = Pool(Store(None), workers=1, run=too_large).submit(seeds(1))
    assert request.wait(TOO_LONG)
    assert request.errors == ["Window 4 with 8 sequences does not fit in memory."]


def test_a_failed_run_is_tried_again_when_it_is_asked_for_again():
    first = threading.Event()

    def fails_once(config, listen, cancelled):
        if not first.is_set():
            first.set()
            raise RuntimeError("bad luck")
        return run(config, listen, cancelled)

    pool = Pool(Store(None), workers=1, run=fails_once)
    assert pool.submit(seeds(1)).wait(TOO_LONG)
    again = pool.submit(seeds(1))
    assert again.wait(TOO_LONG)
    assert len(again.results) == 1 and not again.errors
