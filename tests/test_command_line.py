"""The command line: what it prints, what it keeps, and what it says to a wrong call."""

import csv
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields

import numpy as np
import pytest
import torch

from explorer.__main__ import main
from explorer.config import RunConfig
from explorer.experiment import grid, run
from explorer.measures import sequence
from explorer.models import MODELS
from explorer.store import ENTRY, Store
from explorer.tasks import TASKS
from explorer.training import moments

TOO_LONG = 60  # seconds after which a test that waits gives up
QUICK = ("--steps", "3", "--sequences", "8", "--test-sequences", "64")
SMALL = ("--models", "rnn,mean", "--windows", "4,8", "--init-seeds", "1,2", *QUICK)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The store's folder, not yet made; and the test's process as it was before."""
    monkeypatch.setenv("EXPLORER_STORE", str(tmp_path / "store"))
    pipe = signal.getsignal(signal.SIGPIPE) if hasattr(signal, "SIGPIPE") else None
    yield tmp_path / "store"
    if pipe is not None:
        signal.signal(signal.SIGPIPE, pipe)


@pytest.fixture
def call(capsys):
    """Calls the program: (exit status, standard output, standard error)."""

    def call(*arguments):
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def output(call):
    """The standard output of a call that must go well and has nothing to complain of."""

    def output(*arguments):
        status, out, err = call(*arguments)
        assert (status, err) == (0, "")
        return out

    return output


def strict(text):
    """The value of a JSON text; NaN and Infinity are no JSON."""

    def refuse(name):
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def entries(folder):
    """The store's entries and their bytes."""
    return {path.name: path.read_bytes() for path in folder.glob("*.npz") if ENTRY.fullmatch(path.name)}


def table_rows(text):
    """The printed table as a dict a row, with 1/2 for "1 of 2"."""
    text = re.sub(r"(\d+) of (\d+)", r"\1/\2", text.replace("closed form: ", "closed:"))
    head, *lines = [line.split() for line in text.strip().splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


# lesson


def test_lesson_prints_every_number_of_the_lesson(output):
    assert output("lesson").splitlines() == [
        "Steps read: 32",
        "Final hidden state shape: (1, 1, 8)",
        "Mean guess: 0.3750 - squared error: 0.1806",
        "Picked by weights: 0.80 - squared error: 0.0000",
        "Window 5 - RNN loss: 0.0208",
        "Window 32 - RNN loss: 0.1692",
        "Window 32 - averaging loss: 0.0850",
    ]


# sweep


def test_sweep_gives_the_numbers_of_the_lesson_as_json(output):
    arguments = "--models rnn,attention,mean,constant --windows 5,32 --init-seeds 1 --test-sequences 64 --json"
    rows = strict(output("sweep", *arguments.split()))
    loss = {(row["model"], row["window"]): row["test_loss"] for row in rows}
    assert set(loss) == set(itertools.product(("rnn", "attention", "mean", "constant"), (5, 32)))
    assert [round(loss["rnn", window], 4) for window in (5, 32)] == [0.0208, 0.1692]
    assert [round(loss["mean", window], 4) for window in (5, 32)] == [0.0699, 0.0850]
    assert loss["attention", 5] < 0.001 and loss["attention", 32] < 0.001
    for window in (5, 32):  # the constant's is the spread of the first value around one half
        drawn = torch.rand(64, window, 1, generator=torch.Generator().manual_seed(20))[:, 0].double()
        assert loss["constant", window] == pytest.approx(((drawn - 0.5) ** 2).mean().item(), abs=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_json_has_every_field_of_the_config_and_the_run_s_numbers(output, model):
    (row,) = strict(output("sweep", "--models", model, "--windows", 4, "--init-seeds", 2, *QUICK, "--json"))
    numbers = ["train_loss", "test_loss", "r2", "parameters", "seconds"]
    assert list(row) == [field.name for field in fields(RunConfig)] + numbers
    config = RunConfig.from_dict({name: value for name, value in row.items() if name not in numbers})
    assert config == RunConfig(model=model, window=4, init_seed=2, steps=3, sequences=8, test_sequences=64)
    result = run(config)
    for name in ("test_loss", "r2", "parameters"):
        assert row[name] == pytest.approx(getattr(result, name), abs=1e-5)  # by the engine or the plain loop
    last = float(result.train_loss[-1]) if MODELS[model].reads else None
    assert row["train_loss"] == (last and pytest.approx(last, abs=1e-5))
    assert row["seconds"] > 0


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("--task any", {"task": "any"}),
        ("--hidden 3", {"hidden": 3}),
        ("--models attention --width 5", {"width": 5}),
        ("--models attention --positions sinusoidal", {"positions": "sinusoidal"}),
        ("--models attention --keys position+content", {"keys": "position+content"}),
        ("--models gru --start chrono", {"start": "chrono"}),
        ("--steps 7", {"steps": 7}),
        ("--learning-rate 0.02", {"learning_rate": 0.02}),
        ("--clip 0.001", {"clip": 0.001}),
        ("--sequences 9", {"sequences": 9}),
        ("--fresh", {"fresh": True}),
        ("--data-seeds 11", {"data_seed": 11}),
        ("--test-sequences 65", {"test_sequences": 65}),
        ("--test-seed 21", {"test_seed": 21}),
        ("--windows 8 --curriculum 4:1,8:2", {"window": 8, "curriculum": [[4, 1], [8, 2]]}),
        ("--windows 64 --curriculum 4:1,64:2", {"window": 64, "curriculum": [[4, 1], [64, 2]]}),
        ("--engine reference", {}),
    ],
)
def test_every_option_reaches_the_run(output, options, changed):
    base = ("--models", "rnn", "--windows", 4, "--init-seeds", 1, *QUICK)
    (row,) = strict(output("sweep", *base, *options.split(), "--json"))
    for name, value in changed.items():
        assert row[name] == value
    names = {field.name for field in fields(RunConfig)}
    result = run(RunConfig.from_dict({name: value for name, value in row.items() if name in names}))
    assert row["test_loss"] == pytest.approx(result.test_loss, abs=1e-5)  # by the engine or the plain loop


