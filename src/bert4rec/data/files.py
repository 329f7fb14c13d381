"""Which files make up a log, and how each is written."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bert4rec.data.columns import guess_columns, made_up_names
from bert4rec.errors import DataError, NotFoundError, UsageError

Format = Literal["csv", "parquet", "jsonl", "lines"]
_FORMAT_BY_ENDING: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_COMPRESSIONS = {".gz", ".zst"}
_OTHER_ENDINGS = {".txt", ".dat", ".data", ".log", ".inter"}
_SEPARATORS = ("\t", ",", ";", "|")


@dataclass(frozen=True)
class LogFile:
    """One file of a log."""

    path: Path
    format: Format
    separator: str = ","
    """Between the fields of a `csv` file."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a `csv` file: from its header, or made up where it has none."""
    has_header: bool = True
    quote: str | None = '"'
    """What surrounds fields of a `csv` file that hold separators; None where a quote is a character like any other."""


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """Every file named by paths, folders and globs, in a stable order, each once."""
    found: dict[Path, None] = {}
    for source in sources:
        for path in _expand(str(source)):
            found[path] = None
    return list(found)


def inspect_file(path: Path) -> LogFile:
    """Tell how a file is written, by its ending where that says it and by its first lines otherwise."""
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    ending = _ending(path)
    if _FORMAT_BY_ENDING.get(ending) == "parquet":
        return LogFile(path, "parquet")
    lines = [line for line in first_lines(path) if line.strip()]
    if not lines:
        raise DataError(f"{path} has nothing but blank lines.")
    if _FORMAT_BY_ENDING.get(ending) == "jsonl" or lines[0].lstrip().startswith("{"):
        return LogFile(path, "jsonl")
    separator = "\t" if ending == ".tsv" else _guess_separator(lines, certain=ending == ".csv")
    if separator is None or (separator == "\t" and _is_ragged(lines, separator)):
        return LogFile(path, "lines")
    names = _fields(lines[0], separator)
    if doubled := next((name for name in names if names.count(name) > 1 and not _is_number(name)), None):
        raise DataError(f"{path} has two columns called {doubled!r}. Rename one of them.")
    quote = '"' if separator != "\t" or _has_quoted_field(lines) else None
    file = LogFile(path, "csv", separator, tuple(names), quote=quote)
    return without_header(file) if any(_is_number(name) for name in names) else file


def without_header(file: LogFile) -> LogFile:
    """The same file, its first line being data."""
    return replace(file, columns=tuple(made_up_names(len(file.columns))), has_header=False)


def first_lines(path: Path, count: int = 100) -> list[str]:
    import polars as pl

    try:
        lines: list[str] = pl.scan_lines(path, glob=False).head(count).collect().to_series().to_list()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise unreadable(path, error) from error
    return lines


def unreadable(path: Path, error: Exception) -> DataError:
    """Say in a user's words why a file could not be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if re.search("unexpected end of file|incomplete frame|must end with PAR1", reason):
        return DataError(f"{path} ends too early: the file is cut off ({reason}). Copy or download it again.")
    if re.search("utf-?8", reason):
        return DataError(
            f"{path}{_first_bad_line(path)} is not UTF-8 text. If you know its encoding, say e.g. --encoding latin-1."
        )
    return DataError(f"{path} cannot be read: {reason}")


def _expand(source: str) -> Iterable[Path]:
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and _is_log(entry))
        if not files:
            raise NotFoundError(f"{path} holds no CSV, TSV, Parquet, JSON Lines or text file.")
        return files
    if path.is_file():
        return [path]
    pattern = path.relative_to(path.anchor)
    matches = sorted(match for match in Path(path.anchor).glob(str(pattern)) if match.is_file())
    if not matches:
        raise NotFoundError(f"{source} does not exist, and no file matches it.")
    return matches


def _is_log(path: Path) -> bool:
    return not path.name.startswith((".", "_")) and _ending(path) in {*_FORMAT_BY_ENDING, *_OTHER_ENDINGS}


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _guess_separator(lines: list[str], *, certain: bool) -> str | None:
    """The separator every line has, or None for words between blanks ("user item item …")."""
    for separator in _SEPARATORS:
        if all(separator in line for line in lines):
            return separator
    if {"user", "item"} <= guess_columns(lines[0].split()).keys() or _ends_in_times(lines):
        return " "
    return "," if certain else None


def _ends_in_times(lines: list[str]) -> bool:
    """Rows of equal length that end in an epoch time are a table, not histories."""
    rows = [line.split() for line in lines]
    return (
        len({len(row) for row in rows}) == 1
        and len(rows[0]) > 2
        and all(_is_number(row[-1]) and float(row[-1]) > 1e8 for row in rows)
    )


def _is_ragged(lines: list[str], separator: str) -> bool:
    """Numbers in rows of different lengths are histories, not a table."""
    return _is_number(lines[0].split(separator)[0]) and len({line.count(separator) for line in lines}) > 1


def _has_quoted_field(lines: list[str]) -> bool:
    """Tab-separated files rarely quote; those that do not may hold quotes anywhere, as in: "Toy Knife" Dagger."""
    fields = (field for line in lines for field in line.split("\t"))
    return any(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)


def _fields(line: str, separator: str) -> list[str]:
    row = next(csv.reader([line.removeprefix("\ufeff")], delimiter=separator, skipinitialspace=True))
    return [field.strip() for field in row]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_bad_line(path: Path) -> str:
    import gzip

    if path.suffix == ".zst":
        return ""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f":{number}"
    return ""


def recode(path: Path, encoding: str, folder: Path) -> Path:
    """Write `path` as plain UTF-8 text into a new folder below `folder`, for readers that know nothing else."""
    import gzip
    import shutil
    from tempfile import mkdtemp

    if path.suffix == ".zst" or _FORMAT_BY_ENDING.get(_ending(path)) == "parquet":
        raise UsageError(f"--encoding cannot be used with {path.name}. Unpack it first.")
    target = Path(mkdtemp(dir=folder)) / path.name.removesuffix(".gz")
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding=encoding) as source, target.open("w", encoding="utf-8") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except LookupError as error:
        raise UsageError(f"{encoding!r} is not an encoding Python knows; try latin-1 or cp1252.") from error
    except (UnicodeDecodeError, EOFError) as error:
        raise DataError(f"{path} cannot be read as {encoding}: {error}.") from error
    return target
