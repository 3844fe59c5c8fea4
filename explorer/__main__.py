"""The command line: python -m explorer [COMMAND]. Without a command it opens the app."""

from __future__ import annotations

import argparse
import csv
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from explorer.config import CHOICES, RANGES, RunConfig

EXIT_USAGE, EXIT_STOPPED = 2, 130


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


# Argument types. Each raises ArgumentTypeError with a sentence that says what is wrong.


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def within(name: str) -> Callable[[str], int]:
    low, high = RANGES[name]

    def parse(text: str) -> int:
        value = whole(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not from {low} to {high}")
        return value

    return parse


def listed(parse: Callable) -> Callable[[str], list]:
    def parse_all(text: str) -> list:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise argparse.ArgumentTypeError("the list is empty")
        return list(dict.fromkeys(value for item in items for value in parse(item)))

    return parse_all


def seed_range(text: str) -> list[int]:
    parse = within("init_seed")
    first, dash, last = text.partition("-")
    if not dash or not first:
        return [parse(text)]
    low, high = parse(first), parse(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text} runs backwards; write {high}-{low}")
    if high - low >= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is more than 10000 seeds")
    return list(range(low, high + 1))


def curriculum(text: str) -> tuple[tuple[int, int], ...]:
    stages = [stage.split(":") for stage in text.split(",")]
    if any(len(stage) != 2 for stage in stages):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of WINDOW:STEPS, such as 4:200,8:200")
    return tuple((whole(window), whole(steps)) for window, steps in stages)


def port_number(text: str) -> int:
    value = whole(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is not from 1 to 65535")
    return value


def repeat_count(text: str) -> int:
    value = whole(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{value} is not from 1 to 100")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status is 0, 2 for a wrong call, 130 where stopped by the user."""
    if sys.stdout is not None and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program quietly
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        return options.command(options) or 0
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"{parser.prog}: {what}", file=sys.stderr)
        return EXIT_USAGE
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt as stop:
        print(stop if stop.args else "Stopped.", file=sys.stderr)
        return EXIT_STOPPED


def build_parser() -> Parser:
    parser = Parser(prog="explorer", description="Why attention? Trains small models and shows what they keep.")
    parser.set_defaults(command=open_app)
    add_app_options(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def command(name: str, function: Callable, help: str) -> Parser:
        sub = commands.add_parser(name, help=help, description=capital(help))
        sub.set_defaults(command=function)
        return sub

    command("lesson", lesson, "prints the lesson's numbers, computed now")

    sub = command("sweep", sweep, "trains models at several windows and prints a row for each model and window")
    add_run_options(sub)
    sub.add_argument(
        "--models",
        type=listed(lambda name: [name]),
        default="rnn,attention,mean",
        metavar="NAMES",
        help="of rnn, gru, lstm, attention, mean, constant; default %(default)s",
    )
    sub.add_argument(
        "--windows",
        type=listed(lambda text: [within("window")(text)]),
        default="4,8,16,32,64,128",
        metavar="LIST",
        help="steps in a sequence, each 2 to 1024; default %(default)s",
    )
    sub.add_argument(
        "--init-seeds",
        type=listed(seed_range),
        default="1-10",
        metavar="SEEDS",
        help="of the starting weights, such as 1-10 or 1,5; default %(default)s",
    )
    sub.add_argument(
        "--data-seeds",
        type=listed(seed_range),
        default="10",
        metavar="SEEDS",
        help="of the training sequences; default %(default)s",
    )
    sub.add_argument("--csv", type=Path, metavar="FILE", help="also write a row for each run to this file")
    sub.add_argument("--json", action="store_true", help="print a list with an object for each run instead")

    sub = command("inspect", inspect, "looks inside one run and prints a table as JSON")
    add_run_options(sub)
    sub.add_argument("--what", required=True, choices=["hidden", "attention"])
    sub.add_argument("--model", help="default: rnn for hidden, attention for attention")
    sub.add_argument(
        "--window", type=within("window"), default=RunConfig.window, metavar="N", help="default %(default)s"
    )
    sub.add_argument(
        "--init-seed", type=within("init_seed"), default=RunConfig.init_seed, metavar="N", help="default %(default)s"
    )
    sub.add_argument(
        "--data-seed", type=within("data_seed"), default=RunConfig.data_seed, metavar="N", help="default %(default)s"
    )
    sub.add_argument("--moment", type=within("steps"), metavar="STEP", help="training step; default: the last")
    sub.add_argument("--sequence-seed", type=within("init_seed"), default=1, help="draws the sequence shown")

    sub = command("bench", bench, "measures how much faster the engine is than the plain loop; takes minutes")
    sub.add_argument("--repeats", type=repeat_count, default=5, help="default 5")
    sub.add_argument("--json", action="store_true", help="print every measurement as JSON")

    store = command("store", store_info, "looks at the stored results, or removes them")
    actions = store.add_subparsers(metavar="ACTION", parser_class=Parser, required=True)
    for name, function, help in (
        ("info", store_info, "says where the results are and how many there are"),
        ("clear", store_clear, "removes all stored results"),
    ):
        actions.add_parser(name, help=help, description=capital(help)).set_defaults(command=function)
    return parser


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] + "."


def add_app_options(parser: Parser) -> None:
    parser.add_argument("--port", type=port_number, default=8501, help="default 8501")
    parser.add_argument("--address", default="localhost", help="default localhost: this machine alone can open the app")
    parser.add_argument("--no-browser", action="store_true", help="only start the server")


def add_run_options(parser: Parser) -> None:
    defaults = RunConfig()
    parser.add_argument("--task", default=defaults.task, help="first or any; default first")
    for name in ("hidden", "width", "steps", "sequences", "test_sequences", "test_seed"):
        low, high = RANGES[name]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=within(name),
            default=getattr(defaults, name),
            metavar="N",
            help=f"{low} to {high}; default %(default)s",
        )
    for name, allowed in CHOICES.items():
        about = {"positions": "of attention", "keys": "of attention", "start": "starting weights of recurrent models"}[
            name
        ]
        parser.add_argument(
            f"--{name}", choices=allowed, default=getattr(defaults, name), help=f"{about}; default %(default)s"
        )
    parser.add_argument(
        "--learning-rate",
        type=number,
        default=defaults.learning_rate,
        metavar="RATE",
        help="up to 1; default %(default)s",
    )
    parser.add_argument("--clip", type=number, metavar="NORM", help="largest gradient norm; default: no clipping")
    parser.add_argument("--fresh", action="store_true", help="draw new training sequences at every step")
    parser.add_argument(
        "--curriculum",
        type=curriculum,
        default=(),
        metavar="WINDOW:STEPS,…",
        help="windows trained one after the other; the steps add up to --steps",
    )
    parser.add_argument(
        "--engine", choices=["auto", "reference"], default="auto", help="reference: the plain loop in any case"
    )
    parser.add_argument("--no-store", action="store_true", help="neither read nor write stored results")


def base_config(options: argparse.Namespace, **fields) -> RunConfig:
    """The config of the options that `add_run_options` made."""
    names = ("task", "hidden", "width", "steps", "sequences", "test_sequences", "test_seed", "learning_rate", "clip")
    names += ("fresh", "curriculum", *CHOICES)
    return RunConfig(**{name: getattr(options, name) for name in names} | fields)


def check_address(address: str, port: int) -> None:
    """Raises ValueError where a server could not listen there."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except socket.gaierror:
        raise ValueError(f"--address {address!r} is not known; localhost is this machine alone") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"--port {port} is taken; choose another") from None
        raise ValueError(f"--address {address!r} with --port {port}: {error.strerror}") from None


def open_app(options: argparse.Namespace) -> int:
    check_address(options.address, options.port)
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "streamlit", "run", str(root / "explorer" / "app.py")]
    command += ["--server.port", str(options.port), "--server.address", options.address]
    command += ["--server.headless", "true" if options.no_browser else "false"]
    os.chdir(root)  # where the theme is
    if os.name == "posix":
        os.execv(command[0], command)
    return subprocess.call(command)


def lesson(options: argparse.Namespace) -> None:
    import torch

    from explorer.experiment import restore, run
    from explorer.measures import sequence

    mse = torch.nn.functional.mse_loss

    untrained = run(RunConfig(window=32, hidden=8, init_seed=0, steps=0, test_sequences=64))
    inputs, _ = sequence(untrained.config, seed=0)
    states, last = restore(untrained).cell(inputs)
    print(f"Steps read: {states.shape[1]}")
    print(f"Final hidden state shape: {tuple(last.shape)}")

    values = torch.tensor([0.80, 0.10, 0.40, 0.20])
    first, mean = values[0], values.mean()
    print(f"Mean guess: {mean:.4f} - squared error: {mse(mean, first):.4f}")
    picked = torch.tensor([1.0, 0.0, 0.0, 0.0]) @ values
    print(f"Picked by weights: {picked:.2f} - squared error: {mse(picked, first):.4f}")

    for model, window, label in (("rnn", 5, "RNN"), ("rnn", 32, "RNN"), ("mean", 32, "averaging")):
        result = run(RunConfig(model=model, window=window, test_sequences=64))
        print(f"Window {window} - {label} loss: {result.test_loss:.4f}")


def trained(configs: Sequence[RunConfig], options: argparse.Namespace) -> list:
    """The results of the configs, from the store or trained now, behind a progress bar."""
    from tqdm import tqdm

    from explorer import engine
    from explorer.experiment import run
    from explorer.jobs import Pool
    from explorer.store import open_store

    store = open_store(enabled=not options.no_store)
    if store.warning:
        print(store.warning, file=sys.stderr)
    reference = options.engine == "reference"
    if not reference:
        engine.prepare()
    request = Pool(store, run=partial(run, reference=reference)).submit(configs)
    with tqdm(total=len(configs), desc="Training", unit="run", disable=None, leave=False) as bar:
        try:
            while not request.finished:
                request.wait(0.2)
                bar.update(request.ended - bar.n)
        except KeyboardInterrupt:
            request.cancel()
            kept = "" if options.no_store else " and are in the store"
            finished = f"{len(request.results)} of {len(configs)} runs are finished{kept}"
            raise KeyboardInterrupt(f"Stopped: {finished}.") from None
    if request.errors:
        raise ValueError(" ".join(request.errors))
    if request.lost:
        raise ValueError(f"{len(configs) - len(request.results)} of {len(configs)} runs ended early; start it again")
    return request.results


def sweep(options: argparse.Namespace) -> None:
    from explorer.experiment import grid
    from explorer.measures import levels_table, runs_table, summary_table
    from explorer.models import MODELS

    base = base_config(options, window=options.windows[0])
    if options.csv:
        options.csv.open("a").close()  # a file that cannot be written is better known before the training
    results = trained(grid(base, options.models, options.windows, options.init_seeds, options.data_seeds), options)
    rows = [result.to_dict() for result in results]
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if options.json:
        print(json.dumps(rows, indent=1, allow_nan=False))
        return
    table = summary_table(runs_table(results))
    forms = levels_table(base, options.windows).pivot(index="window", columns="key", values="value")
    table = table.join(forms.add_prefix("closed form: "), on="window")
    table["solved"] = [
        f"{round(share * runs)} of {runs}" for share, runs in zip(table["solved"], table["runs"], strict=True)
    ]
    table = table.drop(columns=["label", "runs", "seconds"] + ([] if table["diverged"].any() else ["diverged"]))
    table["parameters"] = [
        count if MODELS[name].reads else "–" for name, count in zip(table["model"], table["parameters"], strict=True)
    ]
    print(table.to_string(index=False, float_format="%.4f"))


def inspect(options: argparse.Namespace) -> None:
    import numpy as np

    from explorer import measures

    table_of = {"hidden": measures.hidden_table, "attention": measures.attention_table}[options.what]
    model = options.model or {"hidden": "rnn", "attention": "attention"}[options.what]
    config = base_config(
        options, model=model, window=options.window, init_seed=options.init_seed, data_seed=options.data_seed
    )
    result = trained([config], options)[0]
    inputs, _ = measures.sequence(config, options.sequence_seed)
    table = table_of(result, inputs, measures.moment_at(result, options.moment))
    table = table.astype(object).where(np.isfinite(table), None)  # a run that diverged has numbers that JSON has not
    print(json.dumps({"config": config.to_dict(), "rows": table.to_dict("records")}, indent=1, allow_nan=False))


def bench(options: argparse.Namespace) -> None:
    from explorer.bench import bench as measure

    report = measure(options.repeats, listen=lambda line: print(line, file=sys.stderr))
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"Times faster than the plain loop, {options.repeats} repeats")
    print(f"{'workload':<12}{'lowest':>8}{'median':>8}{'highest':>9}   largest difference in test loss")
    for name, ratio in report["ratio"].items():
        difference = report["difference"][name]
        print(f"{name:<12}{ratio['min']:8.0f}{ratio['median']:8.0f}{ratio['max']:9.0f}   {difference:.0e}")
    cold = {part: seconds["median"] for part, seconds in report["cold"].items()}
    print("A fresh process with its kernels on disk finishes the default workload in {total:.1f} s:".format(**cold))
    print("  {import:.1f} s imports, {prepare:.1f} s kernels, {train:.1f} s training".format(**cold))
    if "unavailable" in report["jax"]:
        print("jax: not measured, " + report["jax"]["unavailable"])
    else:
        print("The rnn workload takes jax, warm, {median:.1f} times as long".format(**report["jax"]["ratio to engine"]))


def store_info(options: argparse.Namespace) -> None:
    from explorer.store import open_store

    info = open_store().info()
    if info["warning"]:
        print(info["warning"], file=sys.stderr)
    print(f"Folder   {info['folder'] or 'none: results are kept in memory only'}")
    print(f"Results  {info['entries']}")
    print(f"Size     {info['bytes'] / 1e6:.1f} MB of at most {info['cap'] / 1e6:.0f} MB")
    if info["damaged"]:
        print(f"Damaged  {info['damaged']} set aside")


def store_clear(options: argparse.Namespace) -> None:
    from explorer.store import open_store

    print(f"Removed {open_store().clear()} results.")


if __name__ == "__main__":
    logging.lastResort = logging.NullHandler()  # what a user should know is printed
    status = main()
    if status == EXIT_STOPPED:
        # Threads may be in the middle of a training step, where an orderly exit would have to wait for them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
