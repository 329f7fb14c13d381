"""What experiments are made of: cases to train, and the data sets to train them on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import SplitSpec
from bert4rec.training.config import RunConfig, make_config
from bert4rec.training.presets import load_preset
from bert4rec.training.specs import MODELS

if TYPE_CHECKING:
    from bert4rec.paper.report.evidence import Evidence
    from bert4rec.paper.report.layout import Part

PAPER_NAMES = {"beauty": "Beauty", "steam": "Steam", "ml-1m": "ML-1m", "ml-20m": "ML-20m"}
"""Our name of a data set → the paper's, in its order. Each is also a family of presets."""
LONG_HISTORIES = 50
"""Average length from which data that nobody tuned for is treated like ML-1m; below it, like Beauty."""
QUICK = (
    "training.steps=12",
    "training.validate_every=12",
    "training.batch_size=16",
    "training.warmup_steps=4",
)
"""Added to every case by `--quick`: enough to see that it runs, far too little to learn anything."""
SMALL = "-small"
"""The presets that the paper's sweeps and ablations start from: d = 64, two layers, two heads."""

Measure = Literal["attention", "selection"]
"""What is measured on a trained model beside its metrics: its attention (figure 2), or how the model of the
selection stage, which never saw the validation items, does on the test items (protocols)."""


@dataclass(frozen=True)
class Facts:
    """What an experiment needs to know of a data set."""

    name: str
    checksum: str
    protocol: str
    """How it is split."""
    family: str
    """Whose presets it is run with: a key of PAPER_NAMES."""
    candidates: str = ""
    """Checksum of the stored negatives."""

    @property
    def title(self) -> str:
        """As the paper writes it, where it is one of the paper's."""
        return PAPER_NAMES.get(self.name, self.name)

    @classmethod
    def of(cls, dataset: Dataset) -> "Facts":
        split = SplitSpec(**dataset.manifest["split"])
        candidates = dataset.candidates_checksum()
        return cls(dataset.name, dataset.checksum, str(split), family_of(dataset), candidates)

    @property
    def identity(self) -> dict[str, str]:
        """The part of a line of results that tells what it was judged on."""
        return {
            "dataset": self.name,
            "data_checksum": self.checksum,
            "candidates_checksum": self.candidates,
            "protocol": self.protocol,
        }


def family_of(dataset: Dataset) -> str:
    """Whose presets suit a data set: its own where there are some, otherwise those of one as long or as short."""
    names = (dataset.manifest["source"].get("name"), dataset.name, dataset.name.removeprefix("synthetic-"))
    known = next((name for name in names if name in PAPER_NAMES), None)
    return known or ("ml-1m" if dataset.lengths.mean() >= LONG_HISTORIES else "beauty")


@dataclass(frozen=True)
class Case:
    """One row of a table or point of a figure: what is trained for it, whatever the seed."""

    label: str
    model: str
    settings: tuple[str, ...] = ()
    """Changes to the preset, as `train --set` takes them."""
    preset: str = ""
    """Which preset of the family: "", "-small" or "-softmax"."""
    variant: str = ""
    """What is changed in the model's code: a name of `table5.VARIANTS`."""
    task: Literal["train", "speed"] = "train"
    """`speed` only times training, alone on its device."""
    measures: tuple[Measure, ...] = ()

    def preset_for(self, family: str) -> str:
        return family + self.preset

    def config(self, family: str, *, quick: bool = False) -> RunConfig:
        """The complete settings on data of this family."""
        return _config(self.model, self.preset_for(family), self.settings, quick)


@cache
def _config(model: str, preset: str, settings: tuple[str, ...], quick: bool) -> RunConfig:
    quick_settings = QUICK if quick and MODELS[model].is_trained else ()
    return make_config(model, load_preset(model, preset), (*settings, *quick_settings))


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper: what to run for it, and how to lay it out beside the paper's numbers."""

    name: str
    title: str
    about: str
    """What is shown and how ours differs from the paper's, a few sentences."""
    cases: Callable[[Facts], list[Case]]
    lay_out: Callable[["Evidence"], "Part"]
    seeds: tuple[int, ...] = (1,)
    """What is run where nothing else is said."""

    @property
    def short_title(self) -> str:
        return self.title.partition(":")[0]


BERT4REC = Case("BERT4Rec", "bert4rec")
"""With the tuned preset."""
SOFTMAX = (
    Case("GRU4Rec+ (softmax)", "gru4rec+", preset="-softmax"),
    Case("SASRec (softmax)", "sasrec", preset="-softmax"),
)
"""Beyond the paper: a recurrent and an attentive baseline with BERT4Rec's own loss, the exact softmax."""


def overall_cases(_facts: Facts) -> list[Case]:
    """The nine models of Table 2, and two more rows."""
    baselines = [Case(kind.title, name) for name, kind in MODELS.items() if name != "bert4rec"]
    return [*baselines, *SOFTMAX, BERT4REC]


def small_case(label: str, *settings: str, variant: str = "") -> Case:
    """BERT4Rec as the paper's sweeps have it, d = 64, with something changed."""
    return Case(label, "bert4rec", settings, preset=SMALL, variant=variant)


SMALL_DEFAULT = small_case("L=2, h=2")
