"""The models by name, in the order of the paper, and the classes of their settings. Needs no torch."""

from dataclasses import dataclass

from bert4rec.settings.networks import (
    BPRMFConfig,
    CaserConfig,
    FPMCConfig,
    GRUConfig,
    ModelConfig,
    ModelSettings,
    NCFConfig,
    PlusConfig,
    PopConfig,
)
from bert4rec.settings.objectives import (
    BatchRanking,
    Cloze,
    Joint,
    NextItem,
    ObjectiveSettings,
    Pairwise,
    Pointwise,
    SampledRanking,
    SkippingPointwise,
    TrainingConfig,
)


@dataclass(frozen=True)
class Sections:
    """The classes of the settings of a model, section by section."""

    model: type[ModelSettings]
    objective: type[ObjectiveSettings] | None
    """None where there is nothing to train."""
    select_by: str = "NDCG@10"
    """By what its best weights are chosen, unless the user names something else; see `Criterion`."""

    def classes(self) -> dict[str, type]:
        """Section → class; a model that is not trained has the section `model` alone."""
        trained = {"objective": self.objective, "training": TrainingConfig} if self.objective else {}
        return {"model": self.model, **trained}


SECTIONS = {
    "pop": Sections(PopConfig, None),
    "bpr-mf": Sections(BPRMFConfig, Pairwise),
    "ncf": Sections(NCFConfig, Pointwise),
    "fpmc": Sections(FPMCConfig, Pairwise),
    "gru4rec": Sections(GRUConfig, BatchRanking),
    "gru4rec+": Sections(GRUConfig, SampledRanking),
    "caser": Sections(CaserConfig, SkippingPointwise),
    "sasrec": Sections(ModelConfig, NextItem),
    "bert4rec": Sections(ModelConfig, Cloze),
    "bert4rec+": Sections(PlusConfig, Joint, select_by="NDCG@10:both"),
}
"""What can be set for each model. `specs.register` adds models."""
DEFAULT_MODEL = "bert4rec+"
"""What is trained and tuned where no model is named."""


def list_models() -> list[str]:
    """The names of all models: the nine of the paper, BERT4Rec+, and those that were registered."""
    return list(SECTIONS)
