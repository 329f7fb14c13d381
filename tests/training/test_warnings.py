"""Training says when its result is likely to be worse than it could be, and what the result is worth."""

import re
from pathlib import Path

import numpy as np
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import SplitSpec
from bert4rec.errors import DataError
from bert4rec.evaluation.yardsticks import Yardsticks
from bert4rec.training.reporting.advice import Standing, warn_of_little_learned, warn_of_selection
from tests.conftest import MakeDataset
from tests.training.tiny import Witness, random_histories, tiny_config, train_tiny

POPULARITY = np.geomspace(1, 0.01, 30) / np.geomspace(1, 0.01, 30).sum()
NO_BETTER = "of recommending the most popular items to everybody"
UNDER_TRAINED = "may be under-trained. Raise training.steps above 12"


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


@pytest.mark.parametrize("best_step", [12, 11])
def test_a_best_step_among_the_last_is_warned_about(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best_step: int
) -> None:
    """The learning rate falls to zero, so the very last validations differ by chance."""
    values = iter([*np.linspace(0.1, 0.9, best_step), *[0.1] * 12])
    monkeypatch.setattr(
        "bert4rec.evaluation.criterion.judge_among_negatives", lambda *_: {"NDCG@10": next(values)}
    )
    witness = Witness()
    train_tiny(dataset, tmp_path / "run", "training.validate_every=1", refit=False, witness=witness)
    assert [text for text in witness.warned if UNDER_TRAINED in text and f"at step {best_step} of 12" in text]


