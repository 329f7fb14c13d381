"""The shape of the code: imports point one way, heavy libraries load late, files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "bert4rec"
MODULES = sorted(PACKAGE.rglob("*.py"))
OLDER = Path(__file__).parent / "older"
"""A dataset, a run and an exported model."""

BASE = {"errors", "artefact", "frames", "extras", "machine", "progress"}
DATA = {*BASE, "plotting", "logs", "data"}
LEARNING = {*DATA, "settings", "kernels", "models", "tasks", "evaluation"}
MAY_IMPORT = {
    "errors": set(),
    "artefact": {"errors", "machine"},
    "plotting": {"errors"},
    "frames": {"errors"},
    "pages": set(),
    "extras": {"errors"},
    "machine": set(),
    "progress": set(),
    "logs": BASE,
    "data": {*BASE, "plotting", "logs"},
    "world": DATA,
    "settings": DATA,
    "sources": {*DATA, "world"},
    "kernels": set(),
    "models": {*DATA, "settings", "kernels"},
    "tasks": {*DATA, "settings", "kernels", "models"},
    "evaluation": DATA,
    "distributed": LEARNING,
    "training": {*LEARNING, "distributed"},
    "budget": {*LEARNING, "training"},
    "recommend": DATA,
    "export": {*LEARNING, "training", "recommend"},
    "spark": {*DATA, "recommend"},
    "store": DATA,
    "service": {*DATA, "recommend", "store"},
    "tuning": {*LEARNING, "training", "budget"},
    "api": {
        *LEARNING,
        "distributed",
        "sources",
        "world",
        "training",
        "budget",
        "recommend",
        "export",
        "spark",
        "store",
        "service",
    },
    "production": {*LEARNING, "training", "recommend", "export", "store", "api"},
    "automatic": {*LEARNING, "pages", "training", "budget", "api"},
    "demo": {*LEARNING, "pages", "world", "training", "export"},
    "paper": {*LEARNING, "pages", "sources", "world", "training", "api"},
}
"""Part → parts it may import. The command line, which only parses, calls and prints, may import all of them."""

TORCH_PATH = {
    "recommend/torch_engine.py": {"models", "training"},
    "recommend/run_engine.py": {"models", "training"},
    "training/run.py": {"export", "recommend"},
    "api/bench.py": set(),
    "api/peers.py": set(),
    "api/timing.py": set(),
}
"""What a service never loads: it may import more, and torch at the top. `Run.export()` leads on to a later stage."""

HEAVY = {
    "torch",
    "polars",
    "matplotlib",
    "pydantic",
    "mlflow",
    "tensorboard",
    "onnxruntime",
    "optuna",
    "pandas",
    "pyarrow",
    "pyspark",
    "faiss",
    "scipy",
    "transformers",
}
MAY_LOAD_AT_ONCE = {
    "kernels": {"torch"},
    "models": {"torch"},
    "tasks": {"torch"},
    "settings": {"pydantic"},
    "training": {"torch"},
    "tuning": {"torch", "optuna"},
    "budget": {"torch"},
    "distributed": {"torch"},
    "export": {"torch"},
    "paper": {"torch"},
    "service": {"pydantic"},
}
"""Part → heavy libraries its modules may import at the top."""

LONGEST_FILE = 400
MOST_MODULES = 14
LONGEST = {"models/bert4rec.py": 200}


SEAMS = (
    "models/model.py:SequentialModel",
    "models/model.py:SequenceEncoder",
    "models/model.py:ModelScorer",
    "models/attention.py:Layout",
    "models/history_batch.py:HistoryBatch",
    "settings/networks.py:ModelSettings",
    "settings/objectives.py:ObjectiveSettings",
    "tasks/task.py:Task",
    "tasks/task.py:TaskKind",
    "training/reporting/watch.py:Listener",
    "recommend/engine.py:Engine",
)
"""File and class of each protocol that others may implement."""


BY_CONTRACT = (
    "evaluation/judge.py",
    "export/",
    "models/",
    "recommend/run_engine.py",
    "recommend/torch_engine.py",
    "settings/",
    "tasks/",
    "training/",
)
"""Where models, tasks and settings are used: what they have is declared, not looked for."""


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


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["--help"], set()),
        (["prepare", "--help"], set()),
        (["train", "--help"], set()),
        (["tune", "--help"], set()),
        (["auto", "--help"], set()),
        (["stats", str(OLDER / "dataset")], set()),
        (["recommend", str(OLDER / "model"), "--force", "--history", "1006"], {"onnxruntime"}),
        (["recommend", str(OLDER / "bert4rec"), "--history", "1006"], {"torch", "polars", "pydantic"}),
    ],
)
def test_a_command_loads_the_heavy_libraries_that_it_needs_and_no_other(
    command: list[str], needed: set[str]
) -> None:
    assert loaded_by(f"from bert4rec.cli import app; app({command!r})") & HEAVY == needed


def test_the_list_of_commands_needs_neither_numpy_nor_a_parser_of_markdown() -> None:
    loaded = loaded_by("from bert4rec.cli import app; app(['--help'])")
    assert not loaded & {"numpy", "rich.markdown", "markdown_it"}


def test_recommending_from_a_run_leaves_out_what_torch_has_to_compile_and_to_export() -> None:
    """Its compiler takes as long to load as all the rest of torch, and one decorator is enough to load it."""
    command = ["recommend", str(OLDER / "bert4rec"), "--history", "1006"]
    loaded = loaded_by(f"from bert4rec.cli import app; app({command!r})")
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "bert4rec.export"}


def test_the_package_itself_loads_nothing_but_the_standard_library() -> None:
    before, loaded = loaded_by(""), loaded_by("import bert4rec")
    assert {name.split(".")[0] for name in loaded - before} - sys.stdlib_module_names == {"bert4rec"}


def loaded_by(program: str) -> set[str]:
    """The modules that a program loads, in a process of its own."""
    lines = [
        "import sys",
        "try:",
        f"    {program or 'pass'}",
        "except SystemExit as end:",
        "    assert not end.code, end.code",
        "print(*sys.modules, file=sys.stderr)",
    ]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(run.stderr.splitlines()[-1].split())


def test_files_stay_small_enough_to_read() -> None:
    for module in MODULES:
        name = name_of(module)
        lines = module.read_text().count("\n")
        assert lines <= LONGEST.get(name, LONGEST_FILE), f"{name} has {lines} lines"


def test_folders_hold_few_enough_modules_to_know_them_by_name() -> None:
    for folder in {module.parent for module in MODULES}:
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, f"{folder} holds {len(modules)} modules"


def test_no_two_modules_have_one_name() -> None:
    names = [module.stem for module in MODULES if not module.stem.startswith("__")]
    assert not {name for name in names if names.count(name) > 1}


def test_the_library_never_imports_the_reproduction_of_the_paper_or_the_command_line() -> None:
    for module in MODULES:
        if part_of(module) not in ("paper", "cli", "__main__"):
            imported = imports_of(ast.parse(module.read_text()))
            assert not [name for name in imported if name.startswith(("bert4rec.paper", "bert4rec.cli"))], (
                module
            )


@pytest.mark.parametrize("place", SEAMS)
def test_nothing_is_typed_any_where_people_extend(place: str) -> None:
    """A model, a task or an engine of one's own is checked by mypy as ours are."""
    path, _, name = place.partition(":")
    tree = ast.parse((PACKAGE / path).read_text())
    (seam,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    assert "Any" not in {node.id for node in ast.walk(seam) if isinstance(node, ast.Name)}


def test_no_model_is_told_by_its_class_or_by_what_it_happens_to_have() -> None:
    """Outside its own file: whatever differs between models is part of their contract."""
    models = {
        node.name
        for module in (PACKAGE / "models").glob("*.py")
        if module.name != "model.py"
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id in ("isinstance", "issubclass") and part_of(module) != "models":
                named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                assert not named & models, module
            if node.func.id in ("hasattr", "getattr") and name_of(module).startswith(BY_CONTRACT):
                assert not isinstance(node.args[1], ast.Constant), f"{module} asks for {node.args[1]}"
