"""From a history and rules, in ids, to a question in the model's numbers."""

import numpy as np

from bert4rec.recommend.answers import Question
from bert4rec.recommend.catalogue import Catalogue, Id
from bert4rec.recommend.ids import as_list
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