@pytest.mark.parametrize("task", TASKS)
def test_the_table_has_a_row_for_each_model_and_window_with_the_closed_forms(output, task):
    arguments = ("--models", ",".join(MODELS), "--windows", "8,4", "--init-seeds", "1-3", *QUICK, "--task", task)
    rows = table_rows(output("sweep", *arguments))
    assert [(row["model"], row["window"]) for row in rows] == list(itertools.product(MODELS, ("4", "8")))
    runs = strict(output("sweep", *arguments, "--json"))
    for row in rows:
        window = int(row["window"])
        losses = [r["test_loss"] for r in runs if (r["model"], r["window"]) == (row["model"], window)]
        assert row["median"] == f"{np.median(losses):.4f}"
        assert (row["lowest"], row["highest"]) == (f"{min(losses):.4f}", f"{max(losses):.4f}")
        assert row["solved"] == f"{sum(loss < 0.01 for loss in losses)}/{len(losses)}"
        assert row["closed:mean"] == f"{(1 - 1 / window) / 12:.4f}"
        assert row["closed:constant"] == "0.0833"
        if task == "any":
            assert row["closed:bound"] == "0.0000"


def test_the_solved_share_counts_the_seeds_below_a_hundredth(output):
    rows = table_rows(output("sweep", "--models", "attention,rnn", "--windows", "8", "--init-seeds", "1-3"))
    assert [row["solved"] for row in rows] == ["0/3", "3/3"]
    assert [row["parameters"] for row in rows] == ["97", "400"]  # 8·(1 + 8 + 2) + 9, and 8·16 + 16·16 + 16


def test_csv_has_a_row_for_each_run(output, tmp_path):
    file = tmp_path / "runs.csv"
    output("sweep", *SMALL, "--csv", file)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    wanted = strict(output("sweep", *SMALL, "--json"))
    assert len(rows) == len(wanted) == 6  # a baseline has no second weight seed
    for row, same in zip(rows, wanted, strict=True):
        assert list(row) == list(same)
        assert row["model"] == same["model"]
        for name in ("window", "init_seed", "test_loss", "r2", "parameters", "seconds"):
            assert float(row[name]) == same[name]


