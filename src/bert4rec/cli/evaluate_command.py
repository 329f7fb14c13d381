"""`bert4rec evaluate` and `bert4rec compare`, and how metrics are shown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from bert4rec.api.runs import compare
from bert4rec.artefact import kind_of
from bert4rec.cli.console import count, messages, print_json, print_table, results, say, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Part, TargetKind
from bert4rec.errors import UsageError
from bert4rec.evaluation.judge import Evaluation
from bert4rec.evaluation.metrics import LIST_KINDS, usual_cutoff
from bert4rec.evaluation.protocol import PROTOCOLS, Protocol
from bert4rec.logs.times import format_moment, parse_moment

if TYPE_CHECKING:
    from bert4rec.api.backtest import Backtest

STAGE_BEFORE = (
    "These are the numbers of the refit, which has not seen the test items. The model that recommends and is exported "
    "was then trained on everything."
)
MOST_COLUMNS = 6
"""Metrics that fit into 80 columns side by side."""


def evaluate_command(
    run: Path,
    *,
    split: Part | None = None,
    k: str = "1,5,10",
    targets: TargetKind = "next",
    data: Path | None = None,
    since: str | None = None,
    negatives: NegativeKind = "popularity",
    device: str = "auto",
    json: Flag = False,
) -> None:
    """Evaluate a run: both protocols, by slices of users and items, and what it recommends as a whole.

    Beside it stands what counting reaches: the most popular items (POP), and what most often came right after the last
    item (Markov).

    Validation items are ranked by the model that never saw them, test items by the one of the refit. The rank of
    every user's target is kept in the run's folder.

    On another dataset than its own, with --data, a run or an exported model is judged by what users did after its data
    ended (a backtest): the first action of each, with all that the user did before as history. Both meet by ids.

    Parameters
    ----------
    run
        A folder that `bert4rec train` wrote; for a backtest also one of `bert4rec export`.
    split
        Which held-out items to evaluate on. [default: test]
    k
        Cut-offs of the metrics, separated by commas, such as 5,10,20.
    targets
        What is asked about a user: the next item, or all items of the part, with recall and precision. The latter
        requires a split by time, and is in full ranking only.
    data
        The dataset, if it has moved since the training; or a later one, for a backtest.
    since
        For a backtest: ask for actions from this date on. [default: for those after all that the model was trained on]
    negatives
        Which stored candidates to rank among; ranks are kept for popularity only.
    device
        auto, cpu, cuda, cuda:1 or mps.
    json
        Print everything as JSON.
    """
    try:
        cutoffs = [int(part) for part in k.split(",")]
    except ValueError as error:
        raise UsageError(
            f"`k={k!r}`: expected whole numbers separated by commas, such as 5,10,20."
        ) from error
    options: dict[str, Any] = {"k": cutoffs, "targets": targets, "negatives": negatives, "device": device}
    found, told = _evaluate(run, split, data, since, {**options, "progress": messages.is_terminal})
    if json:
        print_json(found.as_dict())
        return
    shown = usual_cutoff(cutoffs)
    _print_metrics(found)
    results.print()
    list_names = [f"{kind}@{shown}" for kind in LIST_KINDS]
    _print_rows("what is recommended", {found.model: found.lists, "POP": found.pop_lists}, list_names)
    for kind, title in (("activity", "by user activity"), ("popularity", "by item popularity")):
        if slices := {protocol: each[kind] for protocol, each in found.slices.items() if kind in each}:
            _print_slices(title, slices, shown)
    say(
        "POP: the most popular items. Markov: what most often came right after the last item. "
        "Coverage: the share of all items that somebody is offered. Popularity: the share of all items that are less "
        "popular than an offered one, on average. SameList: the share of users who are offered the most common list."
    )
    for sentence in told:
        say(sentence)
    if found.left_out:
        what = "next item was" if targets == "next" else "items were all"
        say(
            f"Repeats are excluded: {count(found.left_out, 'user')} whose {what} in their history already "
            f"{'is' if found.left_out == 1 else 'are'} left out."
        )
    for warning in found.warnings:
        warn(warning)


def _evaluate(
    path: Path, split: Part | None, data: Path | None, since: str | None, options: "dict[str, Any]"
) -> tuple[Evaluation, list[str]]:
    """An evaluation of a run on its own dataset, or a backtest on another; and what to say about it."""
    from bert4rec.training.plan import open_dataset
    from bert4rec.training.run import Run

    run = None if kind_of(path) == "model" else Run.open(path)
    if run and (data is None or open_dataset(data).checksum == run.plan.data_checksum):
        if since is not None:
            raise UsageError("`since` applies to a backtest, on a later `dataset`; here it is the run's own.")
        found = run.evaluate(split or "test", dataset=data, **options)
        return found, [STAGE_BEFORE] if run.final_stage == "production" and found.split == "test" else []
    if data is None:
        raise UsageError(
            "An exported model has no dataset of its own. Pass a later `dataset` to judge it on."
        )
    if split is not None:
        raise UsageError(
            f"{data} is not what the model was trained on, so it has no {split} items. Leave out `split`: what users "
            "did after the model's data ended is asked for."
        )
    from bert4rec.api.backtest import backtest

    tested = backtest(run or path, data, since=since, **options)
    return tested, _tell_of_backtest(tested)


def _tell_of_backtest(found: "Backtest") -> list[str]:
    since, until = parse_moment(found.since), found.trained.until if found.trained else None
    is_end = until is not None and since == parse_moment(until) + 1
    when = format_moment(since)
    strangers = f"{count(found.strangers, 'user')} ({found.stranger_share:.1%} of those who act since then)"
    return [
        f"Backtest: what {count(found.users, 'user')} did "
        + (f"after {when}, when the model's data ended." if is_end else f"from {when} on."),
        f"The model does not know the items of {found.unknown_targets:.1%} of what is asked for, which counts as "
        f"missed, and of {found.unknown_actions:.1%} of the actions before, which are left out. {strangers} did "
        "nothing before, and are not asked about.",
    ]


def compare_command(
    *runs: Path,
    metric: str = "NDCG@10",
    protocol: Protocol = "sampled",
    split: Part = "test",
    json: Flag = False,
) -> None:
    """Compare runs on the same items; runs that differ only in their seed count as one system.

    Every system is compared with the first: the difference, its interval and tests, over users and, if both have
    several, over seeds.

    Parameters
    ----------
    runs
        Two or more folders that `bert4rec train` wrote.
    metric
        What is compared: HR@k, NDCG@k, Recall@k, Precision@k or MRR@k with any k, or MRR.
    protocol
        Under which protocol.
    split
        On which items. Use valid while you are still choosing settings.
    json
        Print everything as JSON.
    """
    comparison = compare(*runs, metric=metric, protocol=protocol, split=split)
    compared = comparison.as_dict()
    if json:
        print_json(compared)
        return
    items = "Test items" if split == "test" else "Validation items"
    rows = [
        (each["name"], str(each["seeds"]), *metric_cells(each["metrics"])) for each in compared["systems"]
    ]
    print_table(
        ["", "seeds", *compared["systems"][0]["metrics"]],
        rows,
        title=f"{items} of {compared['dataset']}, {PROTOCOLS[protocol]}",
    )
    results.print()
    columns = ("over", "difference", "95% interval", "t-test", "Wilcoxon")
    print_table(
        [compared["metric"], *columns], [row for each in compared["differences"] for row in _difference(each)]
    )
    say(
        "total: over users and seeds together, the interval and p-value to report. users: paired tests. seeds: Welch's "
        "test. Tests are shown by their p-values."
    )
    if not all(each["seeds"] for each in compared["differences"]):
        say("To see how much is luck of the seed, train two runs or more of both with different --seed.")
    other: Protocol = "full" if protocol == "sampled" else "sampled"
    say(f"The tables show {PROTOCOLS[protocol]}. For {PROTOCOLS[other]} use --protocol {other}.")
    refitted = [each["name"] for each in compared["systems"] if each["refitted"]]
    if split == "test" and 0 < len(refitted) < len(compared["systems"]):
        warn(
            f"Only {' and '.join(refitted)} learned from the validation items too, by a refit. That alone may make "
            "the difference."
        )
    results.print()
    for sentence in comparison.sentences:
        results.print(escape(sentence))


def _difference(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Rows over users and seeds together, over users and, where both systems have several runs, over seeds."""
    name = f"{found['name']} − {found['against']}"
    for over in ("total", "users", "seeds"):
        if compared := found[over]:
            interval = f"[{compared['low']:+.4f}, {compared['high']:+.4f}]"
            wilcoxon = _p_value(compared["wilcoxon"]) if over == "users" else "–"
            yield (
                name,
                over,
                f"{compared['difference']:+.4f}",
                interval,
                _p_value(compared["t_test"]),
                wilcoxon,
            )
            name = ""