def test_a_best_step_among_the_last_is_not_if_little_was_gained_since_three_quarters(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate falls to zero: a training that is long enough ends with its best weights, too."""
    values = iter([*np.linspace(0.1, 0.9, 9), 0.91, 0.92, 0.93])
    monkeypatch.setattr(
        "bert4rec.evaluation.criterion.judge_among_negatives", lambda *_: {"NDCG@10": next(values)}
    )
    witness = Witness()
    train_tiny(dataset, tmp_path / "run", "training.validate_every=1", refit=False, witness=witness)
    assert not any(UNDER_TRAINED in text for text in witness.warned)


def test_a_best_step_before_the_last_is_not(dataset: Dataset, tmp_path: Path) -> None:
    witness = Witness()
    # It does not learn, so no validation is better than the first.
    train_tiny(dataset, tmp_path / "run", "training.learning_rate=1e-20", refit=False, witness=witness)
    assert not any(UNDER_TRAINED in text for text in witness.warned)


def test_a_model_that_is_no_better_than_popularity_is_warned_about(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    """Where popular items are what comes next, so that popularity is hard to beat; POP itself is what it is."""
    rng = np.random.default_rng(1)
    dataset = make_dataset([list(rng.choice(30, 8, replace=False, p=POPULARITY) + 1) for _ in range(60)])
    heard = {}
    for model, settings in (("bert4rec", ["training.learning_rate=1e-20"]), ("pop", [])):
        witness = Witness()
        train_tiny(dataset, tmp_path / model, *settings, model=model, refit=False, witness=witness)
        heard[model] = [text for text in witness.warned if NO_BETTER in text]
    assert not heard["pop"]
    (warning,) = heard["bert4rec"]
    ours, relation, popular = re.search(r"is ([\d.]+), (.*) the ([\d.]+) of", warning).groups()  # type: ignore[union-attr]
    assert relation == ("less than" if float(ours) < float(popular) else "not much more than")


def test_data_that_are_too_few_to_judge_by_are_warned_about(dataset: Dataset, tmp_path: Path) -> None:
    witness = Witness()
    train_tiny(dataset, tmp_path / "run", model="pop", witness=witness)
    few_users, few_items = (text for text in witness.warned if "to judge a model" in text)
    assert "only 29 users are tested" in few_users
    assert "with 20 items, random guessing" in few_items


def test_where_nobody_acts_in_the_validation_part_keeping_repeats_is_no_remedy(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    day = 86_400_000_000
    times = [day * each for each in (0, 1, 9)] * 9
    repeating = make_dataset([[1, 2, 1]] * 9, times, repeats="exclude")
    split = SplitSpec("time", test_from="1970-01-06", valid_from="1970-01-04")
    with pytest.raises(DataError, match="too few users act before and after its cuts"):
        train_tiny(repeating, tmp_path / "run", split=split)


def test_where_every_target_repeats_it_is_said_how_to_ask_about_them(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    favourites = make_dataset([[1, 2, 3] * 3 for _ in range(9)], repeats="exclude")
    with pytest.raises(DataError, match='prepare with `repeats="keep"`'):
        train_tiny(favourites, tmp_path / "run")


def test_a_model_that_learns_is_not(make_dataset: MakeDataset, tmp_path: Path) -> None:
    """Items that follow each other in a circle."""
    dataset = make_dataset([[(first + step) % 20 + 1 for step in range(10)] for first in range(40)])
    witness = Witness()
    more = ("training.steps=300", "training.validate_every=100", "training.learning_rate=0.01")
    train_tiny(dataset, tmp_path / "run", *more, refit=False, witness=witness)
    assert not any(NO_BETTER in text for text in witness.warned)


ANOTHER = (
    "Try another `model`, such as sasrec or gru4rec+, or search for better settings with `bert4rec tune`."
)


def curve(best_step: int) -> list[dict[str, float]]:
    """Validations of twelve steps, best at this one: much better at the last step, otherwise by a little."""
    best = 0.2 if best_step == 12 else 0.102
    return [{"step": step, "value": best if step == best_step else 0.1} for step in range(1, 13)]


def test_a_model_that_leads_is_told_how_far() -> None:
    standing = Standing.of("NDCG@10", 0.2401, Yardsticks(0.0770, 0.2330), tiny_config(), curve(6))
    assert str(standing) == (
        "NDCG@10 on the validation items: 0.2401. Counting what follows the last item gives 0.2330, "
        "popularity 0.0770."
    )


def test_a_model_that_is_behind_by_what_may_be_chance_is_given_no_advice() -> None:
    standing = Standing.of("MRR", 0.247, Yardsticks(0.08, 0.25), tiny_config(), curve(6))
    assert standing.hint == ""


@pytest.mark.parametrize(
    ("value", "best_step", "model", "hint"),
    [
        (0.2, 12, "bert4rec", "try more than 12 training.steps, or a longer time limit if there was one."),
        (0.2, 11, "bert4rec", ANOTHER),
        (0.1, 6, "bert4rec", "try more training.steps, or a training.learning_rate below 0.01."),
        (0.2, 3, "bert4rec", "It over-fits after step 3 of 12: try more model.hidden_dropout."),
        (0.2, 3, "fpmc", "It over-fits after step 3 of 12: try more training.weight_decay."),
        (0.2, 6, "bert4rec", ANOTHER),
    ],
)
def test_a_model_that_does_not_lead_is_told_what_to_try_next(
    value: float, best_step: int, model: str, hint: str
) -> None:
    standing = Standing.of("MRR", value, Yardsticks(0.08, 0.25), tiny_config(model=model), curve(best_step))
    assert str(standing).endswith(f", popularity 0.0800. {hint}" if hint[0].isupper() else hint)


@pytest.mark.parametrize(
    ("best", "following", "relation"),
    [
        (0.11, 0.30, "not much more than"),
        (0.11, 0.12, None),
        (0.10, 0.12, "no more than"),
        (0.16, 0.30, None),
    ],
)
def test_where_popularity_is_hard_to_beat_it_is_enough_to_beat_it(
    best: float, following: float, relation: str | None
) -> None:
    heard = warn_of_little_learned("MRR", best, Yardsticks(0.10, following))
    assert [f"{relation} the 0.1000" in text for text in heard] == [True] * bool(relation)


def test_who_may_not_choose_settings_is_told_of_none() -> None:
    """As those who use `auto`, which has its own remedy."""
    config, behind = tiny_config(), Yardsticks(0.10, 0.30)
    assert config.training
    marks = [{"step": 1, "value": 0.01}, {"step": config.training.steps, "value": 0.10}]
    heard = warn_of_selection("MRR", config.training, marks, behind, "Wait longer.")
    heard.append(str(Standing.of("MRR", 0.10, behind, config, marks, "Wait longer.")))
    assert len(heard) == 3
    for text in heard:
        assert text.endswith(" Wait longer.")
        assert "training." not in text


def test_how_the_model_stands_is_said_last_and_kept_with_the_run(dataset: Dataset, tmp_path: Path) -> None:
    witness = Witness()
    run = train_tiny(dataset, tmp_path / "run", witness=witness)
    assert [*witness.said, *witness.warned][-1] == run.notes[-1]
    standing = run.result["standing"]
    assert standing["value"] == run.metrics["valid"]["sampled"]["NDCG@10"]
    assert f"Counting what follows the last item gives {standing['following']:.4f}" in run.notes[-1]
    assert train_tiny(dataset, tmp_path / "pop", model="pop").notes == []