def test_seeds_and_windows_are_lists_and_ranges_without_repeats(output):
    arguments = ("--models", "rnn,rnn", "--windows", "4, 8,4", "--init-seeds", "2-3,7,3", "--data-seeds", "10,12")
    rows = strict(output("sweep", *arguments, *QUICK, "--json"))
    asked = [(row["window"], row["init_seed"], row["data_seed"]) for row in rows]
    assert sorted(asked) == sorted(itertools.product((4, 8), (2, 3, 7), (10, 12)))


def test_a_second_sweep_trains_nothing(output):
    first, second = (strict(output("sweep", *SMALL, "--json")) for _ in range(2))
    assert first == second  # the seconds as well: they are those of the one training


def test_without_the_store_no_file_is_left_and_all_is_trained_again(output, folder):
    first, second = (strict(output("sweep", *SMALL, "--no-store", "--json")) for _ in range(2))
    assert not folder.exists()
    assert [row["test_loss"] for row in first] == pytest.approx([row["test_loss"] for row in second], abs=1e-5)
    assert [row["seconds"] for row in first] != [row["seconds"] for row in second]


def test_runs_that_diverged_are_null_in_json_and_counted_in_the_table(output):
    wild = "--models rnn --windows 64 --hidden 16 --start identity --learning-rate 1 --steps 2 --test-sequences 64"
    for row in strict(output("sweep", *wild.split(), "--init-seeds", "1,2", "--json")):
        assert row["test_loss"] is None
    (row,) = table_rows(output("sweep", *wild.split(), "--init-seeds", "1,2"))
    assert (row["diverged"], row["solved"]) == ("2", "0/2")


