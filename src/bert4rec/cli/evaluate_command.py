"""`bert4rec evaluate` and `bert4rec compare`, and how metrics are shown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape

from bert4rec.cli.console import count, print_json, print_table, results, say, warn
from bert4rec.cli.needs import require_folder, require_torch
from bert4rec.cli.prepare_command import Flag
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Part
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.evaluation.metrics import METRICS

PROTOCOLS = {"sampled": "up to 100 sampled negatives", "full": "full ranking"}
Protocol = Literal["sampled", "full"]
A_RUN = "a run written by bert4rec"


def evaluate_command(
    run: Path,
    *,
    split: Part = "test",
    data: Path | None = None,
    negatives: NegativeKind = "popularity",
    device: str = "auto",
    json: Flag = False,
) -> None:
    """Judge a run: both protocols, and by slices of user activity and item popularity.

    Validation items are judged with the model that never saw them, test items with the final one. The rank of
    every user's target is kept in the run's folder.

    Parameters
    ----------
    run
        A folder that `bert4rec train` wrote.
    split
        Which held-out items to judge on.
    data
        The dataset, if it has moved since the training.
    negatives
        Which stored candidates to rank among; ranks are kept for popularity only.
    device
        auto, cpu, cuda or cuda:1.
    json
        Print everything as JSON.
    """
    require_folder(run, A_RUN)
    require_torch()
    from bert4rec.data.dataset import Dataset
    from bert4rec.data.leakage import too_little_to_judge
    from bert4rec.data.splits import make_split
    from bert4rec.evaluation.judge import judge, metrics_of, slices_of
    from bert4rec.models.pop import Pop
    from bert4rec.training.device import place
    from bert4rec.training.run import Run

    opened = Run.open(run)
    opened.verify()
    if data is None and not Path(opened.plan.dataset).is_dir():
        raise NotFoundError(
            f"The dataset is no longer at {opened.plan.dataset}. Say where it is with --data."
        )
    dataset = Dataset.open(data or opened.plan.dataset)
    dataset.verify()
    opened.plan.check_dataset(dataset)
    placement = place(device)
    cut = make_split(dataset, opened.plan.split)
    scorer = opened.scorer(split, placement)
    ranks = judge(scorer, dataset, cut, split, placement.device.type, negatives)
    if negatives == "popularity":
        opened.keep_ranks(split, ranks)
    targets = cut.targets(split)
    facts = {
        "dataset": dataset.name,
        "model": opened.plan.model,
        "stage": opened.stage_for(split),
        "split": split,
        "repeats": dataset.repeats,
        "users": len(targets),
        "left_out": targets.left_out,
        "metrics": metrics_of(ranks),
    }
    pop = Pop.fit(dataset, cut.training_end(split))
    baseline = {
        "model": "POP",
        "stage": "POP",
        "split": split,
        "metrics": metrics_of(judge(pop.scores, dataset, cut, split, candidates=negatives)),
    }
    slices = slices_of(ranks, dataset, cut, split)
    if json:
        print_json({**facts, "slices": slices, "pop": baseline["metrics"]})
        return
    print_results([facts, baseline])
    for kind, title in (("activity", "by user activity"), ("popularity", "by item popularity")):
        _print_slices(title, slices["sampled"][kind], slices["full"][kind])
    if targets.left_out:
        say(
            f"Repeats are excluded: {count(targets.left_out, 'user')} whose next item was in their history already "
            f"{'is' if targets.left_out == 1 else 'are'} left out."
        )
    for warning in too_little_to_judge(dataset, targets):
        warn(warning)


def compare_command(
    *runs: Path,
    metric: Literal["HR@1", "HR@5", "HR@10", "NDCG@5", "NDCG@10", "MRR"] = "NDCG@10",
    protocol: Protocol = "sampled",
    split: Part = "test",
    json: Flag = False,
) -> None:
    """Compare runs on the same items; runs that differ only in their seed count as one system.

    Every system is compared with the first: the difference, its interval and tests, over users and, where both
    have several, over seeds.

    Parameters
    ----------
    runs
        Two or more folders that `bert4rec train` wrote.
    metric
        What is compared.
    protocol
        Under which protocol.
    split
        On which items. While you are still choosing settings, on those of valid.
    json
        Print everything as JSON.
    """
    if len(runs) < 2:
        raise UsageError("Name two runs or more to compare.")
    for run in runs:
        require_folder(run, A_RUN)
    require_torch()
    from bert4rec.training.comparison import compare_runs

    comparison = compare_runs(runs, metric=metric, protocol=protocol, part=split)
    compared = comparison.as_dict()
    if json:
        print_json(compared)
        return
    items = "Test items" if split == "test" else "Validation items"
    rows = [
        (each["name"], str(each["seeds"]), *metric_cells(each["metrics"])) for each in compared["systems"]
    ]
    print_table(
        ["", "seeds", *METRICS], rows, title=f"{items} of {compared['dataset']}, {PROTOCOLS[protocol]}"
    )
    results.print()
    columns = ("over", "difference", "95% interval", "t-test", "Wilcoxon")
    print_table([metric, *columns], [row for each in compared["differences"] for row in _difference(each)])
    say(
        "total: over users and seeds together, the interval and p-value to report. users: paired tests. seeds: Welch's "
        "test. Tests are shown by their p-values."
    )
    if not all(each["seeds"] for each in compared["differences"]):
        say("How much is luck of the seed takes two runs or more of both, trained with different --seed.")
    other = "full" if protocol == "sampled" else "sampled"
    say(f"The tables are about {PROTOCOLS[protocol]}. For {PROTOCOLS[other]} say --protocol {other}.")
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
    print_table([f"{model} on {first['dataset']}", *METRICS], rows)


def metric_cells(metrics: Mapping[str, float]) -> list[str]:
    return [f"{metrics[name]:.4f}" for name in METRICS]


def _print_slices(
    title: str, sampled: Sequence[Mapping[str, Any]], full: Sequence[Mapping[str, Any]]
) -> None:
    rows = [
        (
            one["label"],
            f"{one['users']:,}",
            *(f"{each['metrics'][name]:.4f}" for each in (one, other) for name in ("HR@10", "NDCG@10")),
        )
        for one, other in zip(sampled, full, strict=True)
    ]
    results.print()
    protocols = ("HR@10\nsampled", "NDCG@10\nsampled", "HR@10\nfull", "NDCG@10\nfull")
    print_table([title, "users", *protocols], rows)


def _p_value(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
