"""Stored results are found by a code version: it must go up when the code that makes results changes.

To record the code after CODE_VERSION was raised: python tests/test_code_version.py
"""

import ast
import hashlib
import io
import json
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_name("training_code.json")
WATCHED = (
    "config.py",
    "tasks.py",
    "models.py",
    "training.py",
    "engine/kernels.py",
    "engine/single.py",
    "engine/blocks.py",
    "engine/stacked.py",
)

DEPTH = {tokenize.INDENT, tokenize.DEDENT}
LAYOUT = {tokenize.NEWLINE} | DEPTH
UNREAD = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
ADVICE = """{what}
If a result may differ from before, raise CODE_VERSION in explorer/experiment.py (it is {version}), so that nobody is
shown results of the old code. Then record the code as it is now:  python tests/test_code_version.py
A change that leaves every result bit for bit as it was is recorded with:  --same-results"""


def docstring_lines(source: str) -> set[int]:
    """The lines on which docstrings stand."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                lines |= set(range(first.lineno, first.end_lineno + 1))
    return lines


def words(source: str) -> list[str]:
    """The tokens of a source that make a difference: no comments, no docstrings, no blank lines, no line breaks
    within a statement. An f-string is one token, as written, in every version of Python."""
    skipped, lines = docstring_lines(source), source.splitlines(keepends=True)
    found, depth, opened = [], 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "TSTRING_START"):
            opened = opened if depth else token.start
            depth += 1
        elif kind in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                found.append(between(lines, opened, token.end))
        elif not (depth or token.type in UNREAD or (token.start[0] in skipped and token.type not in DEPTH)):
            found.append(kind if token.type in LAYOUT else token.string)
    return found


def between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from one place to another, each given as line, from 1, and column."""
    part = lines[start[0] - 1 : end[0]]
    part[-1] = part[-1][: end[1]]
    part[0] = part[0][start[1] :]
    return "".join(part)


def digest() -> str:
    total = hashlib.sha256()
    for name in WATCHED:
        file = ROOT / "explorer" / name
        if file.exists():
            total.update("\0".join([name, *words(file.read_text(encoding="utf-8")), ""]).encode())
    return total.hexdigest()


def code_version() -> int:
    source = (ROOT / "explorer" / "experiment.py").read_text(encoding="utf-8")
    return int(re.search(r"^CODE_VERSION = (\d+)$", source, re.MULTILINE)[1])


def recorded() -> dict:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"version": 0, "digest": ""}


def test_training_code_changes_only_with_a_new_code_version():
    now, version = recorded(), code_version()
    if now["digest"] != digest():
        pytest.fail(ADVICE.format(what="The code that makes results has changed.", version=version), pytrace=False)
    if now["version"] != version:
        what = f"CODE_VERSION is {version}, and {now['version']} is recorded."
        pytest.fail(ADVICE.format(what=what, version=version), pytrace=False)


def test_the_code_version_read_here_is_the_one_that_is_used():
    from explorer.experiment import CODE_VERSION

    assert code_version() == CODE_VERSION


PROGRAM = '''"""About."""

import math


def area(radius):
    """Of a circle."""
    # known since long
    return f"{math.pi * radius ** 2:.{2}f} m²"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""About."""', '"""Something else,\n\nat length."""'),
        ('"""About."""\n', ""),
        ('    """Of a circle."""\n', ""),
        ("Of a circle", "Of a disc"),
        ("    # known since long\n", ""),
        ("import math\n", "import math  # for pi\n\n\n"),
        ("area(radius)", "area(\n    radius\n)"),
    ],
)
def test_wording_may_change_freely(old, new):
    assert old in PROGRAM
    assert words(PROGRAM.replace(old, new)) == words(PROGRAM)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("** 2", "** 3"),
        (":.{2}f", ":.{3}f"),
        (" m²", " cm²"),
        ("    return", "    if radius:\n        return"),
        ("import math", "import cmath as math"),
        ('    """Of a circle."""\n', '    pass\n    """No docstring."""\n'),
    ],
)
def test_whatever_python_acts_on_counts(old, new):
    assert old in PROGRAM
    assert words(PROGRAM.replace(old, new)) != words(PROGRAM)


def test_the_words_are_the_same_in_every_version_of_python():
    assert words(PROGRAM) == [
        "import", "math", "NEWLINE", "def", "area", "(", "radius", ")", ":", "NEWLINE", "INDENT",
        "return", 'f"{math.pi * radius ** 2:.{2}f} m²"', "NEWLINE", "DEDENT",
    ]  # fmt: skip


if __name__ == "__main__":
    before, version = recorded(), code_version()
    if before["digest"] not in ("", digest()) and before["version"] == version and "--same-results" not in sys.argv:
        sys.exit(ADVICE.format(what="Nothing recorded: CODE_VERSION is the old one.", version=version))
    RECORD.write_text(json.dumps({"version": version, "digest": digest()}, indent=2) + "\n", encoding="utf-8")
    print(f"Recorded code version {version} in {RECORD.relative_to(ROOT)}")