def test_a_store_that_cannot_be_written_to_is_said_and_the_results_are_printed(call, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("EXPLORER_STORE", str(tmp_path / "file"))
    status, out, err = call("sweep", *SMALL, "--json")
    assert status == 0 and len(strict(out)) == 6
    assert len(err.splitlines()) == 1 and str(tmp_path / "file") in err


# inspect


@pytest.mark.parametrize("model", [name for name, kind in MODELS.items() if kind.inside])
@pytest.mark.parametrize("task", TASKS)
def test_inspect_prints_one_run_s_table(output, model, task):
    what = MODELS[model].inside
    arguments = ("--what", what, "--model", model, "--window", 5, "--hidden", 3, "--task", task, *QUICK)
    found = strict(output("inspect", *arguments, "--init-seed", 4, "--data-seed", 11))
    assert list(found) == ["config", "rows"]
    assert RunConfig.from_dict(found["config"]) == RunConfig(
        model=model, window=5, hidden=3, task=task, steps=3, sequences=8, test_sequences=64, init_seed=4, data_seed=11
    )
    names = {"hidden": ["step", "unit", "value"], "attention": ["target", "step", "weight"]}[what]
    assert all(list(row) == names for row in found["rows"])
    places = [(row[names[0]], row[names[1]]) for row in found["rows"]]
    rows = {"hidden": 5, "attention": 5 if task == "any" else 1}[what]
    assert places == list(itertools.product(range(1, rows + 1), range(1, {"hidden": 3, "attention": 5}[what] + 1)))
    if what == "attention":
        for target in range(1, rows + 1):
            assert sum(r["weight"] for r in found["rows"] if r["target"] == target) == pytest.approx(1, abs=1e-6)


def test_inspect_shows_the_hidden_states_of_the_lesson_s_network(output):
    found = strict(output("inspect", "--what", "hidden", "--steps", 0, "--window", 32, "--init-seed", 0))
    torch_cell = torch.nn.RNN(1, 8, batch_first=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in torch_cell.parameters():  # as torch draws them after torch.manual_seed(0)
            parameter.uniform_(-(8**-0.5), 8**-0.5, generator=generator)
        states = torch_cell(sequence(RunConfig(window=32), 1)[0])[0][0]
    assert len(found["rows"]) == 32 * 8
    for row in found["rows"]:
        assert row["value"] == pytest.approx(states[row["step"] - 1, row["unit"] - 1].item(), abs=1e-6)


def test_inspect_takes_the_model_that_fits_where_none_is_named(output):
    for what, model in (("hidden", "rnn"), ("attention", "attention")):
        assert strict(output("inspect", "--what", what, *QUICK))["config"]["model"] == model


def test_inspect_shows_the_moment_asked_for(output):
    arguments = ("inspect", "--what", "attention", "--window", 6, "--sequences", 8, "--test-sequences", 64)
    start, last = (strict(output(*arguments, "--steps", steps))["rows"] for steps in (0, 30))
    assert strict(output(*arguments, "--steps", 30, "--moment", 0))["rows"] == start
    assert strict(output(*arguments, "--steps", 30, "--moment", 30))["rows"] == last
    middle = strict(output(*arguments, "--steps", 30, "--moment", int(moments(30)[9])))["rows"]
    assert middle != start and middle != last


def test_inspect_shows_the_sequence_asked_for(output):
    arguments = ("inspect", "--what", "hidden", "--window", 6, *QUICK)
    rows = {seed: strict(output(*arguments, "--sequence-seed", seed))["rows"] for seed in (1, 2)}
    assert rows[1] != rows[2]
    assert rows[1] == strict(output(*arguments))["rows"]
    assert rows[2] == strict(output(*arguments, "--sequence-seed", 2))["rows"]


def test_inspect_of_a_run_that_diverged_is_json_all_the_same(output):
    wild = "--what hidden --window 64 --hidden 16 --start identity --learning-rate 1 --steps 2 --test-sequences 64"
    rows = strict(output("inspect", *wild.split()))["rows"]
    assert None in [row["value"] for row in rows]


# store


def test_store_info_says_where_and_how_many_and_clear_removes_them(output, folder):
    assert re.search(r"Results\s+0$", output("store", "info"), re.MULTILINE)
    output("sweep", *SMALL, "--json")
    assert len(entries(folder)) == 6
    info = output("store", "info")
    assert str(folder) in info and re.search(r"Results\s+6$", info, re.MULTILINE)
    assert output("store", "clear") == "Removed 6 results.\n"
    assert entries(folder) == {}
    assert output("store", "clear") == "Removed 0 results.\n"


def test_store_info_tells_of_damaged_results(output, folder):
    output("sweep", *SMALL, "--json")
    path = next(folder.glob("*.npz"))
    path.write_bytes(path.read_bytes()[:100])
    assert main(["sweep", *SMALL, "--json"]) == 0
    assert re.search(r"Damaged\s+1 set aside", output("store", "info"))
    assert len(entries(folder)) == 6  # it was trained again


# Wrong calls

WHOLE = "whole number"
WRONG = [  # arguments, the option, the bad value, what is allowed
    ("sweep --windows 0", "windows", "0", "2 to 1024"),
    ("sweep --windows 4,1.5", "windows", "1.5", WHOLE),
    ("sweep --windows 5000", "windows", "5000", "2 to 1024"),
    ("sweep --windows abc", "windows", "abc", WHOLE),
    ("sweep --windows 4,-8", "windows", "-8", "2 to 1024"),
    ("sweep --windows=", "windows", "empty", ""),
    ("sweep --windows ,", "windows", "empty", ""),
    ("sweep --models=", "models", "empty", ""),
    ("sweep --init-seeds 10-1", "init-seeds", "10-1", "1-10"),
    ("sweep --init-seeds -3", "init-seeds", "-3", "0 to 2147483647"),
    ("sweep --init-seeds x-2", "init-seeds", "x", WHOLE),
    ("sweep --init-seeds 1-", "init-seeds", "''", WHOLE),
    ("sweep --init-seeds 0-2147483647", "init-seeds", "0-2147483647", "10000"),
    ("sweep --init-seeds 2147483648", "init-seeds", "2147483648", "0 to 2147483647"),
    ("sweep --data-seeds 1.5", "data-seeds", "1.5", WHOLE),
    ("sweep --models rnn,transformer", "model", "transformer", ", ".join(MODELS)),
    ("sweep --task last", "task", "last", ", ".join(TASKS)),
    ("sweep --hidden 65", "hidden", "65", "1 to 64"),
    ("sweep --width 0", "width", "0", "1 to 128"),
    ("sweep --sequences 0", "sequences", "0", "1 to 4096"),
    ("sweep --test-sequences 1", "test-sequences", "1", "2 to 65536"),
    ("sweep --steps -1", "steps", "-1", "0 to 5000"),
    ("sweep --steps 6e1", "steps", "6e1", WHOLE),
    ("sweep --learning-rate 0", "learning-rate", "0", "1e-06 to 1"),
    ("sweep --learning-rate nan", "learning-rate", "nan", "1e-06 to 1"),
    ("sweep --learning-rate abc", "learning-rate", "abc", "number"),
    ("sweep --learning-rate 5", "learning-rate", "5", "1e-06 to 1"),
    ("sweep --clip 0", "clip", "0", "1e-06 to 1e+06"),
    ("sweep --clip inf", "clip", "inf", "1e-06 to 1e+06"),
    ("sweep --positions foo", "positions", "foo", "learned, sinusoidal, none"),
    ("sweep --keys foo", "keys", "foo", "position, position+content"),
    ("sweep --start foo", "start", "foo", "default, orthogonal, identity, chrono"),
    ("sweep --models rnn --start chrono", "start", "chrono", "default, orthogonal, identity"),
    ("sweep --models gru --start identity", "start", "identity", "default, orthogonal, chrono"),
    ("sweep --windows 4 --curriculum 4:10", "curriculum", "10", "60"),
    ("sweep --windows 8 --curriculum 4:60", "curriculum", "4", "end at window 8"),
    ("sweep --windows 4 --curriculum 4", "curriculum", "4", "WINDOW:STEPS"),
    ("sweep --windows 4 --curriculum 4:x", "curriculum", "x", WHOLE),
    ("sweep --engine warp", "engine", "warp", "auto, reference"),
    ("sweep --sequences 4096 --windows 1024 --hidden 64 --models rnn", "sequences", "4096", "4 GB"),
    ("sweep --nonsense", "nonsense", "nonsense", ""),
    ("inspect --what thoughts", "what", "thoughts", "hidden, attention"),
    ("inspect", "what", "what", ""),
    ("inspect --what hidden --model attention --steps 0", "model", "attention", "rnn, gru, lstm"),
    ("inspect --what attention --model rnn --steps 0", "model", "rnn", "attention"),
    ("inspect --what hidden --model transformer", "model", "transformer", ", ".join(MODELS)),
    ("inspect --what hidden --window 1", "window", "1", "2 to 1024"),
    ("inspect --what hidden --window 4,8", "window", "4,8", WHOLE),
    ("inspect --what hidden --moment 1 --steps 0", "moment", "1", "0"),
    ("inspect --what hidden --moment 7 --window 4 --sequences 8", "moment", "7", ", ".join(map(str, moments(60)))),
    ("inspect --what hidden --moment -1", "moment", "-1", "0 to 5000"),
    ("inspect --what hidden --sequence-seed -1", "sequence-seed", "-1", "0 to 2147483647"),
    ("--port 0", "port", "0", "1 to 65535"),
    ("--port 65536", "port", "65536", "1 to 65535"),
    ("--port http", "port", "http", WHOLE),
    ("train", "command", "train", "lesson, sweep, inspect"),
    ("store", "action", "required", ""),
    ("store empty", "action", "empty", "info, clear"),
]


@pytest.mark.parametrize(("arguments", "option", "value", "allowed"), WRONG, ids=[wrong[0] for wrong in WRONG])
def test_a_wrong_call_is_answered_in_one_line_that_helps(call, folder, arguments, option, value, allowed):
    status, out, err = call(*arguments.split())
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.search(option.replace("-", "[-_]"), err, re.IGNORECASE)
    message = err.split(": ", 1)[1]
    assert value in message
    assert allowed in message.replace("'", "")
    assert not [word for word in ("Traceback", "Error", "float", "int ", "None") if word in message]


def test_a_file_that_cannot_be_written_is_named_before_anything_is_trained(call, folder, tmp_path):
    status, out, err = call("sweep", *SMALL, "--csv", tmp_path / "nowhere" / "runs.csv")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1 and "nowhere" in err
    assert entries(folder) == {}


@pytest.mark.parametrize("command", ["", "lesson", "sweep", "inspect", "store", "store info", "store clear"])
def test_every_command_has_help(call, command):
    status, out, err = call(*command.split(), "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: explorer")


OPTIONS = (
    "task models windows hidden width positions keys start steps learning-rate clip sequences fresh init-seeds "
    "data-seeds test-sequences test-seed engine no-store csv json"
)


def test_help_of_sweep_names_every_option_of_the_design(call):
    out = call("sweep", "--help")[1]
    assert [option for option in OPTIONS.split() if f"--{option}" not in out] == []


# The program itself, in processes of its own


@pytest.fixture
def start():
    """Starts the program with standard output and standard error piped; none is left behind."""
    begun = []

    def start(*arguments, **options):
        # The signal for Ctrl-C as a shell sets it, whatever this process makes of it.
        usual = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)} if os.name == "posix" else {}
        command = [sys.executable, "-m", "explorer", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen(command, **pipes, **usual, **options))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def ended(process):
    """(exit status, standard output, standard error) of a program that was started."""
    out, err = process.communicate(timeout=TOO_LONG)
    return process.returncode, out, err


