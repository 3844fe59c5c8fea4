"""The code leans one way only: each module imports what it may rest on, and nothing above it.

config ← tasks | models ← training ← engine ← experiment ← store ← jobs ← ui ← app, pages

measures, findings, diagnosis and takeaway take results; figures takes tables. A module that is not named here is a
plain one: it imports nothing of the package but config and other plain ones, and all but config may import it.
"""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

COMPUTE = {"config", "tasks", "models", "training"}
RESULTS = {"measures", "findings", "diagnosis", "takeaway"}
SHOWN = COMPUTE | RESULTS | {"engine", "experiment", "store", "jobs", "figures", "ui"}
MAY_IMPORT = {
    "explorer": set(),
    "config": set(),
    "tasks": {"config"},
    "models": {"config"},
    "training": {"config", "tasks", "models"},
    "engine": COMPUTE | {"engine"},
    "experiment": COMPUTE | {"engine"},
    "store": COMPUTE | {"experiment"},
    "jobs": COMPUTE | {"engine", "experiment", "store"},
    **{name: COMPUTE | {"experiment"} | RESULTS - {name} for name in RESULTS},
    "figures": {"config"},
    "ui": SHOWN,
    "app": SHOWN,
    "pages": SHOWN,
    "bench": COMPUTE | {"engine", "experiment"},
    "__main__": SHOWN - {"ui"} | {"bench"},
}
NAMED = set(MAY_IMPORT)
WITH_STREAMLIT = {"ui", "app", "pages"}

FILES = sorted([*(ROOT / "explorer").rglob("*.py"), *(ROOT / "pages").rglob("*.py")])


def part(dotted: str) -> str:
    """The part of the design that a module belongs to: its name, or that of its folder."""
    names = dotted.split(".")
    if names[0] == "explorer":
        return names[1] if len(names) > 1 else "explorer"
    return names[0]


def dotted(file: Path) -> str:
    names = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(source: str, module: str, package: bool = False) -> set[str]:
    """Full names of all modules that a source imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + package]
                base = ".".join([*parents, base] if base else parents)
            # "from explorer import tasks" imports a module, "from explorer.tasks import TASKS" a name of one.
            found |= {f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in node.names}
    return found


def imported(file: Path) -> set[str]:
    return imports(file.read_text(encoding="utf-8"), dotted(file), file.name == "__init__.py")


def inside(names: set[str]) -> set[str]:
    """The parts of this project among imported modules."""
    return {part(name) for name in names if name.split(".")[0] in ("explorer", "pages")}


def outside(names: set[str]) -> set[str]:
    """The packages of others among imported modules."""
    return {name.split(".")[0] for name in names} - {"explorer", "pages"}


def of_part(name: str) -> list[Path]:
    return [file for file in FILES if part(dotted(file)) == name]


every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())


def test_the_rule_reads_every_way_of_importing():
    source = """
import numpy as np
import explorer.store
from explorer import tasks, nothing
from explorer.models import MODELS
from . import config
from .ui import anything
def later():
    from streamlit import session_state
"""
    found = {"numpy", "explorer.store", "explorer.tasks", "explorer", "explorer.models", "explorer.config"}
    assert imports(source, "explorer.jobs") == found | {"explorer.ui", "streamlit"}
    assert imports("from . import config", "explorer", package=True) == {"explorer.config"}
    assert imports("from .. import config", "explorer.ui.work") == {"explorer.config"}
    assert inside({"explorer.ui.work", "explorer.tasks", "numpy"}) == {"ui", "tasks"}
    assert outside({"explorer.ui.work", "plotly.graph_objects"}) == {"plotly"}


def test_there_is_something_to_read():
    assert {"config", "tasks", "models", "training", "experiment"} <= {part(dotted(file)) for file in FILES}


@every_file
def test_a_module_imports_only_what_it_may_rest_on(file):
    here = part(dotted(file))
    plain = {part(dotted(other)) for other in FILES} - NAMED
    allowed = MAY_IMPORT.get(here, {"config"}) | ({here} if here in ("ui", "engine") else set())
    if here != "config":
        allowed |= plain
    wrong = inside(imported(file)) - allowed
    assert not wrong, f"{dotted(file)} may import {sorted(allowed)}, not {sorted(wrong)}"


def test_no_module_rests_on_itself_by_a_detour():
    graph = {dotted(file): {name for name in imported(file) if name.startswith("explorer.")} for file in FILES}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError where there is a circle
    assert set(graph) <= set(order)


def test_config_imports_only_the_standard_library():
    for file in of_part("config"):
        assert outside(imported(file)) <= sys.stdlib_module_names
        assert not inside(imported(file))


def test_tasks_and_models_never_import_each_other():
    assert not any("models" in inside(imported(file)) for file in of_part("tasks"))
    assert not any("tasks" in inside(imported(file)) for file in of_part("models"))


@every_file
def test_only_the_app_its_parts_and_its_pages_import_streamlit(file):
    assert "streamlit" not in outside(imported(file)) or part(dotted(file)) in WITH_STREAMLIT


@every_file
def test_only_figures_imports_plotly(file):
    assert "plotly" not in outside(imported(file)) or part(dotted(file)) == "figures"


def test_figures_draw_without_torch_and_without_streamlit():
    for file in of_part("figures"):
        assert not outside(imported(file)) & {"torch", "streamlit"}


@every_file
def test_no_module_hides_one_of_the_standard_library_or_an_installed_one(file):
    # Streamlit puts the script's own folder first on the import path.
    hidden = set(sys.stdlib_module_names) | outside(set().union(*map(imported, FILES)))
    assert file.stem not in hidden - {"__main__", "__future__"}
