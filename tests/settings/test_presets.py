import pytest

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.settings.presets import load_preset, refuse_unknown
from bert4rec.training.specs import MODELS


def test_an_unknown_preset_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(NotFoundError, match=r"Unknown preset 'ml-1n' of sasrec. Did you mean ml-1m"):
        load_preset("sasrec", "ml-1n")


def test_a_preset_of_other_models_is_refused_with_their_names() -> None:
    with pytest.raises(
        NotFoundError, match=r"Unknown preset 'ml-1m-softmax' of caser. It exists for gru4rec\+ and sasrec"
    ):
        load_preset("caser", "ml-1m-softmax")


def test_an_unknown_model_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        UsageError, match=r"Unknown model 'sasrek'. Did you mean sasrec\? Models: pop, bpr-mf"
    ):
        refuse_unknown("sasrek")


def test_models_are_those_with_a_file_of_presets() -> None:
    for model in MODELS:
        refuse_unknown(model, "ml-1m")
    with pytest.raises(UsageError) as error:
        refuse_unknown("none")
    assert str(error.value).partition("Models: ")[2].rstrip(".").split(", ") == list(MODELS)