def print_results(lines: Sequence[Mapping[str, Any]]) -> None:
    """The metrics of results lines, both protocols, one row each."""
    rows = [
        (f"{line['split']}, {protocol} ({line['stage']})", *metric_cells(line["metrics"][protocol]))
        for line in lines
        for protocol in PROTOCOLS
    ]
    first = lines[0]
    loss = first.get("config", {}).get("objective", {}).get("loss")
    model = f"{first['model']} ({loss})" if loss else first["model"]
    print_table([f"{model} on {first['dataset']}", *first["metrics"]["sampled"]], rows)


def metric_cells(metrics: Mapping[str, float]) -> list[str]:
    return [f"{value:.4f}" for value in metrics.values()]


def _print_metrics(found: Evaluation) -> None:
    """As `print_results` does, if that is not too wide; otherwise a row for each metric."""
    names = list(found.metrics["full"])
    if found.targets == "next" and len(names) <= MOST_COLUMNS:
        beside = {"POP": found.pop, "Markov": found.markov}
        counted = [
            {"stage": name, "split": found.split, "metrics": metrics} for name, metrics in beside.items()
        ]
        print_results([found.as_dict(), *counted])
        return
    columns = {
        f"{protocol}\n({stage})": values
        for stage, metrics in ((found.stage, found.metrics), ("POP", found.pop), ("Markov", found.markov))
        for protocol, values in metrics.items()
    }
    asked = ", all targets" if found.targets == "all" else ""
    _print_rows(f"{found.model} on {found.dataset}, {found.split}{asked}", columns, names)


def _print_rows(title: str, columns: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> None:
    """A row for each of the metrics."""
    rows = [(name, *(f"{values[name]:.4f}" for values in columns.values())) for name in names]
    print_table([title, *columns], rows)


def _print_slices(title: str, slices: Mapping[str, Sequence[Mapping[str, Any]]], k: int) -> None:
    """The same slices under each protocol, at one cut-off."""
    known = slices["full"][0]["metrics"]
    shown = [name for name in (f"HR@{k}", f"NDCG@{k}", f"Recall@{k}") if name in known]
    rows = [
        (
            same[0]["label"],
            f"{same[0]['users']:,}",
            *(f"{each['metrics'][name]:.4f}" for each in same for name in shown),
        )
        for same in zip(*slices.values(), strict=True)
    ]
    results.print()
    columns = [f"{name}\n{protocol}" for protocol in slices for name in shown]
    print_table([title, "users", *columns], rows)


def _p_value(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
