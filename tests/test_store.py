import logging
import multiprocessing
import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from explorer import experiment, store
from explorer.config import RunConfig
from explorer.experiment import Cancelled, run
from explorer.store import ARRAYS, Store, entry_name, open_store, pack, seal

TINY = RunConfig(steps=2, window=4, test_sequences=16)
PATIENCE = 60  # seconds after which a test that waits gives up

# Other processes are forked from one that has torch loaded, where the platform can, so that each starts at once.
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
processes = multiprocessing.get_context("forkserver" if FORKS else "spawn")
processes.set_forkserver_preload(["explorer.store", "torch._dynamo"])


def seeds(count, base=TINY):
    return [replace(base, init_seed=seed) for seed in range(1, count + 1)]


def assert_equal(one, other):
    assert one.config == other.config
    for name in ("test_loss", "r2", "seconds"):
        assert np.float64(getattr(one, name)).tobytes() == np.float64(getattr(other, name)).tobytes()
    assert (one.parameters, one.versions) == (other.parameters, other.versions)
    for name in ARRAYS:
        left, right = getattr(one, name), getattr(other, name)
        assert (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


def damaged_in(folder):
    return sorted(path.name for path in (folder / "damaged").glob("*"))


@pytest.fixture(scope="module")
def result():
    return run(TINY)


# Round trip


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, model="attention", task="any", clip=1),
        replace(TINY, model="mean"),
        replace(TINY, steps=0),
        replace(TINY, model="gru", curriculum=((2, 1), (4, 1))),
    ],
    ids=lambda config: f"{config.model}-{config.steps}",
)
def test_another_store_on_the_folder_gives_the_same_result_bit_for_bit(tmp_path, config):
    trained = run(config)
    Store(tmp_path).save(trained)
    loaded = Store(tmp_path).load(config)
    assert_equal(loaded, replace(trained, config=config))


def test_losses_that_are_no_numbers_survive(tmp_path, result):
    strange = replace(
        result,
        train_loss=np.array([np.nan, np.inf], np.float32),
        weights=np.full_like(result.weights, -np.nan),
        test_loss=float("nan"),
        r2=float("-inf"),
    )
    Store(tmp_path).save(strange)
    assert_equal(Store(tmp_path).load(TINY), strange)


def test_equal_runs_share_an_entry_and_each_gets_the_config_it_asked_for(tmp_path, result):
    kept = Store(tmp_path)
    kept.save(result)
    for config in (replace(TINY, width=5), replace(TINY, positions="none")):
        assert kept.known(config)
        assert kept.load(config).config == config
        assert Store(tmp_path).load(config).config == config
    assert entry_name(replace(TINY, learning_rate=1)) == entry_name(replace(TINY, learning_rate=1.0))
    names = {entry_name(config) for config in (TINY, replace(TINY, fresh=True), replace(TINY, clip=1.0), *seeds(5))}
    assert len(names) == 7


def test_a_result_in_hand_cannot_change_a_stored_one(tmp_path, result):
    mine = replace(result, weights=result.weights.copy())
    kept = Store(tmp_path)
    kept.save(mine)
    mine.weights[:] = 0
    assert_equal(kept.load(TINY), result)
    with pytest.raises(ValueError, match="read-only"):
        kept.load(TINY).weights[0] = 0


