"""Who computes what, when: one job a config, on a pool of threads, with progress and cancel.

    pool = Pool(open_store())
    request = pool.submit(configs)      # stored results are there at once
    while not request.finished:
        request.wait(0.2)
        print(request.fraction, len(request.results))

A visitor's wish is a `Request`; the trainings behind it are `Job`s. Two requests for one config share its job. A job
goes on as long as one of its requests is alive: neither cancelled, nor left unasked for longer than PATIENCE.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from explorer import experiment
from explorer.config import RunConfig
from explorer.experiment import Cancelled, RunResult, canonical
from explorer.store import Store

CLOSE_SECONDS = 10.0  # the longest wait for a thread at the end of the program
PATIENCE = 5.0  # seconds for which a request may stay unasked before its jobs end

log = logging.getLogger(__name__)


def cost(config: RunConfig) -> float:
    """How long a run takes compared with others, roughly: steps of the sequence that are read in training."""
    read = sum(window * steps for window, steps in config.stages())
    return 1 + read * max(config.sequences, 32)


class Job:
    """One training on its way. `error` is a sentence where it failed."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.cost = cost(config)
        self.steps_done = 0
        self.result: RunResult | None = None
        self.trained = False  # by this pool, rather than found in the store
        self.error = ""
        self.ended = False
        self.requests: list[Request] = []

    def unwanted(self) -> bool:
        """True once no request is alive."""
        return not any(request.alive for request in tuple(self.requests))

    @property
    def settled(self) -> bool:
        """True once there is a result or an error, and not where the run was dropped."""
        return self.result is not None or bool(self.error)

    @property
    def cost_done(self) -> float:
        """The part of the cost that is behind it."""
        return self.cost if self.settled else self.cost * self.steps_done / (self.config.steps + 1)

    def listen(self, step: int, loss: float) -> None:
        """Takes the training loop's word of a step."""
        self.steps_done = step


class Request:
    """Results that somebody waits for, in the order asked. Reading it keeps it alive."""

    def __init__(self, changed: threading.Condition, configs: list[RunConfig]):
        self._changed = changed
        self._configs = configs
        self._jobs: list[Job] = []
        self._cancelled = False
        self._waiting = 0  # threads in `wait`
        self._asked = self.started = time.monotonic()
        self.stored = 0  # results that were in the store when the request was made

    @property
    def alive(self) -> bool:
        """False once cancelled, or left unasked for longer than PATIENCE while nobody waits."""
        return not self._cancelled and (self._waiting > 0 or time.monotonic() - self._asked < PATIENCE)

    @property
    def finished(self) -> bool:
        """True when every job has ended, or was cancelled."""
        self._asked = time.monotonic()
        return self._cancelled or all(job.ended for job in self._jobs)

    @property
    def lost(self) -> bool:
        """True where jobs ended because nobody asked for a while: the request must be made again."""
        return not self._cancelled and any(job.ended and not job.settled for job in self._jobs)

    @property
    def stopped(self) -> bool:
        """True once cancelled."""
        return self._cancelled

    @property
    def results(self) -> list[RunResult]:
        """What is there, in the order asked, under the configs asked."""
        self._asked = time.monotonic()
        return [
            replace(job.result, config=config)
            for config, job in zip(self._configs, self._jobs, strict=True)
            if job.result is not None
        ]

    @property
    def total(self) -> int:
        """How many results were asked for."""
        return len(self._configs)

    @property
    def ended(self) -> int:
        """How many of the results are there, or failed."""
        return sum(job.settled for job in self._jobs)

    @property
    def trained(self) -> int:
        """How many of the results were trained for this request, by this pool."""
        return sum(job.trained for job in self._jobs)

    @property
    def errors(self) -> list[str]:
        """A sentence for each run that failed, without repeats."""
        return list(dict.fromkeys(job.error for job in self._jobs if job.error))

    @property
    def fraction(self) -> float:
        """The part of the work that is done, 0 to 1, by cost."""
        return sum(job.cost_done for job in self._jobs) / max(sum(job.cost for job in self._jobs), 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the pace so far, over what was not stored; None before there is a pace."""
        todo = [job for job in self._jobs if job.trained or not job.ended or job.error]
        done, whole = sum(job.cost_done for job in todo), sum(job.cost for job in todo)
        elapsed = time.monotonic() - self.started
        return elapsed * (whole - done) / done if done > 0 and elapsed > 0.5 else None

    def wait(self, seconds: float) -> bool:
        """Returns `finished` as soon as it is true, or after that many seconds."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self.finished, seconds)
            finally:
                self._waiting -= 1

    def cancel(self) -> None:
        """Ends the request: jobs that nobody else waits for stop at their next training step."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()


class Pool:
    """Trains on at most `workers` threads, by default one a core.

    Args:
        store: where results are found and kept.
        run: what trains a config: `run(config, listen, cancelled)`.
    """

    def __init__(self, store: Store, workers: int | None = None, run: Callable[..., RunResult] = experiment.run):
        self.store = store
        self._run = run
        self._workers = workers or os.cpu_count() or 1
        self._waiting: deque[Job] = deque()
        self._current: dict[RunConfig, Job] = {}
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        atexit.register(self.close)

    def submit(self, configs: Iterable[RunConfig]) -> Request:
        """Asks for results. Those in the store are there when this returns; the rest are trained in this order.

        Raises:
            ValueError: a config is one that cannot be run; see `experiment.canonical`.
        """
        configs = list(configs)
        request = Request(self._changed, configs)
        jobs: dict[RunConfig, Job] = {}
        for config in map(canonical, configs):
            if config not in jobs:
                jobs[config] = Job(config)
                jobs[config].result = self.store.load(config)
                jobs[config].ended = jobs[config].result is not None
        with self._changed:
            for config, job in jobs.items():
                if job.ended:
                    request.stored += 1
                    continue
                current = self._current.get(config)
                if current is None:
                    self._current[config] = current = job
                    self._waiting.append(job)
                jobs[config] = current
                current.requests.append(request)
            request._jobs = [jobs[canonical(config)] for config in configs]
            while self._waiting and len(self._threads) < self._workers:
                thread = threading.Thread(target=self._work, name=f"training-{len(self._threads) + 1}", daemon=True)
                self._threads.append(thread)
                thread.start()
            request._asked = time.monotonic()
            self._changed.notify_all()
        return request

    def close(self) -> None:
        """Ends all training, at the end of the program: one that ends while a thread is inside torch is aborted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = self._waiting.popleft()
            if not job.unwanted():
                self._train(job)
            with self._changed:
                if not (job.settled or job.unwanted() or self._closed):
                    self._waiting.append(job)  # wanted again, just as it stopped
                    continue
                job.ended = True
                if self._current.get(job.config) is job:
                    del self._current[job.config]
                self._changed.notify_all()

    def _train(self, job: Job) -> None:
        def cancelled() -> bool:
            return self._closed or job.unwanted()

        def compute(config: RunConfig) -> RunResult:
            return self._run(config, job.listen, cancelled)

        try:
            job.result, job.trained = self.store.get(job.config, compute, cancelled)
        except Cancelled:
            pass
        except MemoryError:
            job.error = f"Window {job.config.window} with {job.config.sequences} sequences does not fit in memory."
        except Exception as error:
            log.exception("a run failed: %s", job.config)
            job.error = f"A run of {job.config.model} at window {job.config.window} failed: {error}"
