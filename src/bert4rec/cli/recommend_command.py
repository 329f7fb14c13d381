"""`bert4rec recommend`: for one history, for a user of the dataset, or for everybody in a file."""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bert4rec.cli.console import count, print_json, print_table, progress, say, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset
    from bert4rec.recommend.catalogue import Catalogue
    from bert4rec.recommend.recommender import Recommendation, Recommender

MOST_HINTS = 3
"""At what unknown items may have meant. Who has more of them has taken another catalogue, not slipped."""


def recommend_command(
    model: Path,
    *,
    history: str | None = None,
    user: str | None = None,
    source: Annotated[Path | None, Parameter(name="--input")] = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    k: Annotated[int, Parameter(alias="-k")] = 10,
    exclude_seen: bool | None = None,
    allow: str | None = None,
    deny: str | None = None,
    data: Path | None = None,
    user_col: str | None = None,
    item_col: str | None = None,
    time_col: str | None = None,
    time_format: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    threads: int = 1,
    overwrite: Flag = False,
    json: Flag = False,
) -> None:
    """Recommend items: for a history, for a user of the dataset, or for everybody in a file.

    Give one of --history, --user and --input. Unknown items are skipped and named; where nothing of a history
    is known, the most popular items are recommended, and that is said.

    Parameters
    ----------
    model
        A run that `bert4rec train` wrote, or a model that `bert4rec export` wrote.
    history
        Item ids, oldest first, with commas between them; an id with a comma stands in double quotes.
    user
        Id of a user of the dataset; all that is known of them counts.
    source
        A file with a list of items a user (Parquet, Feather, JSON Lines), a log as `prepare` takes it, or a dataset
        folder.
    output
        With --input: the file to write, .parquet, .csv or .jsonl. If interrupted, the same command goes on.
    k
        How many items to recommend, at most.
    exclude_seen
        Leave out what is in the history, or with --no-exclude-seen do not. [default: as `prepare --repeats` has it]
    allow
        Recommend nothing but these ids, with commas between them.
    deny
        Never recommend these ids.
    data
        With --user: the dataset, if it is not where the run was trained from.
    user_col
        With --input: column of the user. Columns are guessed from usual names.
    item_col
        With --input: column of the item, or of the list of items.
    time_col
        With --input: column of the time, in a log. With `none`, the order of the rows counts.
    time_format
        With --input: how dates that are not ISO are written, such as '%d/%m/%Y'.
    separator
        With --input: between the fields of text files, such as '^' or '||'. Usual ones are guessed.
    encoding
        With --input: of text files that are not UTF-8, such as latin-1.
    device
        Of a run: auto, cpu, cuda or cuda:1.
    threads
        Of an exported model: how many processors to use.
    overwrite
        Replace the output, or the parts of another request.
    json
        Print the recommendations as JSON.
    """
    from bert4rec.recommend.recommender import check_k, is_exported

    if sum(given is not None for given in (history, user, source)) != 1:
        raise UsageError("Say for whom: give one of --history, --user and --input.")
    check_k(k)
    if (source is None) != (output is None):
        raise UsageError("--input and --output belong together.")
    columns, hints = (user_col, item_col, time_col), (encoding, separator, time_format)
    if source is not None and (allow or deny or json):
        raise UsageError("--allow, --deny and --json go with --history and --user.")
    if source is None and (overwrite or any(said is not None for said in (*columns, *hints))):
        raise UsageError(
            "--time-format, --separator, --encoding, --user-col, --item-col, --time-col and --overwrite go with "
            "--input."
        )
    if user is None and data is not None:
        raise UsageError("--data goes with --user.")
    if is_exported(model) and device not in ("auto", "cpu"):
        raise UsageError("--device goes with a run; an exported model is computed on the CPU.")
    if threads != 1 and not is_exported(model):
        raise UsageError("--threads goes with an exported model.")
    options = _Options(model, k, exclude_seen, _ids(allow), _ids(deny), device, threads)
    if source is not None and output is not None:
        _recommend_file(options, source, output, columns, hints, overwrite=overwrite)
        return
    found, catalogue = (
        options.for_history(_ids(history) or []) if history is not None else options.for_user(str(user), data)
    )
    if json:
        print_json(asdict(found))
    else:
        _show(found, catalogue)


