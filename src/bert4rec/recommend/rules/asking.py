"""From a history and rules, in ids, to a question in the model's numbers; and what a model cannot be asked."""

import numpy as np

from bert4rec.recommend.answers import Question
from bert4rec.recommend.catalogue import Catalogue, Id
from bert4rec.recommend.ids import as_list
from bert4rec.recommend.known_users import UserScorer
from bert4rec.recommend.ranker import NOTHING
from bert4rec.recommend.rules.rules import Rules
from bert4rec.recommend.rules.where import Filters


def question_of(
    history: object, rules: Rules, catalogue: Catalogue, filters: Filters, *, exclude_seen: bool
) -> tuple[Question, list[Id]]:
    """The question, and the ids that the model does not know. `exclude_seen` counts if the rules do not say."""
    seen, unknown = catalogue.numbers(as_list(history, "history", ordered=True), "history")
    allowed, denied = None, NOTHING
    if rules.allow is not None:
        allowed, unknown_allowed = catalogue.numbers(rules.allow, "allow")
        unknown = [*unknown, *unknown_allowed]
    if rules.deny is not None:
        denied, unknown_denied = catalogue.numbers(rules.deny, "deny")
        unknown = [*unknown, *unknown_denied]
    excluded = np.concatenate([seen, denied]) if rules.leave_out_seen(by_default=exclude_seen) else denied
    question = Question(seen, rules.k, excluded, allowed, filters.subset(rules.where), rules.diversity)
    return question, list(dict.fromkeys(unknown))


def why_not_comparable(user_scorer: UserScorer | None, max_history: int) -> str | None:
    """Why items cannot be compared by their vectors, if the model has none that mean something."""
    if user_scorer is not None:
        why = f"{user_scorer.title} cannot compare items: it answers only for users of its dataset."
    elif max_history == 0:
        why = "The model has no item vectors that can be compared: it recommends the same items to everybody."
    else:
        return None
    return f"{why} Use a model such as BERT4Rec or SASRec."
