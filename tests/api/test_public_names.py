"""What `import bert4rec` offers: these names, typed and documented, and nothing loaded before it is used."""

import inspect
import subprocess
import sys

import bert4rec

FUNCTIONS = {
    "ab",
    "auto",
    "backtest",
    "compare",
    "list_models",
    "list_presets",
    "list_settings",
    "load",
    "prepare",
    "refresh",
    "register",
    "serve",
    "train",
    "tune",
}
CLASSES = {
    "ABTest",
    "AutoResult",
    "Backtest",
    "Comparison",
    "Contribution",
    "Dataset",
    "Evaluation",
    "Explanation",
    "Item",
    "ModelSettings",
    "Recommendation",
    "Recommendations",
    "Recommender",
    "Refreshed",
    "Run",
    "SequenceEncoder",
    "SequentialModel",
    "Setting",
    "SplitSpec",
    "Trained",
    "TrainingHistory",
    "TrainingStatus",
    "Tuning",
    "TuningTrial",
    "UserRanks",
    "Verdict",
}
ERRORS = {"Bert4RecError", "DataError", "NotFoundError", "UsageError"}


def test_the_public_names_are_these() -> None:
    """Whoever adds or removes one changes what others rely on, and says so in the changelog."""
    assert set(bert4rec.__all__) == FUNCTIONS | CLASSES | ERRORS | {"__version__"}
    assert dir(bert4rec) == sorted(bert4rec.__all__)


def test_every_name_is_there_and_says_what_it_is() -> None:
    for name in set(bert4rec.__all__) - {"__version__"}:
        documented = inspect.getdoc(getattr(bert4rec, name))
        assert documented and len(documented) > 20, name
    for name in FUNCTIONS:
        parameters = inspect.signature(getattr(bert4rec, name)).parameters.values()
        assert all(each.annotation is not inspect.Parameter.empty for each in parameters), name


def test_importing_loads_nothing_heavy() -> None:
    heavy = ["torch", "polars", "pydantic", "numpy", "scipy", "rich", "cyclopts", "pandas", "pyarrow"]
    program = f"import bert4rec, sys; print(sorted(set({heavy!r}) & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bert4rec, "predict")
