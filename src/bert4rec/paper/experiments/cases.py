"""What experiments consist of: cases to train, and the data sets to train them on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import SplitSpec
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.settings.networks import Ask
from bert4rec.settings.presets import load_preset
from bert4rec.training.specs import MODELS

if TYPE_CHECKING:
    from bert4rec.paper.reporting.evidence import Evidence
    from bert4rec.paper.reporting.layout import Findings

PAPER_NAMES = {"beauty": "Beauty", "steam": "Steam", "ml-1m": "ML-1m", "ml-20m": "ML-20m"}
"""Our name of a data set → the paper's name, in the paper's order. Each is also a family of presets."""
LONG_HISTORIES = 50
"""Average length from which other data sets use the presets of ML-1m; below it, those of Beauty."""
QUICK = (
    "training.steps=12",
    "training.validate_every=12",
    "training.batch_size=16",
    "training.warmup_steps=4",
)
"""Added to every case of a quick run: enough to see that it runs, too little to learn anything."""
SMALL = "-small"
"""The presets of the paper's sweeps and ablations: d = 64, two layers, two heads."""

Measure = Literal["asked", "attention", "selection"]
"""What is measured on a trained model besides its metrics: the test metrics if it is asked in other ways (beyond), its
attention (figure 2), or the test metrics of the selection stage's model, which never saw the validation items
(protocols)."""


@dataclass(frozen=True)
class DatasetFacts:
    """What an experiment needs to know about a data set."""

    name: str
    checksum: str
    protocol: str
    """How it is split."""
    family: str
    """Which presets it is run with: a key of PAPER_NAMES."""
    candidates: str = ""
    """Checksum of the stored negatives."""

    @property
    def title(self) -> str:
        """As the paper writes it, if it is one of the paper's data sets."""
        return PAPER_NAMES.get(self.name, self.name)

    @classmethod
    def of(cls, dataset: Dataset) -> "DatasetFacts":
        split = SplitSpec(**dataset.manifest["split"])
        candidates = dataset.candidates_checksum()
        return cls(dataset.name, dataset.checksum, str(split), family_of(dataset), candidates)

    @property
    def identity(self) -> dict[str, str]:
        """The fields of a line of results that say which data it was judged on."""
        return {
            "dataset": self.name,
            "data_checksum": self.checksum,
            "candidates_checksum": self.candidates,
            "protocol": self.protocol,
        }


def family_of(dataset: Dataset) -> str:
    """Which presets suit a data set: its own if there are some, otherwise those for similar lengths."""
    names = (dataset.manifest["source"].get("name"), dataset.name, dataset.name.removeprefix("synthetic-"))
    known = next((name for name in names if name in PAPER_NAMES), None)
    return known or ("ml-1m" if dataset.lengths.mean() >= LONG_HISTORIES else "beauty")


@dataclass(frozen=True)
class Case:
    """One row of a table or point of a figure: what is trained for it, with any seed."""

    label: str
    model: str
    settings: tuple[str, ...] = ()
    """Changes to the preset, as section.key=value."""
    preset: str = ""
    """Which preset of the family: "", "-small" or "-softmax"."""
    variant: str = ""
    """What is changed in the model's code: a name of `index.VARIANTS`."""
    task: Literal["train", "speed"] = "train"
    """`speed` only times training, without other runs on the device."""
    measures: tuple[Measure, ...] = ()

    def preset_for(self, family: str) -> str:
        return family + self.preset

    def config(self, family: str, *, quick: bool = False) -> RunConfig:
        """The complete settings on data of this family."""
        return _config(self.model, self.preset_for(family), self.settings, quick)

    def measured_lines(self, measure: Measure) -> list[dict[str, str]]:
        """For each line of a measure, the fields that tell it from the run's own result."""
        if measure == "asked":
            return [{"variant": asked_by(way)} for way in get_args(Ask)]
        return [{"kind": "attention"} if measure == "attention" else {"stage": "selection"}]


def asked_by(way: Ask) -> str:
    """The variant that results of a model have which was asked in this way, whatever its own is."""
    return f"asked by {way}"


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
    """What is shown and how it differs from the paper, in a few sentences."""
    cases: Callable[[DatasetFacts], list[Case]]
    lay_out: Callable[["Evidence"], "Findings"]
    seeds: tuple[int, ...] = (1,)
    """The seeds that are run by default."""

    @property
    def short_title(self) -> str:
        return self.title.partition(":")[0]


BASELINES = (
    Case("POP", "pop"),
    Case("BPR-MF", "bpr-mf"),
    Case("NCF", "ncf"),
    Case("FPMC", "fpmc"),
    Case("GRU4Rec", "gru4rec"),
    Case("GRU4Rec+", "gru4rec+"),
    Case("Caser", "caser"),
    Case("SASRec", "sasrec"),
)
"""The eight baselines of Table 2, in its order and with its names. Other models never add a row."""
BERT4REC = Case("BERT4Rec", "bert4rec")
"""With the tuned preset."""
SOFTMAX = (
    Case("GRU4Rec+ (softmax)", "gru4rec+", preset="-softmax"),
    Case("SASRec (softmax)", "sasrec", preset="-softmax"),
)
"""A recurrent and an attentive baseline with BERT4Rec's own loss, the exact softmax."""
PLUS = Case("BERT4Rec+", "bert4rec+")
"""Our own model, with its tuned preset."""
BEYOND = (*SOFTMAX, PLUS)
"""Not in the paper: they stand below its nine, are no baselines, and nothing the paper says is about them."""


def overall_cases(_facts: DatasetFacts) -> list[Case]:
    """The nine models of Table 2, and what stands below them."""
    return [*BASELINES, BERT4REC, *BEYOND]


def small_case(label: str, *settings: str, variant: str = "") -> Case:
    """BERT4Rec as in the paper's sweeps, d = 64, with something changed."""
    return Case(label, "bert4rec", settings, preset=SMALL, variant=variant)


SMALL_DEFAULT = small_case("L=2, h=2")
