"""The shape of the code: imports point one way, heavy libraries load late, files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "bert4rec"
MODULES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "artefact", "frames"}
DATA = {*BASE, "plotting", "logs", "data"}
LEARNING = {*DATA, "models", "tasks", "evaluation"}
MAY_IMPORT = {
    "errors": set(),
    "artefact": {"errors"},
    "plotting": {"errors"},
    "frames": {"errors"},
    "pages": set(),
    "logs": BASE,
    "data": {*BASE, "plotting", "logs"},
    "world": DATA,
    "sources": {*DATA, "world"},
    "models": DATA,
    "tasks": {*DATA, "models"},
    "evaluation": DATA,
    "training": {*LEARNING, "world"},
    "recommend": DATA,
    "export": {*LEARNING, "training", "recommend"},
    "service": {*DATA, "recommend"},
    "api": {*LEARNING, "sources", "world", "training", "recommend", "export", "service"},
    "demo": {*LEARNING, "pages", "world", "training", "export"},
    "paper": {*LEARNING, "pages", "sources", "world", "training"},
}
"""Part → parts it may import. The command line, which only parses, calls and prints, may import all of them."""

TORCH_PATH = {
    "recommend/torch_engine.py": {"models", "tasks", "training"},
    "recommend/known_users.py": {"training"},
}
"""What a service never loads: it may import more, and torch at the top."""

HEAVY = {"torch", "polars", "matplotlib", "pydantic", "mlflow", "tensorboard", "onnxruntime", "fastapi"}
MAY_LOAD_AT_ONCE = {
    "models": {"torch"},
    "tasks": {"torch"},
    "training": {"torch", "pydantic"},
    "export": {"torch"},
    "demo": {"torch"},
    "paper": {"torch"},
    "service": {"pydantic", "fastapi"},
}
"""Part → heavy libraries its modules may import at the top."""

LONGEST_FILE = 400
LONGEST = {"models/bert4rec.py": 200}


def name_of(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


def part_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def imports_at_the_top(tree: ast.Module) -> set[str]:
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imports_of(ast.Module(body=list(statements), type_ignores=[]))


def test_imports_point_one_way() -> None:
    for module in MODULES:
        part = part_of(module)
        if part in ("cli", "__init__", "__main__"):
            continue
        ours = {
            name.split(".")[1]
            for name in imports_of(ast.parse(module.read_text()))
            if name.startswith("bert4rec.")
        }
        allowed = MAY_IMPORT[part] | TORCH_PATH.get(name_of(module), set()) | {part}
        assert ours <= allowed, f"{module} imports {ours - allowed}"


def test_heavy_libraries_are_imported_where_they_are_needed() -> None:
    for module in MODULES:
        loaded = {name.split(".")[0] for name in imports_at_the_top(ast.parse(module.read_text()))}
        allowed = {"torch"} if name_of(module) in TORCH_PATH else MAY_LOAD_AT_ONCE.get(part_of(module), set())
        assert not (loaded & HEAVY) - allowed, f"{module} imports {loaded & HEAVY - allowed} at the top"


@pytest.mark.parametrize("command", [["--help"], ["prepare", "--help"], ["train", "--help"]])
def test_help_loads_no_heavy_library(command: list[str]) -> None:
    program = f"""
import sys
from bert4rec.cli import app
try:
    app({command!r})
except SystemExit:
    pass
print(sorted(set({sorted(HEAVY)!r}) & set(sys.modules)), file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr == "[]\n"


def test_files_stay_small_enough_to_read() -> None:
    for module in MODULES:
        name = name_of(module)
        lines = module.read_text().count("\n")
        assert lines <= LONGEST.get(name, LONGEST_FILE), f"{name} has {lines} lines"