def test_a_misshapen_result_is_refused(tmp_path, result):
    for wrong in (
        {"train_loss": result.train_loss[:1]},
        {"weights": result.weights[:, :-1]},
        {"moments": result.moments.astype(float)},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Store(tmp_path).save(replace(result, **wrong))
    assert Store(tmp_path).info()["entries"] == 0


# Damage


def assert_miss_set_aside(folder, config=TINY):
    name = entry_name(config)
    opened = Store(folder)
    assert opened.known(config)
    assert opened.load(config) is None
    assert not (folder / name).exists()
    assert name in damaged_in(folder)
    assert opened.info()["damaged"] == len(damaged_in(folder))
    assert not opened.known(config)


def test_truncated_empty_and_foreign_bytes_are_misses_and_set_aside(tmp_path, result):
    data = pack(result)
    lengths = [0, 1, 2, 31, 32, 33, 34, 100, len(data) // 2, len(data) - 33, len(data) - 1]
    foreign = [b"\0" * 5000, b"PK\3\4" + b"x" * 3000, bytes(random.Random(1).randbytes(len(data))), data + b"\0"]
    for broken in [data[:length] for length in lengths] + foreign:
        (tmp_path / entry_name(TINY)).write_bytes(broken)
        assert_miss_set_aside(tmp_path)
    again, trained = Store(tmp_path).get(TINY, run)
    assert trained
    assert_equal(Store(tmp_path).load(TINY), again)


def test_no_flipped_bit_gives_a_wrong_result(tmp_path, result):
    data, path, chance = pack(result), tmp_path / entry_name(TINY), random.Random(2)
    positions = sorted({*range(60), *range(len(data) - 60, len(data)), *chance.sample(range(len(data)), 400)})
    opened = Store(tmp_path, memory=0)
    for position in positions:
        broken = bytearray(data)
        broken[position] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        if (loaded := opened.load(TINY)) is None:
            assert not path.exists()
        else:
            assert_equal(loaded, result)
    assert damaged_in(tmp_path) == [path.name]


def test_well_made_files_that_hold_something_else_are_misses(tmp_path, result):
    other = replace(TINY, init_seed=7)
    arrays = {name: getattr(result, name) for name in ARRAYS}
    record = {"code": experiment.CODE_VERSION, "config": TINY.to_dict(), "test_loss": 0.1, "r2": 0.0, "seconds": 0.1}
    record |= {"parameters": result.parameters, "versions": result.versions}
    path = tmp_path / entry_name(TINY)
    path.write_bytes(seal(record, arrays))
    assert Store(tmp_path).load(TINY) is not None  # as it is it would be believed
    for wrong in (
        seal(record | {"config": other.to_dict()}, arrays),
        seal(record | {"code": experiment.CODE_VERSION + 1}, arrays),
        seal(record | {"extra": 1}, arrays),
        seal({}, arrays),
        seal(record | {"parameters": result.parameters + 1}, arrays),
        seal(record, arrays | {"train_loss": np.zeros(3, np.float32)}),
        seal(record, arrays | {"train_loss": np.zeros((2, 1), np.float32)}),
        seal(record, arrays | {"weights": result.weights.T}),
        seal(record, arrays | {"moments": result.moments[:-1]}),
        seal(record, arrays | {"weights": result.weights.astype("S4")}),
        seal(record, {name: arrays[name] for name in ARRAYS[:2]}),
        # A whole archive, its own checksums and all, that is not the one the digest was made of.
        seal(record | {"test_loss": 0.2}, arrays)[: -store.DIGEST_BYTES] + seal(record, arrays)[-store.DIGEST_BYTES :],
    ):
        path.write_bytes(wrong)
        assert_miss_set_aside(tmp_path)


def test_an_entry_under_another_name_is_a_miss(tmp_path, result):
    other = replace(TINY, init_seed=7)
    Store(tmp_path).save(result)
    (tmp_path / entry_name(TINY)).rename(tmp_path / entry_name(other))
    assert_miss_set_aside(tmp_path, other)
    assert Store(tmp_path).load(TINY) is None


def test_damage_is_told_in_one_line_and_only_so_much_of_it_is_kept(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(store, "DAMAGED_KEPT", 3)
    opened = Store(tmp_path)
    for config in seeds(5):
        (tmp_path / entry_name(config)).write_bytes(b"damaged")
        assert opened.load(config) is None
    assert len(damaged_in(tmp_path)) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 5


def test_damage_that_cannot_be_set_aside_is_overwritten(tmp_path, result):
    (tmp_path / "damaged").write_text("a file in the way")
    (tmp_path / entry_name(TINY)).write_bytes(b"damaged")
    opened = Store(tmp_path)
    assert opened.load(TINY) is None
    opened.save(result)
    assert_equal(Store(tmp_path).load(TINY), result)


def test_results_of_another_code_version_are_not_found(tmp_path, monkeypatch, result):
    opened = Store(tmp_path)
    opened.save(result)
    monkeypatch.setattr(experiment, "CODE_VERSION", experiment.CODE_VERSION + 1)
    for present in (opened, Store(tmp_path)):
        assert not present.known(TINY)
        assert present.load(TINY) is None
    assert opened.info()["entries"] == 1


# The folder


def test_foreign_files_are_left_alone(tmp_path, monkeypatch, result):
    inside = [tmp_path, tmp_path / "damaged", tmp_path / "locks"]
    names = ["notes.txt", "mine.npz", ".hidden", f"{entry_name(TINY)}.bak", "x" + entry_name(TINY), "a.tmp", "a.lock"]
    foreign = [folder / name for folder in inside for name in names]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    (tmp_path / entry_name(replace(TINY, init_seed=9))).mkdir()
    opened = Store(tmp_path, cap=len(pack(result)))
    assert (opened.info()["entries"], opened.info()["bytes"], opened.info()["damaged"]) == (0, 0, 0)
    for config in seeds(3):  # the third removes the second, which removed the first
        opened.save(replace(result, config=config))
    assert opened.info()["entries"] == 1
    assert opened.clear() == 1
    assert all(path.read_bytes() == b"mine" for path in foreign)
    assert (tmp_path / entry_name(replace(TINY, init_seed=9))).is_dir()


def assert_memory_only(opened, folder, caplog, result):
    assert "EXPLORER_STORE" in opened.warning
    assert str(folder) in opened.warning
    for config in seeds(3):
        saved, trained = opened.get(config, lambda config: replace(result, config=config))
        assert trained
        assert_equal(opened.load(config), saved)
        assert opened.get(config, run)[1] is False
    assert opened.info() | {"bytes": 0, "folder": ""} == {
        "folder": "", "entries": 3, "bytes": 0, "damaged": 0, "cap": store.DISK_BYTES, "warning": opened.warning,
    }  # fmt: skip
    assert [record.levelno for record in caplog.records if record.name == "explorer.store"] == [logging.WARNING]
    assert opened.clear() == 3
    assert opened.load(TINY) is None


@pytest.mark.parametrize("below", ["", "runs", "some/where/runs"])
def test_a_file_in_the_way_means_memory_only(tmp_path, caplog, result, below):
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / below
    assert_memory_only(Store(folder), folder, caplog, result)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_read_only_folder_means_memory_only_but_what_it_holds_is_read(tmp_path, caplog, result):
    other = replace(result, config=replace(TINY, init_seed=99))
    Store(tmp_path).save(other)
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this account may write everywhere")
        opened = Store(tmp_path)
        assert opened.warning
        assert_equal(opened.load(other.config), other)
        opened.save(result)
        assert_equal(opened.load(TINY), result)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
    finally:
        tmp_path.chmod(0o755)


def test_a_disk_that_fills_up_means_memory_only_until_there_is_room(tmp_path, caplog, result):
    resource = pytest.importorskip("resource")
    opened = Store(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a write beyond 100 bytes of any file fails
    try:
        opened.save(result)
        opened.save(replace(result, config=replace(TINY, init_seed=2)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "EXPLORER_STORE" in opened.warning
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert list(tmp_path.iterdir()) == []
    assert opened.info()["entries"] == 2
    assert_equal(opened.load(TINY), result)
    opened.save(result)
    assert opened.warning is None
    assert_equal(Store(tmp_path).load(TINY), result)


def test_a_folder_removed_under_a_running_store_comes_back(tmp_path, result):
    folder = tmp_path / "runs"
    opened = Store(folder)
    opened.get(TINY, run)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert opened.get(replace(TINY, init_seed=2), run)[1]
    assert opened.warning is None
    assert Store(folder).info()["entries"] == 1


def test_the_environment_says_where(tmp_path, monkeypatch, result):
    monkeypatch.setenv("EXPLORER_STORE", str(tmp_path / "here"))
    opened = open_store()
    opened.save(result)
    assert opened.info()["folder"] == str(tmp_path / "here")
    assert (tmp_path / "here" / entry_name(TINY)).is_file()
    monkeypatch.setenv("EXPLORER_STORE", "~/runs")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert open_store().folder == tmp_path / "runs"
    monkeypatch.delenv("EXPLORER_STORE")
    monkeypatch.setattr(store, "user_cache_dir", lambda name: str(tmp_path / name))
    assert open_store().folder == tmp_path / "why-attention" / "runs"
    assert open_store(enabled=False).info()["folder"] is None


def test_without_a_folder_everything_stays_in_memory(tmp_path, monkeypatch, result):
    monkeypatch.chdir(tmp_path)
    opened = open_store(enabled=False)
    assert opened.warning is None
    assert opened.get(TINY, run)[1]
    assert not opened.get(TINY, run)[1]
    assert opened.info()["entries"] == 1
    assert opened.clear() == 1
    assert not opened.known(TINY)
    assert list(tmp_path.iterdir()) == []


def test_clear_leaves_a_lock_that_is_held(tmp_path, result):
    opened = Store(tmp_path)
    with pytest.raises(ZeroDivisionError):  # a run that fails leaves its lock's file, held by nobody
        opened.get(replace(TINY, init_seed=2), lambda config: 1 / 0)
    (tmp_path / entry_name(TINY)).write_bytes(b"damaged")
    assert opened.load(TINY) is None
    opened.save(replace(result, config=replace(TINY, init_seed=3)))

    def compute(config):
        assert len(list((tmp_path / "locks").iterdir())) == 2
        assert Store(tmp_path).clear() == 1
        assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"{entry_name(TINY)}.lock"]
        return result

    assert opened.get(TINY, compute)[1]
    assert list((tmp_path / "locks").iterdir()) == []
    assert damaged_in(tmp_path) == []
    assert [path.name for path in tmp_path.glob("*.npz")] == [entry_name(TINY)]


def test_what_killed_processes_left_is_removed_when_it_is_old(tmp_path):
    (tmp_path / "locks").mkdir()
    names = [f"{letter * 32}.tmp" for letter in "abc"] + [f"locks/{entry_name(TINY)}.lock"]
    for name, age in zip(names, (7200, 60, -7200, 7200), strict=True):  # −7200: the clock was set back
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert Store(tmp_path).warning is None
    assert [(tmp_path / name).exists() for name in names] == [False, True, True, False]


# Sizes


def test_the_least_recently_used_entries_go_first(tmp_path, result):
    size = max(len(pack(replace(result, config=config))) for config in seeds(12))
    opened = Store(tmp_path, cap=10 * size)
    configs = seeds(12)
    for age, config in enumerate(configs[:10]):
        opened.save(replace(result, config=config))
        os.utime(tmp_path / entry_name(config), (1e9 + age,) * 2)
    assert opened.info()["entries"] == 10
    assert Store(tmp_path).load(configs[0])  # used just now
    opened.save(replace(result, config=configs[10]))
    assert opened.info()["bytes"] <= 0.9 * opened.info()["cap"]
    kept = [config for config in configs if Store(tmp_path).known(config)]
    assert kept == [configs[0], *configs[3:11]]


def test_entries_of_another_code_version_go_before_all_others(tmp_path, monkeypatch, result):
    size = len(pack(result))
    monkeypatch.setattr(experiment, "CODE_VERSION", experiment.CODE_VERSION + 1)
    for config in seeds(3):
        Store(tmp_path).save(replace(result, config=config))  # newer than all that follows
    monkeypatch.undo()
    opened = Store(tmp_path, cap=int(6.5 * size))
    configs = seeds(5)
    for age, config in enumerate(configs):
        opened.save(replace(result, config=config))
        os.utime(tmp_path / entry_name(config), (1e9 + age,) * 2)
    assert all(Store(tmp_path).known(config) for config in configs)
    assert opened.info()["bytes"] <= opened.cap


def test_what_other_processes_wrote_counts_and_a_clock_set_back_evicts_nothing_new(tmp_path, result):
    size = len(pack(result))
    one, other = Store(tmp_path, cap=5 * size), Store(tmp_path, cap=5 * size)
    for config in seeds(4):
        other.save(replace(result, config=config))
        os.utime(tmp_path / entry_name(config), (time.time() + 1e6,) * 2)
    for seed in range(11, 19):
        config = replace(TINY, init_seed=seed)
        one.save(replace(result, config=config))
        assert Store(tmp_path).known(config)
    assert one.info()["bytes"] <= 5 * size


def test_a_result_larger_than_the_cap_stays_in_memory(tmp_path, result):
    opened = Store(tmp_path, cap=100)
    opened.save(result)
    assert opened.warning is None
    assert_equal(opened.load(TINY), result)
    assert opened.info()["entries"] == 0


def test_memory_is_bounded_and_keeps_what_was_used_last(result):
    opened = Store(None, memory=4 * store._bytes(result))
    first, *rest = seeds(5)
    opened.save(replace(result, config=first))
    for config in rest:
        assert opened.load(first)
        opened.save(replace(result, config=config))
    assert [opened.known(config) for config in (first, *rest)] == [True, False, True, True, True]
    small = Store(None, memory=10)
    small.save(result)
    assert not small.known(TINY)


# Many at once


def train_many(folder, counted, together):
    """Four threads on two stores ask for the same six configs, each in an order of its own."""
    begin = threading.Barrier(5)

    def compute(config):
        with counted.open("a") as file:
            file.write(entry_name(config) + "\n")
        return run(config)

    def work(opened, order):
        configs = seeds(6)
        random.Random(order).shuffle(configs)
        begin.wait(PATIENCE)
        for config in configs:
            opened.get(config, compute)

    stores = [Store(folder), Store(folder)]
    threads = [threading.Thread(target=work, args=(stores[i % 2], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    together.wait(PATIENCE)
    begin.wait(PATIENCE)
    for thread in threads:
        thread.join()


def test_threads_and_processes_that_ask_for_the_same_train_it_once(tmp_path):
    together = processes.Barrier(2)
    arguments = (tmp_path / "runs", tmp_path / "counted", together)
    children = [processes.Process(target=train_many, args=arguments) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert sorted((tmp_path / "counted").read_text().split()) == sorted(map(entry_name, seeds(6)))
    assert all(Store(tmp_path / "runs").load(config).config == config for config in seeds(6))
    assert list((tmp_path / "runs" / "locks").iterdir()) == []
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"locks", *map(entry_name, seeds(6))}


def test_threads_train_once_in_memory_too(result):
    opened, counted, barrier = Store(None), [], threading.Barrier(4)

    def work():
        barrier.wait()
        for config in seeds(6):
            opened.get(config, lambda config: counted.append(config) or run(config))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(config.init_seed for config in counted) == [1, 2, 3, 4, 5, 6]


def cancelled_after(moments):
    """Says so for the first time at the given time of the monotonic clock, which it appends to `moments`."""
    limit = time.monotonic() + 0.2

    def cancelled():
        if time.monotonic() < limit:
            return False
        moments.append(limit)
        return True

    return cancelled


@pytest.mark.parametrize("folder", [True, False], ids=["disk", "memory"])
def test_waiting_for_another_thread_can_be_cancelled_and_its_failure_lets_the_next_one_in(tmp_path, folder):
    opened = Store(tmp_path if folder else None)
    inside, leave, moments = threading.Event(), threading.Event(), []

    def compute(config):
        inside.set()
        assert leave.wait(PATIENCE)
        raise Cancelled

    def hold():
        with pytest.raises(Cancelled):
            opened.get(TINY, compute)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(PATIENCE)
    with pytest.raises(Cancelled):
        opened.get(TINY, run, cancelled_after(moments))
    assert time.monotonic() - moments[0] < 0.1
    leave.set()
    assert opened.get(TINY, run)[1]
    holder.join()


def test_who_reads_while_another_writes_sees_a_whole_entry(tmp_path, result):
    writer, reader = Store(tmp_path), Store(tmp_path, memory=0)
    writer.save(result)
    thread = threading.Thread(target=lambda: [writer.save(result) for _ in range(30)])
    thread.start()
    while thread.is_alive():
        assert_equal(reader.load(TINY), result)
    assert reader.info()["damaged"] == 0


def hold_for_ever(folder, inside):
    def compute(config):
        inside.set()
        threading.Event().wait()

    Store(folder).get(TINY, compute)


def test_waiting_for_another_process_can_be_cancelled_and_its_death_lets_the_next_one_in(tmp_path):
    inside, moments = processes.Event(), []
    child = processes.Process(target=hold_for_ever, args=(tmp_path, inside))
    child.start()
    try:
        assert inside.wait(PATIENCE)
        opened = Store(tmp_path)
        with pytest.raises(Cancelled):
            opened.get(TINY, run, cancelled_after(moments))
        assert time.monotonic() - moments[0] < 0.1
        assert opened.get(replace(TINY, init_seed=2), run)[1]  # others are not held up
    finally:
        child.kill()
        child.join()
    start = time.monotonic()
    assert opened.get(TINY, run, lambda: time.monotonic() - start > PATIENCE)[1]
    assert list((tmp_path / "locks").iterdir()) == []


def save_for_ever(folder, first, finished):
    opened, seed = Store(folder), first
    result = opened.load(TINY)
    while True:
        opened.get(replace(TINY, init_seed=seed), lambda config: replace(result, config=config))
        finished.send(seed)
        seed += 1


@pytest.mark.parametrize("count", [1, 10, 27, 60])
def test_a_killed_process_leaves_whole_entries_and_no_lock(tmp_path, result, count):
    opened = Store(tmp_path)
    opened.save(result)
    finished, sender = processes.Pipe(duplex=False)
    child = processes.Process(target=save_for_ever, args=(tmp_path, 1000, sender))
    child.start()
    sender.close()
    try:
        assert finished.poll(PATIENCE)
        saved = [finished.recv() for _ in range(count)]
    finally:
        child.kill()
        child.join()
    with suppress(EOFError):
        while True:
            saved.append(finished.recv())
    for seed in saved:
        config = replace(TINY, init_seed=seed)
        assert_equal(opened.load(config), replace(result, config=config))
    start = time.monotonic()
    for seed in (saved[-1] + 1, saved[-1] + 2):  # the kill came somewhere in the first
        config = replace(TINY, init_seed=seed)
        opened.get(config, lambda config: replace(result, config=config), lambda: time.monotonic() - start > PATIENCE)
    assert opened.info()["damaged"] == 0
    opened.clear()
    assert list((tmp_path / "locks").iterdir()) == []  # what it left was held by nobody


def test_compute_is_not_begun_once_cancelled(tmp_path):
    with pytest.raises(Cancelled):
        Store(tmp_path).get(TINY, lambda config: pytest.fail("it began"), lambda: True)
