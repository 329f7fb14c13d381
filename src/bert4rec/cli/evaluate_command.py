"""`bert4rec evaluate` and `bert4rec compare`, and how metrics are shown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from bert4rec.api.runs import compare
from bert4rec.cli.console import count, messages, print_json, print_table, results, say, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Part
from bert4rec.errors import UsageError
from bert4rec.evaluation.protocol import PROTOCOLS, Protocol


def evaluate_command(
    run: Path,
    *,
    split: Part = "test",
    k: str = "1,5,10",
    data: Path | None = None,
    negatives: NegativeKind = "popularity",
    device: str = "auto",
    json: Flag = False,
) -> None:
    """Evaluate a run: both protocols, beside POP, and by slices of user activity and item popularity.

    Validation items are ranked by the model that never saw them, test items by the final one. The rank of
    every user's target is kept in the run's folder.

    Parameters
    ----------
    run
        A folder that `bert4rec train` wrote.
    split
        Which held-out items to evaluate on.
    k
        Cut-offs of HR and NDCG, separated by commas, such as 5,10,20.
    data
        The dataset, if it has moved since the training.
    negatives
        Which stored candidates to rank among; ranks are kept for popularity only.
    device
        auto, cpu, cuda or cuda:1.
    json
        Print everything as JSON.
    """
    from bert4rec.training.run import Run

    try:
        cutoffs = [int(part) for part in k.split(",")]
    except ValueError as error:
        raise UsageError(
            f"`k={k!r}`: expected whole numbers separated by commas, such as 5,10,20."
        ) from error
    found = Run.open(run).evaluate(
        split, cutoffs, dataset=data, negatives=negatives, device=device, progress=messages.is_terminal
    )
    facts = found.as_dict()
    if json:
        print_json(facts)
        return
    print_results([facts, {"stage": "POP", "split": split, "metrics": found.pop}])
    for kind, title in (("activity", "by user activity"), ("popularity", "by item popularity")):
        _print_slices(title, found.slices["sampled"][kind], found.slices["full"][kind])
    if found.left_out:
        say(
            f"Repeats are excluded: {count(found.left_out, 'user')} whose next item was in their history already "
            f"{'is' if found.left_out == 1 else 'are'} left out."
        )
    for warning in found.warnings:
        warn(warning)


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
        What is compared: HR@k, NDCG@k with any k, or MRR.
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
    print_table([metric, *columns], [row for each in compared["differences"] for row in _difference(each)])
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


def _print_slices(
    title: str, sampled: Sequence[Mapping[str, Any]], full: Sequence[Mapping[str, Any]]
) -> None:
    """At one cut-off: 10, or the largest one."""
    known = sampled[0]["metrics"]
    largest = [name for name in known if name.startswith("HR@")][-1]
    cutoff = "10" if "HR@10" in known else largest.removeprefix("HR@")
    shown = [name for name in (f"HR@{cutoff}", f"NDCG@{cutoff}") if name in known]
    rows = [
        (
            one["label"],
            f"{one['users']:,}",
            *(f"{each['metrics'][name]:.4f}" for each in (one, other) for name in shown),
        )
        for one, other in zip(sampled, full, strict=True)
    ]
    results.print()
    columns = [f"{name}\n{protocol}" for protocol in ("sampled", "full") for name in shown]
    print_table([title, "users", *columns], rows)


def _p_value(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
