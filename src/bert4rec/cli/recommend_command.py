"""`bert4rec recommend`: for one history, for a user of the dataset, or for everybody in a file."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from bert4rec.api.runs import load
from bert4rec.cli.console import count, print_json, print_table, progress, say, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.cli.process import loading
from bert4rec.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from bert4rec.logs.columns import ColumnRequest
    from bert4rec.recommend.answers import Recommendation
    from bert4rec.recommend.bulk import Tally
    from bert4rec.recommend.catalogue import Catalogue, Id
    from bert4rec.recommend.rules.rules import Rules

MOST_HINTS = 3
"""How many unknown items get a hint at what was meant. More of them mean another catalogue, not a typing error."""
MOST_NAMED = 5
"""How many items are named if all are unknown."""


def recommend_command(
    model: Path,
    *,
    history: str | None = None,
    user: str | None = None,
    source: Annotated[str | None, Parameter(name="--input")] = None,
    output: Annotated[str | None, Parameter(alias="-o")] = None,
    k: Annotated[int, Parameter(alias="-k")] = 10,
    exclude_seen: bool | None = None,
    allow: str | None = None,
    deny: str | None = None,
    where: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    diversity: float = 0.0,
    data: Path | None = None,
    user_col: str | None = None,
    item_col: str | None = None,
    time_col: str | None = None,
    time_format: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    threads: int = 1,
    quantised: bool = True,
    approximate: Flag = False,
    force: Flag = False,
    engine: Literal["embedded", "spark"] = "embedded",
    master: str | None = None,
    overwrite: Flag = False,
    json: Flag = False,
) -> None:
    """Recommend items: for a history, for a user of the dataset, or for everybody in a file.

    Give one of --history, --user and --input. Unknown items are skipped and named. If nothing of --history is known,
    that is an error; with an empty one ('') the most popular items are recommended, and so they are, with a warning, to
    users of --input of whom nothing is known.

    Parameters
    ----------
    model
        A run that `bert4rec train` wrote, or a model that `bert4rec export` wrote.
    history
        Item ids, oldest first, separated by commas; write an id that has a comma in double quotes.
    user
        Id of a user of the dataset; the whole history in the dataset counts.
    source
        A file with a list of items for each user (Parquet, Feather, JSON Lines), a log as `prepare` reads it, or a
        dataset folder. With --engine spark: whatever Spark reads, a table or files in a lake.
    output
        With --input: the file to write, .parquet, .csv or .jsonl. If interrupted, the same command continues. With
        --engine spark: the folder to write, of parts in the format that its name ends in, otherwise Parquet.
    k
        How many items to recommend, at most.
    exclude_seen
        Leave out items of the history, or with --no-exclude-seen keep them. [default: as `prepare --repeats` has it]
    allow
        Recommend nothing but these item ids, separated by commas.
    deny
        Never recommend these item ids, separated by commas.
    where
        Recommend nothing but items with this attribute, such as category=tea,coffee (one of them), category!=tea,
        'price<20' or 'price>=5'; can be repeated, and all conditions must hold. Attributes are the columns of
        `prepare --items`.
    diversity
        From 0, the best items by score, to 1, items that differ as much as possible from those above them.
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
        Of a run: auto, cpu, cuda, cuda:1 or mps.
    threads
        Of an exported model: how many processors to use.
    quantised
        Of an exported model: search 100,000 items and more by vectors of whole numbers first. The answers are the same;
        --no-quantised takes several times as long and a quarter less memory.
    approximate
        Of a model that was exported with --approximate: search its index instead of all items. Scores are exact; now
        and then one of the best items is not found.
    force
        Use an exported model even if it recommends the same to everybody.
    engine
        With --input: who computes. `embedded` is this process; `spark` answers the same on Apache Spark, with an
        exported model.
    master
        With --engine spark: where, such as local[2], spark://HOST:7077 or yarn. [default: as Spark is configured,
        otherwise this machine]
    overwrite
        Replace the output, or the parts of another request.
    json
        Print the recommendations as JSON.
    """
    from bert4rec.logs.columns import ColumnRequest
    from bert4rec.recommend.rules.rules import Rules
    from bert4rec.recommend.rules.where import read_where

    spark_options = (engine == "spark", master)
    file_options = (
        user_col,
        item_col,
        time_col,
        time_format,
        separator,
        encoding,
        overwrite or None,
    )
    _check_options(history, user, source, output, data, file_options, spark_options, json=json)
    Rules(k, diversity=diversity)  # before anything is loaded
    if engine == "spark":
        assert source is not None
        assert output is not None
        _refuse_for_spark(
            device=device != "auto",
            threads=threads != 1,
            time_format=time_format is not None,
            separator=separator is not None,
            encoding=encoding is not None,
            approximate=approximate,
        )
        rules = Rules(k, exclude_seen, _ids(allow), _ids(deny), None, diversity)
        columns = ColumnRequest.of(user_col, item_col, time_col)
        _recommend_on_spark(
            model,
            source,
            output,
            rules,
            columns,
            where,
            master,
            quantised=quantised,
            force=force,
            overwrite=overwrite,
        )
        return
    ready = partial(
        load, model, device=device, threads=threads, quantised=quantised, approximate=approximate, force=force
    )
    if source is not None and output is not None:
        from bert4rec.recommend.bulk import Request

        Request(Path(source), Path(output)).check_target(overwrite=overwrite)  # before anything is loaded
        try:
            with progress("Recommending", "users") as report:
                with loading():
                    recommender = ready()
                tally = recommender.recommend_file(
                    source,
                    output,
                    k,
                    user=user_col,
                    item=item_col,
                    time=time_col,
                    time_format=time_format,
                    separator=separator,
                    encoding=encoding,
                    exclude_seen=exclude_seen,
                    allow=_ids(allow),
                    deny=_ids(deny),
                    where=read_where(where, recommender.filters.attributes),
                    diversity=diversity,
                    overwrite=overwrite,
                    progress=False,
                    callback=report,
                )
        except KeyboardInterrupt:
            say("What is finished is kept: the same command continues from here.")
            raise
        _say_if_too_many(k, recommender.catalogue)
        _print_tally(tally, output, recommender.catalogue)
        return
    with loading():
        recommender = ready()
    allowed, denied = _ids(allow), _ids(deny)
    filtered = read_where(where, recommender.filters.attributes)
    if user is not None:
        found = recommender.recommend_user(
            user,
            k,
            dataset=data,
            exclude_seen=exclude_seen,
            allow=allowed,
            deny=denied,
            where=filtered,
            diversity=diversity,
        )
    else:
        items = _ids(history) or []
        found = recommender.recommend(
            items,
            k,
            exclude_seen=exclude_seen,
            allow=allowed,
            deny=denied,
            where=filtered,
            diversity=diversity,
        )
        if items and found.fallback:
            raise _nothing_known(items, recommender.catalogue)
    _say_if_too_many(k, recommender.catalogue)
    if json:
        print_json(asdict(found))
    else:
        _print(found, recommender.catalogue)


def _check_options(
    history: str | None,
    user: str | None,
    source: str | None,
    output: str | None,
    data: Path | None,
    file_options: Sequence[object],
    spark_options: tuple[bool, str | None],
    *,
    json: bool,
) -> None:
    """Refuse options that do not go together."""
    if sum(given is not None for given in (history, user, source)) != 1:
        raise UsageError("One of --history, --user and --input is required.")
    if (source is None) != (output is None):
        raise UsageError("--input requires --output." if output is None else "--output requires --input.")
    if source is not None and json:
        raise UsageError("--json requires --history or --user.")
    if source is None and any(said is not None for said in file_options):
        raise UsageError(
            "--time-format, --separator, --encoding, --user-col, --item-col, --time-col and --overwrite "
            "require --input."
        )
    if user is None and data is not None:
        raise UsageError("--data requires --user.")
    on_spark, master = spark_options
    if on_spark and source is None:
        raise UsageError("--engine spark requires --input and --output.")
    if master is not None and not on_spark:
        raise UsageError("--master requires --engine spark.")


def _refuse_for_spark(**given: bool) -> None:
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError(
            f"--{name.replace('_', '-')} is for one machine. Spark reads its tables by itself, and answers with one "
            "thread for each of its tasks: leave it out, or leave out --engine."
        )


def _recommend_on_spark(
    model: Path,
    source: str,
    output: str,
    rules: "Rules",
    columns: "ColumnRequest",
    where: Sequence[str],
    master: str | None,
    *,
    quantised: bool,
    force: bool,
    overwrite: bool,
) -> None:
    from bert4rec.recommend.rules.where import read_where
    from bert4rec.spark.bulk_answers import check_target, open_model, recommend_table
    from bert4rec.spark.session import open_session

    with loading():
        recommender = open_model(model, quantised=quantised, force=force)
        rules.where = read_where(where, recommender.filters.attributes)
        _, unknown = recommender.question((), rules)
        spark = open_session(master)
    check_target(spark, output, overwrite=overwrite)
    tally = recommend_table(
        source,
        output,
        model,
        recommender,
        rules,
        columns,
        spark=spark,
        quantised=quantised,
        overwrite=overwrite,
    )
    _say_if_too_many(rules.k, recommender.catalogue)
    _print_tally(replace(tally, unknown_options=tuple(unknown)), output, recommender.catalogue)


def _print_tally(tally: "Tally", output: str, catalogue: "Catalogue") -> None:
    _warn_of_unknown(tally.unknown_options, catalogue)
    if tally.resumed:
        say(f"{count(tally.resumed, 'user')} had been answered before.")
    if tally.unknown:
        warn(f"Skipped {count(tally.unknown, 'action')} on items that the model does not know.")
    if tally.fallbacks:
        warn(
            f"No known item in the history of {count(tally.fallbacks, 'user')}: they get the most popular ones."
        )
    say(f"Wrote {output}: {count(tally.users, 'user')}.")


def _say_if_too_many(k: int, catalogue: "Catalogue") -> None:
    if k > (known := catalogue.num_known):
        say(f"-k {k} is more than the model knows: there are {count(known, 'item')}.")


def _nothing_known(items: Sequence[str], catalogue: "Catalogue") -> NotFoundError:
    more = f" and {len(items) - MOST_NAMED:,} more" if len(items) > MOST_NAMED else ""
    hint = _hint(items, catalogue) or f" A known item is {catalogue.known_id!r}."
    return NotFoundError(
        f"The model knows no item of --history: {', '.join(map(repr, items[:MOST_NAMED]))}{more}.{hint} For the most "
        "popular items, use --history ''."
    )


def _warn_of_unknown(ids: Sequence["Id"], catalogue: "Catalogue") -> None:
    if ids:
        warn(f"The model does not know {', '.join(map(repr, ids))}; skipped.{_hint(ids, catalogue)}")


def _hint(ids: Sequence["Id"], catalogue: "Catalogue") -> str:
    """What was probably meant by unknown ids."""
    near = filter(None, map(catalogue.near, map(str, ids[:MOST_HINTS])))
    meant = " and ".join(dict.fromkeys(map(catalogue.describe, near)))
    return f" Did you mean {meant}?" if meant else ""


def _print(found: "Recommendation", catalogue: "Catalogue") -> None:
    _warn_of_unknown(found.unknown_items, catalogue)
    if found.fallback:
        warn("No known item in the history: these are the most popular ones.")
    if not found.items:
        say("No items to recommend: all are excluded.")
        return
    # Popularity is a count.
    form, measure = (",.0f", "actions") if found.fallback else (".4f", "score")
    # Some models know a user without looking at the history.
    head = found.fallback or (f"after {count(found.used, 'item')}" if found.used else "item")
    scores = [format(item.score, form) for item in found.items]
    ids = [str(item.item_id) for item in found.items]
    if catalogue.titles is None:
        print_table([head, measure], list(zip(ids, scores, strict=True)))
        return
    titles = [item.title or item_id for item, item_id in zip(found.items, ids, strict=True)]
    print_table([head, "id", measure], list(zip(titles, ids, scores, strict=True)))


def _ids(text: str | None) -> list[str] | None:
    """Ids that hold commas stand in quotes, as in CSV."""
    if text is None:
        return None
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return [part.strip() for part in parts if part.strip()]