@dataclass(frozen=True)
class _Options:
    """What the three ways to ask have in common."""

    model: Path
    k: int
    exclude_seen: bool | None
    allow: list[str] | None
    deny: list[str] | None
    device: str
    threads: int

    def load(self) -> "Recommender":
        from bert4rec.cli.needs import require_torch
        from bert4rec.recommend.recommender import Recommender, is_exported

        if not is_exported(self.model):
            require_torch()
        return Recommender.load(self.model, threads=self.threads, device=self.device)

    def for_history(self, history: list[str]) -> "tuple[Recommendation, Catalogue]":
        recommender = self.load()
        found = recommender.recommend(
            history, self.k, exclude_seen=self.exclude_seen, allow=self.allow, deny=self.deny
        )
        return found, recommender.catalogue

    def for_user(self, user: str, data: Path | None) -> "tuple[Recommendation, Catalogue]":
        from bert4rec.recommend.catalogue import Catalogue
        from bert4rec.recommend.known_users import history_of, recommend_to_user, user_number
        from bert4rec.recommend.recommender import is_exported

        if is_exported(self.model):
            if data is None:
                raise UsageError("An exported model knows no users: say with --data which dataset has them.")
            dataset = open_dataset(data)
            return self.for_history(history_of(dataset, user_number(dataset, user)))
        from bert4rec.training.device import place
        from bert4rec.training.run import Run
        from bert4rec.training.specs import MODELS

        run = Run.open(self.model)
        dataset = open_dataset(data or Path(run.plan.dataset))
        number = user_number(dataset, user)
        if not MODELS[run.plan.model].knows_users:
            return self.for_history(history_of(dataset, number))
        run.verify()
        run.plan.check_dataset(dataset)
        catalogue = Catalogue.read_table(run.path / "items.parquet")
        found = recommend_to_user(
            run,
            catalogue,
            dataset,
            number,
            place(self.device),
            self.k,
            exclude_seen=self.exclude_seen,
            allow=self.allow,
            deny=self.deny,
        )
        return found, catalogue


def _recommend_file(
    options: _Options,
    source: Path,
    output: Path,
    columns: tuple[str | None, ...],
    hints: tuple[str | None, ...],
    *,
    overwrite: bool,
) -> None:
    from bert4rec.logs.columns import ColumnRequest
    from bert4rec.logs.files import Hints
    from bert4rec.recommend.bulk import Request, recommend_file

    request = Request(
        source,
        output,
        k=options.k,
        exclude_seen=options.exclude_seen,
        columns=ColumnRequest(*columns),
        hints=Hints(*hints),
    )
    request.check_target(overwrite=overwrite)
    recommender = options.load()
    try:
        with progress("Recommending", "users") as report:
            tally = recommend_file(recommender, request, overwrite=overwrite, progress=report)
    except KeyboardInterrupt:
        say("What is finished is kept: the same command goes on from here.")
        raise
    if tally.resumed:
        say(f"{count(tally.resumed, 'user')} had been answered before.")
    if tally.unknown:
        warn(f"Skipped {count(tally.unknown, 'action')} on items that the model does not know.")
    if tally.fallbacks:
        warn(
            f"No known item in the history of {count(tally.fallbacks, 'user')}: they get the most popular ones."
        )
    say(f"Wrote {output}: {count(tally.users, 'user')}.")


def _show(found: "Recommendation", catalogue: "Catalogue") -> None:
    if found.unknown_items:
        near = filter(None, map(catalogue.near, found.unknown_items[:MOST_HINTS]))
        meant = " and ".join(dict.fromkeys(map(catalogue.describe, near)))
        hint = f" Did you mean {meant}?" if meant else ""
        warn(f"The model does not know {', '.join(map(repr, found.unknown_items))}; skipped.{hint}")
    if found.fallback:
        warn("No known item to go by: these are the most popular ones.")
    if not found.items:
        say("Nothing is left to recommend.")
        return
    # Popularity is a count.
    form, measure = (",.0f", "actions") if found.fallback else (".4f", "score")
    # Some models know a user without looking at the history.
    head = found.fallback or (f"after {count(found.used, 'item')}" if found.used else "item")
    scores = [format(item.score, form) for item in found.items]
    ids = [item.item_id for item in found.items]
    if catalogue.titles is None:
        print_table([head, measure], list(zip(ids, scores, strict=True)))
        return
    titles = [item.title or item.item_id for item in found.items]
    print_table([head, "id", measure], list(zip(titles, ids, scores, strict=True)))


def open_dataset(path: Path) -> "Dataset":
    from bert4rec.data.dataset import Dataset

    if not path.is_dir():
        raise NotFoundError(f"The dataset is not at {path}. Say where it is with --data.")
    return Dataset.open(path)


def _ids(text: str | None) -> list[str] | None:
    """Ids that hold commas stand in quotes, as in CSV."""
    if text is None:
        return None
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return [part.strip() for part in parts if part.strip()]
