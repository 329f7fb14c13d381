"""Tells results of one version of the code from those of another."""

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
ROOTS = ("training/train.py", "evaluation/judge.py", "models", "tasks")
"""Where results come from: these modules and folders, and every module of the package that they import."""
NEUTRAL = {
    "artefact",
    "errors",
    "frames",
    "kernels/gpu",
    "machine",
    "plotting",
    "data/leakage",
    "data/stats",
    "evaluation/slices",
    "logs",
    "progress",
    "settings/presets",
    "training/plan",
    "training/reporting",
    "training/run",
}
"""Modules and folders that training imports but that decide nothing: they read and write files, warn, predict and
report. The data and the complete settings are in every line of results anyway. Neither do kernels: what they compute is
said by the module beside them, and tests hold them to it."""
SKIPPED = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx", "module", "level"}
"""Fields of the syntax tree that do not decide results: types, and from where something is imported."""

IMPORT = re.compile(r"^ *(?:from|import) bert4rec\.([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)


@cache
def code_checksum(package: Path = PACKAGE) -> str:
    """A mark of the code that decides results: equal marks mean equal results from equal data, settings and seeds.

    It is computed from the syntax trees of what training and evaluation import, without comments, docstrings, messages
    and type annotations, and without the names and order of files. So formatting, rewording, or moving a definition to
    another module keeps the mark; another constant, operator, default or name changes it.
    """
    definitions = [
        hashlib.sha256(_text_of(statement).encode()).hexdigest()
        for path in decisive_modules(package)
        for statement in ast.parse(path.read_bytes()).body
        if not _is_silent(statement)
    ]
    return hashlib.sha256("".join(sorted(definitions)).encode()).hexdigest()[:12]


def decisive_modules(package: Path = PACKAGE) -> list[Path]:
    """The modules whose code decides results."""
    waiting = [path for root in ROOTS for path in _python_files(package / root)]
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in found and not _is_neutral(path.relative_to(package)):
            found.add(path)
            waiting += _imported_by(path, package)
    return sorted(found)


def _python_files(path: Path) -> list[Path]:
    return list(path.rglob("*.py")) if path.is_dir() else [path]


def _is_neutral(path: Path) -> bool:
    names = path.with_suffix("").as_posix(), path.parent.as_posix(), path.parts[0]
    return path.stem == "__init__" or not NEUTRAL.isdisjoint(names)


def _imported_by(path: Path, package: Path) -> Iterator[Path]:
    """Modules of the package that a module imports, also inside functions."""
    for module, members in IMPORT.findall(path.read_text(encoding="utf-8")):
        place = package.joinpath(*module.split("."))
        # A member may be a module itself: `from bert4rec.tasks import ranking_losses`.
        places = [place, *(place / name for name in re.findall(r"\w+", members))]
        yield from (each for each in (place.with_suffix(".py") for place in places) if each.is_file())


def _text_of(node: object) -> str:
    """What a part of a syntax tree does, as text, without what only people read."""
    if isinstance(node, list):
        return ",".join([_text_of(each) for each in node if not _is_silent(each)])
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant | ast.JoinedStr) and _is_message(node):
        return "message"
    name, values = type(node).__name__, node.__dict__
    fields = [
        f"{field}={_text_of(values[field])}"
        for field in node._fields
        if field not in SKIPPED and values.get(field) not in (None, [])
    ]
    return f"{name}({';'.join(fields)})"


def _is_silent(node: object) -> bool:
    """Whether a statement does nothing: a docstring, or an import of things under their own names."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return not any(each.asname for each in node.names)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return False


def _is_message(node: ast.expr) -> bool:
    """Whether it is text of several words: messages have spaces, while names, keys and options have none."""
    if isinstance(node, ast.JoinedStr):
        return any(map(_is_message, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(re.search(r"\w\W*\s\W*\w", node.value))
    return False
