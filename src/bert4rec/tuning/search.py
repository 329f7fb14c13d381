"""The search itself: the default first, then presets, then what Optuna proposes; in the end, a verdict.

tune.json       written first: what is searched, and for which data
study.jsonl     Optuna's journal: every trial as it goes on, and the time that was spent
ranks/          of the validation items, by the default (0) and, with fresh seeds, by the best trial
settings.toml   the best settings so far; after every trial
trials.jsonl    the trials so far, a line for each
tuning.png      the search over time, and what mattered
outcome.json    written last: everything that was found
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from optuna.study import Study
from optuna.trial import Trial, TrialState

from bert4rec.data.dataset import Dataset
from bert4rec.data.leakage import too_little_to_judge
from bert4rec.errors import DataError, UsageError, is_out_of_memory
from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.judge import metrics_of
from bert4rec.evaluation.protocol import Ranks
from bert4rec.evaluation.significance import Difference
from bert4rec.settings.objectives import RunConfig
from bert4rec.training.collapse import CollapsedError
from bert4rec.training.reporting.forecast import in_words
from bert4rec.training.reporting.results import write_ranks
from bert4rec.training.stages import MOST_RESTARTS
from bert4rec.tuning.budget import Budget, TrialPlan, plan_trials, too_slow
from bert4rec.tuning.mattered import draw, importance_of
from bert4rec.tuning.outcome import OUTCOME, Tuning, TuningTrial
from bert4rec.tuning.request import Request
from bert4rec.tuning.space import ENOUGH, Space, shortened
from bert4rec.tuning.study import JOURNAL, TENTHS, as_told, open_study
from bert4rec.tuning.trials import GivenUp, Trainer, TrialWatch
from bert4rec.tuning.verdict import compare, of_short_trials, sentence, warn_of_short_trials


class SearchListener(Protocol):
    """Watches a search."""

    def say(self, text: str) -> None:
        """Something that the user should know, such as the end of a trial."""
        ...

    def warn(self, text: str) -> None:
        """Something that makes the outcome doubtful."""
        ...

    def busy(self, what: str, seconds_left: float) -> None:
        """What is going on right now, about once a second."""
        ...


@dataclass
class Search:
    """A search in a folder that nobody else uses."""

    request: Request
    dataset: Dataset
    folder: Path
    seconds: float
    """To spend, those of earlier calls included."""
    most_trials: int | None
    trainer: Trainer
    listener: SearchListener
    should_stop: Callable[[], bool]
    began: float
    """When the call began."""
    floor: float | None = field(init=False)
    """What a trial must reach: below, it has learned nothing but what is popular. None where that is hard to beat."""
    halved: int = field(init=False, default=0)
    """How often the default's learning rate was."""
    study: Study = field(init=False)
    budget: Budget = field(init=False)
    plan: TrialPlan = field(init=False)
    space: Space = field(init=False)

    def run(self) -> Tuning:
        """Search until the time is up, compare the best with the default, and write down what was found."""
        valid = self.trainer.split.valid
        if len(valid) < 2:
            users = f"{len(valid)} user{'s' * (len(valid) != 1)}"
            raise DataError(
                f"Settings cannot be told apart by {users} to validate on. At least two are required."
            )
        for warning in too_little_to_judge(self.dataset, valid):
            self.listener.warn(warning)
        self.floor = self.trainer.yardsticks.floor(len(valid))
        (self.folder / OUTCOME).unlink(missing_ok=True)
        self._open()
        try:
            while self._goes_on():
                self._try(self.study.ask(self.space.ranges))
            self._train_again()
        except KeyboardInterrupt:
            if self._trials:
                self._write()
            raise
        outcome = self._write(is_over=True)
        outcome.finish()
        return outcome

    def _write(self, *, is_over: bool = False) -> Tuning:
        outcome = self._outcome(is_over=is_over)
        outcome.write()
        draw(outcome)
        return outcome

    def _open(self) -> None:
        """Take up a search whose default was tried; otherwise begin with that."""
        self.study = open_study(self.folder, self.request.plan.seed)
        self.budget = Budget(self.seconds, self.study.user_attrs.get("seconds", 0.0), self.began)
        if self._trials:
            self._take(TrialPlan(**self.study.user_attrs["plan"]))
            self.listener.say(f"Going on after trial {self._trials[-1].number}.")
        else:
            self._begin()

    def _begin(self) -> None:
        """Find out how long trials may be, and queue up what is tried first."""
        (self.folder / JOURNAL).unlink()
        self.study = open_study(self.folder, self.request.plan.seed)
        self._busy("measuring how long a trial takes")
        default = self.request.plan.config
        assert default.training
        try:
            costs = self.trainer.measure(default, self.should_stop, self.budget.left())
        except CollapsedError as collapse:
            self._begin_slower(collapse)
            return
        self._take(plan_trials(costs, default.training, self.budget.left(), self.most_trials))
        self.study.set_user_attr("plan", asdict(self.plan))
        seconds = self.plan.seconds
        expected = max(1, round(self.budget.left_to_search(seconds, seconds) / seconds))
        expected = min(expected, self.most_trials or expected)
        for params in [self.space.nearest(self.space.usual), *self.space.presets()[: expected // 3]]:
            self.study.enqueue_trial(params)
        short, whole = self._steps
        why = f", because a whole training, of {whole:,}, takes {in_words(self.plan.whole_seconds)}"
        trials = f"{expected} trial{'s' * (expected != 1)}"
        self.listener.say(f"About {trials} of {short:,} steps{why if short < whole else ''}.")
        if not self._is_telling:
            self.listener.warn(warn_of_short_trials(self.plan.minutes_for_whole_ones))

    def _begin_slower(self, collapse: CollapsedError) -> None:
        """The default collapses, so begin again with half its learning rate, as `train` does, and as often."""
        default = self.request.plan.config
        assert default.training
        self.halved += 1
        if self.halved > MOST_RESTARTS:
            raise DataError(f"The default collapses, whatever is done about it: {collapse}.")
        rate = default.training.learning_rate / 2
        self.listener.warn(
            f"The default collapsed: {collapse}. Half its learning rate, {rate:g}, is the default from now on."
        )
        slower = replace(default, training=replace(default.training, learning_rate=rate))
        self.request = self.request.starting_from(slower)
        self.request.save(self.folder)
        self._begin()

    def _take(self, plan: TrialPlan) -> None:
        wanted, longest = self.request.plan, int(self.dataset.lengths.max())
        self.plan = plan
        self.space = Space(wanted.model, wanted.config, longest, plan.share, self.request.fixed)

    def _shortened(self, config: RunConfig) -> RunConfig:
        return shortened(config, self.plan.share, self.plan.validations)

    @property
    def _steps(self) -> tuple[int, int]:
        """Of the default, in a trial and in a whole training."""
        whole = self.request.plan.config
        short = self._shortened(whole).training
        assert short
        assert whole.training
        return short.steps, whole.training.steps

    @property
    def _trials(self) -> list[TuningTrial]:
        """All that have ended; none before the default has come to its end."""
        trials = self.study.get_trials(deepcopy=False)
        ended = [as_told(trial) for trial in trials if trial.state.is_finished()]
        return ended if ended and ended[0].state == "complete" else []

    @property
    def _default_and_best(self) -> tuple[TuningTrial, TuningTrial]:
        complete = [trial for trial in self._trials if trial.state == "complete"]
        return complete[0], max(complete, key=lambda trial: trial.value or 0.0)

    @property
    def _criterion(self) -> Criterion:
        """What trainings select by, and so what a search goes by."""
        return self.request.plan.criterion

    def _has_learned(self, best: TuningTrial) -> bool:
        return self.floor is None or (best.value or 0.0) > self.floor

    def _is_to_judge(self, best: TuningTrial) -> bool:
        """Whether there is something else than the default, and it has learned enough."""
        return best.number > 0 and self._has_learned(best)

    def _longest_trial(self) -> float:
        default, best = self._default_and_best
        return self.budget.longest_trial(default.seconds, best.seconds if self._is_to_judge(best) else 0.0)

    def _goes_on(self) -> bool:
        """Whether there is time for one more trial of usual length, and for what comes after."""
        trials = self._trials
        if not trials:
            return True
        if self.most_trials is not None and len(trials) >= self.most_trials:
            return False
        return self._longest_trial() >= trials[0].seconds

    def _try(self, trial: Trial) -> None:
        began, state, value, note = self.budget.spent(), TrialState.COMPLETE, None, ""
        watch = self._watch(trial)
        try:
            config = self.space.config_of(trial.params)
            trial.set_user_attr("changes", self.space.changes(config))
            ranks = self.trainer.train(self._shortened(config), watch)
            value = self._value(ranks)
            if trial.number == 0:
                write_ranks(self._ranks_path(0, self.request.plan.seed), ranks)
        except KeyboardInterrupt:
            self.study.tell(trial, state=TrialState.FAIL)
            raise
        except (GivenUp, CollapsedError, UsageError, DataError, MemoryError, RuntimeError) as error:
            if trial.number == 0 and isinstance(error, CollapsedError):
                self._begin_slower(error)
                return
            if trial.number == 0 and isinstance(error, GivenUp):
                self.listener.say("The default takes much longer than it seemed to: trials become shorter.")
                self._begin()
                return
            # What is proposed may contradict itself, diverge or need too much memory. The default may not.
            if trial.number == 0 or (isinstance(error, RuntimeError) and not is_out_of_memory(error)):
                raise
            state, note = TrialState.PRUNED, str(error).partition("\n")[0]
        spent = self.budget.spent()
        for name, fact in {"seconds": spent - began, "minute": spent / 60, "note": note}.items():
            trial.set_user_attr(name, fact)
        self.study.tell(trial, value, state=state)
        self.study.set_user_attr("seconds", spent)
        self._outcome().write()
        self._tell(self._trials[-1])

    def _value(self, ranks: Ranks) -> float:
        return self._criterion.of(metrics_of(ranks, [self._criterion.metric]))

    def _watch(self, trial: Trial) -> TrialWatch:
        """Ends a trial that is behind, or that takes far longer than the default, or the default than was planned."""
        so_far, longest = "", min(self.budget.left(), too_slow(self.plan.seconds))
        if trial.number:
            _, best = self._default_and_best
            so_far, longest = f", best so far {best.value:.4f}", self._longest_trial()

        def is_behind(done: float, value: float) -> bool:
            # Rounded down, the last tenth is reported once, at the end.
            trial.report(value, math.floor(TENTHS * done))
            return trial.should_prune()

        return TrialWatch(
            tell=lambda text: self._busy(f"trial {trial.number}: {text}{so_far}"),
            is_behind=is_behind,
            should_stop=self.should_stop,
            seconds=longest,
            looks_ahead=True,
        )

    def _busy(self, what: str) -> None:
        self.listener.busy(what, max(0.0, self.budget.left()))

    def _tell(self, trial: TuningTrial) -> None:
        """In one line: the value, what was changed, the best so far, the time left."""
        _, best = self._default_and_best
        ended = f"given up, {trial.note}" if trial.note else ""
        if trial.value is not None:
            ended += f"{', at' if ended else ''} {self._criterion} {trial.value:.4f}"
        changes = ", ".join(f"{key.partition('.')[2]}={value}" for key, value in trial.changes.items())
        place = "the best so far" if best.number == trial.number else f"best {best.value:.4f}"
        left = timedelta(seconds=max(0, round(self.budget.left())))
        self.listener.say(
            f"Trial {trial.number}: {ended.strip()}; {place}; {left} left. {changes or 'The default'}."
        )

    def _train_again(self) -> None:
        """Default and best in turn with as many seeds as there is time for.

        The first of the default is that of the search: its trial need not be trained again.
        """
        default, best = self._default_and_best
        seeds = self.budget.seeds_for(default.seconds, best.seconds) if self._is_to_judge(best) else 0
        used = [(self.request.plan.seed + number) % 2**63 for number in range(seeds + 1)]
        for seed_before, fresh in pairwise(used):
            for trial, seed in ((default, seed_before), (best, fresh)):
                if self._ranks_path(trial.number, seed).exists():
                    continue
                if self.budget.left() < trial.seconds:
                    return
                try:
                    self._train_with(trial, seed)
                except GivenUp:
                    return

    def _train_with(self, trial: TuningTrial, seed: int) -> None:
        what = f"trial {trial.number} with seed {seed}"
        watch = TrialWatch(
            tell=lambda text: self._busy(f"{what}: {text}"),
            should_stop=self.should_stop,
            seconds=self.budget.left(),
        )
        try:
            ranks = self.trainer.train(self._shortened(self._config_of(trial)), watch, seed)
            told = f"{self._criterion} {self._value(ranks):.4f}"
        except (CollapsedError, DataError) as error:  # A model that comes to nothing finds nothing.
            last = np.full(len(self.trainer.split.valid), self.dataset.num_items, np.int32)
            ranks, told = Ranks(last, last), str(error)
        write_ranks(self._ranks_path(trial.number, seed), ranks)
        self.study.set_user_attr("seconds", self.budget.spent())
        self.listener.say(f"{what.capitalize()}: {told}.")

    @property
    def _is_telling(self) -> bool:
        """Whether trials are long enough to tell something about whole trainings."""
        return self.plan.share >= ENOUGH

    def _ranks_path(self, number: int, seed: int) -> Path:
        return self.folder / "ranks" / f"{number}-{seed}.npz"

    def _config_of(self, trial: TuningTrial) -> RunConfig:
        return self.space.config_of(self.study.get_trials(deepcopy=False)[trial.number].params)

    def _ranks(self, trial: TuningTrial) -> list[Ranks]:
        """With each seed that counts in the end."""
        found = []
        for path in sorted(self.folder.glob(f"ranks/{trial.number}-*.npz")):
            with np.load(path, allow_pickle=False) as kept:
                found.append(Ranks(kept["sampled"].astype(np.int32), kept["full"].astype(np.int32)))
        return found

    def _outcome(self, *, is_over: bool = False) -> Tuning:
        """What is known by now. The best is taken as long as the search goes on, and then if it is better."""
        plan, trials = self.request.plan, self._trials
        default, best = self._default_and_best
        ranks = self._ranks(best), self._ranks(default)
        is_to_judge = self._is_to_judge(best)
        seeds = min(map(len, ranks))
        worth = compare(*ranks, self._criterion) if is_to_judge else None
        # What helps in a few steps may harm in many: of trials that are so short, nothing is taken.
        is_taken = is_to_judge and self._is_telling and (worth.direction > 0 if worth else not is_over)
        config = self._config_of(best if is_taken else default)
        return Tuning(
            path=self.folder,
            dataset=plan.dataset_name,
            data_checksum=plan.data_checksum,
            model=plan.model,
            metric=str(self._criterion),
            minutes=round(self.budget.spent() / 60, 2),
            steps=self._steps,
            trials=trials,
            best=best.number,
            settings=config.as_dict(),
            changes=self.space.changes(config),
            worth={**asdict(worth), "seeds": seeds} if worth else None,
            importance=importance_of(self.study.get_trials(deepcopy=False)) if is_to_judge else {},
            sentence=self._sentence(worth, seeds, is_over=is_over),
        )

    def _sentence(self, worth: Difference | None, seeds: int, *, is_over: bool) -> str:
        """What was found, how sure that is, and for which length of training it was found."""
        (short, whole), (default, best) = self._steps, self._default_and_best
        if self._has_learned(best):
            told = sentence(
                default,
                best,
                worth,
                metric=str(self._criterion),
                trials=len(self._trials),
                seeds=seeds,
                is_over=is_over,
            )
        else:
            told = (
                f"nothing was found, because no trial has learned more than what is popular ({self._criterion} "
                f"{self.floor:.4f}). The settings are those of the default."
            )
        if short == whole:
            return told[0].upper() + told[1:]
        minutes = self.plan.minutes_for_whole_ones
        return of_short_trials(told, short, whole, minutes, is_telling=self._is_telling)