def until_stored(count, folder, process):
    """Waits until a running sweep has stored that many runs."""
    end = time.monotonic() + TOO_LONG
    while len(entries(folder)) < count:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)


# By the plain loop, so that it takes a while.
SWEEP = ("sweep", "--models", "rnn,attention", "--windows", "4,8", "--test-sequences", "64", "--engine", "reference")


def test_a_wrong_call_of_the_program_ends_with_status_two_and_one_line(start):
    status, out, err = ended(start("sweep", "--windows", "abc", cwd="/"))
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1 and "--windows" in err


def test_two_programs_that_sweep_at_once_train_each_run_once(start, folder):
    both = [start(*SWEEP, "--init-seeds", "1-3", "--json") for _ in range(2)]
    one, other = (ended(process) for process in both)
    assert one[0] == other[0] == 0
    assert one[2] == other[2] == ""
    rows = strict(one[1])
    assert len(rows) == len(entries(folder)) == 12
    assert rows == strict(other[1])  # the seconds as well: they are those of the one training of each


def test_a_killed_sweep_keeps_its_finished_runs(start, folder, output):
    arguments = (*SWEEP, "--init-seeds", "1-6", "--json")
    process = start(*arguments)
    until_stored(3, folder, process)
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL
    kept = entries(folder)
    assert 3 <= len(kept) < 24
    configs = grid(RunConfig(test_sequences=64), ["rnn", "attention"], [4, 8], range(1, 7), [10])
    before = {config: result.seconds for config in configs if (result := Store(folder).load(config))}
    assert len(before) == len(kept)

    rows = strict(output(*arguments))
    assert len(rows) == len(entries(folder)) == 24
    assert kept.items() <= entries(folder).items()  # not a byte of them is another
    assert before.items() <= dict(zip(configs, (row["seconds"] for row in rows), strict=True)).items()
    assert not list((folder / "damaged").glob("*"))


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_sweep_stopped_by_the_user_ends_cleanly_and_says_what_is_kept(start, folder):
    # The second window takes long for each step, so that the signal comes in the middle of one.
    heavy = "--models lstm --windows 4,512 --hidden 64 --sequences 256 --init-seeds 1-9 --engine reference"
    process = start("sweep", *heavy.split())
    until_stored(1, folder, process)
    process.send_signal(signal.SIGINT)
    status, out, err = ended(process)
    assert (status, out) == (130, "")
    (count,) = re.findall(r"^Stopped: (\d+) of 18 runs are finished and are in the store\.$", err, re.MULTILINE)
    assert int(count) <= len(entries(folder)) < 18
    assert not [word for word in ("Traceback", "terminate", "Fatal") if word in err]


def test_results_of_the_program_are_found_by_the_package(output, folder):
    output("sweep", "--models", "rnn", "--windows", 4, "--init-seeds", 1, *QUICK)
    config = RunConfig(window=4, steps=3, sequences=8, test_sequences=64)
    assert Store(folder).load(config).test_loss == pytest.approx(run(config).test_loss, abs=1e-5)
