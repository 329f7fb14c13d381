"""Sequential recommendation: from a log of who did what to what comes next.

    dataset = bert4rec.prepare(log, user="user_id", item="item_id", time="ts")
    run = bert4rec.train(dataset, "run")
    bert4rec.load(run).recommend(["a", "b"], k=10)

Everything is loaded when it is first used: the import itself takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert4rec.api.ab import ABTest, ab
    from bert4rec.api.backtest import Backtest, backtest
    from bert4rec.api.comparison import Comparison
    from bert4rec.api.datasets import prepare
    from bert4rec.api.runs import compare, load, train
    from bert4rec.automatic.auto import AutoResult, auto
    from bert4rec.data.dataset import Dataset
    from bert4rec.data.splits import SplitSpec
    from bert4rec.data.trained import Trained
    from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError
    from bert4rec.evaluation.judge import Evaluation, UserRanks
    from bert4rec.models.model import SequenceEncoder, SequentialModel
    from bert4rec.production.refresh import Refreshed, refresh
    from bert4rec.production.successor import Verdict
    from bert4rec.recommend.answers import Contribution, Explanation, Item, Recommendation, Recommendations
    from bert4rec.recommend.recommender import Recommender
    from bert4rec.service import serve
    from bert4rec.settings.config import Setting, list_settings
    from bert4rec.settings.networks import ModelSettings
    from bert4rec.settings.presets import list_presets
    from bert4rec.settings.sections import list_models
    from bert4rec.training.reporting.progress_log import TrainingHistory
    from bert4rec.training.reporting.watch import TrainingStatus
    from bert4rec.training.run import Run
    from bert4rec.training.specs import register
    from bert4rec.tuning.outcome import Tuning, TuningTrial
    from bert4rec.tuning.tune import tune

__version__ = "0.1.0"

_PLACES = {
    "ABTest": "api.ab",
    "AutoResult": "automatic.auto",
    "Backtest": "api.backtest",
    "Bert4RecError": "errors",
    "Comparison": "api.comparison",
    "Contribution": "recommend.answers",
    "DataError": "errors",
    "Dataset": "data.dataset",
    "Evaluation": "evaluation.judge",
    "Explanation": "recommend.answers",
    "Item": "recommend.answers",
    "ModelSettings": "settings.networks",
    "NotFoundError": "errors",
    "Recommendation": "recommend.answers",
    "Recommendations": "recommend.answers",
    "Recommender": "recommend.recommender",
    "Refreshed": "production.refresh",
    "Run": "training.run",
    "SequenceEncoder": "models.model",
    "SequentialModel": "models.model",
    "Setting": "settings.config",
    "SplitSpec": "data.splits",
    "Trained": "data.trained",
    "TrainingHistory": "training.reporting.progress_log",
    "TrainingStatus": "training.reporting.watch",
    "Tuning": "tuning.outcome",
    "TuningTrial": "tuning.outcome",
    "UsageError": "errors",
    "UserRanks": "evaluation.judge",
    "Verdict": "production.successor",
    "ab": "api.ab",
    "auto": "automatic.auto",
    "backtest": "api.backtest",
    "compare": "api.runs",
    "list_models": "settings.sections",
    "list_presets": "settings.presets",
    "list_settings": "settings.config",
    "load": "api.runs",
    "prepare": "api.datasets",
    "refresh": "production.refresh",
    "register": "training.specs",
    "serve": "service",
    "train": "api.runs",
    "tune": "tuning.tune",
}
"""Public name → the module that has it. `__all__` repeats the names, for those who read without running."""

__all__ = [
    "ABTest",
    "AutoResult",
    "Backtest",
    "Bert4RecError",
    "Comparison",
    "Contribution",
    "DataError",
    "Dataset",
    "Evaluation",
    "Explanation",
    "Item",
    "ModelSettings",
    "NotFoundError",
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
    "UsageError",
    "UserRanks",
    "Verdict",
    "__version__",
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
]


def __getattr__(name: str) -> Any:
    if name == "spark":
        return import_module(f"{__name__}.spark")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
