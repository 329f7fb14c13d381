"""Which files make up a log, and how each is written."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.columns import guess_columns, made_up_names

Format = Literal["csv", "parquet", "arrow", "jsonl", "lines"]
_FORMAT_BY_MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_JSON_ENDINGS = {".jsonl", ".ndjson", ".json"}
_TABLE_ENDINGS = {".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".ipc"}
_OTHER_ENDINGS = {".txt", ".dat", ".data", ".log", ".inter"}
_LOG_ENDINGS = _JSON_ENDINGS | _TABLE_ENDINGS | _OTHER_ENDINGS
_COMPRESSIONS = {".gz", ".zst", ".bz2", ".xz"}
_ARCHIVE = ".zip"
_NOT_LOGS = ("readme", "license", "licence")
_SEPARATORS = ("\t", "::", ",", ";", "|")
_SEPARATOR_NAMES = {"tab": "\t", r"\t": "\t", "space": " "}


class EncodingError(DataError):
    """Text in an encoding that must be named."""


@dataclass(frozen=True)
class Hints:
    """How files are written; None is found out from their content."""

    encoding: str | None = None
    """The encoding of text files that are not UTF-8."""
    separator: str | None = None
    """Between the fields of a text file: any text, or `tab` or `space`."""
    time_format: str | None = None
    """How times are written, in the directives of strftime."""


@dataclass(frozen=True)
class LogFile:
    """One file of a log."""

    path: Path
    shown: str
    """What the user calls it: `path` may be a copy that was unpacked."""
    format: Format
    separator: str = ","
    """Between the fields of a `csv` file; may be several characters."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a `csv` file: from its header, or made up if it has none."""
    has_header: bool = True
    quote: str | None = '"'
    """What surrounds fields of a `csv` file that hold separators; None if a quote is a character like any other."""
    head: tuple[str, ...] = ()
    """The first lines of a `csv` file that are not blank, that of the header among them."""


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """Every file named by paths, folders and globs, in a stable order, each once."""
    found: dict[Path, None] = {}
    for source in sources:
        for path in _expand(str(source)):
            found[path] = None
    return list(found)


def inspect_file(path: Path, shown: str, separator: str | None = None) -> LogFile:
    """Find out how a file is written, from what is in it, and from its ending if that leaves a choice."""
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise DataError(f"{shown} is empty.")
    ending = ending_of(shown)
    columnar = next((kind for magic, kind in _FORMAT_BY_MAGIC.items() if head.startswith(magic)), None)
    if columnar or ending in _JSON_ENDINGS:
        if separator is not None:
            kind = "JSON Lines" if columnar is None else columnar.capitalize()
            raise UsageError(f"`separator` is for tables in text files, and {shown} is {kind}.")
        return LogFile(path, shown, columnar or "jsonl")
    lines = [line for line in first_lines(path, shown=shown) if line.strip()]
    if not lines:
        raise DataError(f"{shown} has only blank lines.")
    if is_zstd(head) and re.match(r"(PAR1|ARROW1)[\x00-\x1f]", lines[0]):
        raise _no_text_in_zstd(shown)
    if separator is not None:
        return _table(path, shown, lines, _named_separator(separator, lines[0], shown))
    if lines[0].lstrip("\ufeff \t").startswith("{"):
        return LogFile(path, shown, "jsonl")
    guessed = "\t" if ending == ".tsv" else _guess_separator(lines, certain=ending == ".csv")
    if guessed is None or (guessed == "\t" and _is_ragged(lines, guessed)):
        return LogFile(path, shown, "lines")
    return _table(path, shown, lines, guessed)


def _table(path: Path, shown: str, lines: list[str], separator: str) -> LogFile:
    fields = _fields(lines[0], separator)
    names = [name or made_up for name, made_up in zip(fields, made_up_names(len(fields)), strict=True)]
    # Python's csv takes no longer fields.
    head = (lines[0], *(line for line in lines[1:] if len(line) < csv.field_size_limit()))
    can_quote = not takes_several_bytes(separator)
    quote = '"' if can_quote and (separator != "\t" or _has_quoted_field(lines)) else None
    file = LogFile(path, shown, "csv", separator, tuple(names), quote=quote, head=head)
    return without_header(file) if any(_is_number(name) for name in names) else file


def takes_several_bytes(separator: str) -> bool:
    """Whether a file must be split by lines, since polars' reader of CSV takes one byte only."""
    return len(separator.encode()) > 1


def split_row(line: str, separator: str, *, skip_blanks: bool = False) -> list[str]:
    """The fields of a row with quotes. A lone carriage return does not end it: for polars it is a character."""
    return next(csv.reader([line.replace("\r", " ")], delimiter=separator, skipinitialspace=skip_blanks))


def without_header(file: LogFile) -> LogFile:
    """The same file, its first line being data."""
    return replace(file, columns=tuple(made_up_names(len(file.columns))), has_header=False)


def names_columns(file: LogFile) -> bool:
    """Whether the first line is surely a header: it has usual names, or text above a column of numbers or dates."""
    if guess_columns(file.columns):
        return True
    first, *others = _first_rows(file)
    return any(
        name and not _is_number_or_date(name) and all(map(_is_number_or_date, values))
        for name, values in zip(first, zip(*others, strict=True), strict=False)
    )


def ends_in_times(file: LogFile) -> bool:
    """Whether the last column is an epoch time in the first lines of a `csv` file."""
    rows = _first_rows(file)[1 if file.has_header else 0 :]
    return bool(rows) and all(_is_epoch(row[-1]) for row in rows)


def first_lines(path: Path, count: int = 100, *, shown: str | None = None) -> list[str]:
    """The first lines of a text file, which may be compressed (.gz, .zst)."""
    import polars as pl

    try:
        lines: list[str] = pl.scan_lines(path, glob=False).head(count).collect().to_series().to_list()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise unreadable(path, error, shown=shown) from error
    return lines


def unreadable(path: Path, error: Exception, *, shown: str | None = None) -> DataError:
    """Explain in a user's words why a file could not be read. `shown` is what the user calls it."""
    shown = shown or str(path)
    reason = str(error).splitlines()[0].replace(str(path), shown) if str(error) else type(error).__name__
    if re.search("unexpected end of file|incomplete frame|must end with PAR1|InvalidFooter", reason):
        return DataError(
            f"{shown} ends too early: the file is incomplete ({reason}). Copy or download it again."
        )
    if re.search("utf-?8", reason):
        with path.open("rb") as file:
            if is_zstd(file.read(4)):
                return _no_text_in_zstd(shown)
        return EncodingError(
            f"{shown}{_first_bad_line(path)} is not UTF-8 text. If you know its encoding, name it, as in "
            '`encoding="latin-1"`.'
        )
    return DataError(f"{shown} cannot be read: {reason}")


def is_zstd(head: bytes) -> bool:
    """Whether a file begins like one of Zstandard, which only polars can unpack, and only as text."""
    return head.startswith(b"\x28\xb5\x2f\xfd")


def archive_of(path: Path) -> Path | None:
    """The archive that a path leads into, as in archive.zip/ratings.csv; None if it leads into none."""
    return next((parent for parent in path.parents if parent.is_file()), None)


def is_log(path: PurePath, *, archives: bool = False) -> bool:
    """Whether a file in a folder or an archive is taken for part of the log, by its name."""
    ending = ending_of(path.name)
    return not path.name.lower().startswith((".", "_", *_NOT_LOGS)) and (
        ending in _LOG_ENDINGS or (archives and ending == _ARCHIVE)
    )


def name_of_log(path: str | Path) -> str:
    """What a log is called: the name of its first file, without endings."""
    return PurePath(path).name.split(".")[0] or "log"


def ending_of(name: str) -> str:
    """In lower case, without that of a compression: ".csv" of "log.csv.gz"."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _expand(source: str) -> Iterable[Path]:
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and is_log(entry, archives=True))
        if not files:
            raise NotFoundError(
                f"{path} has no CSV, TSV, Parquet, Feather, JSON Lines or text file, and no .zip of such files."
                + _look_deeper(path)
            )
        return files
    if path.is_file() or archive_of(path):
        return [path]
    pattern = path.relative_to(path.anchor)
    matches = sorted(match for match in Path(path.anchor).glob(str(pattern)) if match.is_file())
    if not matches:
        raise NotFoundError(f"{source} does not exist, and no file matches it.")
    return matches


def _look_deeper(folder: Path) -> str:
    """The folders of a folder are not read, but if they hold logs, suggest a glob that finds them."""
    files = (path for path in folder.rglob("*") if is_log(path) and path.is_file())
    deeper = next(
        (path for path in files if not re.search("(^|/)[._]", path.relative_to(folder).as_posix())), None
    )
    if deeper is None:
        return ""
    ending = deeper.name[deeper.name.lower().rindex(ending_of(deeper.name)) :]
    return f" Its folders do: name the files with '{folder}/**/*{ending}'."


def _first_rows(file: LogFile) -> list[list[str]]:
    """The fields of the first lines that are whole: a line end within quotes makes two of one."""
    rows = (_fields(line, file.separator) for line in file.head)
    return [row for row in rows if len(row) == len(file.columns)]


def _no_text_in_zstd(shown: str) -> DataError:
    return DataError(
        f"{shown} is not UTF-8 text. Nothing else can be read inside .zst: unpack Parquet, Feather and text in other "
        "encodings first, for example with zstd -d."
    )


def _named_separator(said: str, first_line: str, shown: str) -> str:
    separator = _SEPARATOR_NAMES.get(said, said)
    if not separator or set(separator) & set('\r\n"'):
        raise UsageError(f"`separator`: {said!r} cannot separate fields.")
    if separator not in first_line:
        raise DataError(
            f"{shown}: `separator` {separator!r} not found in the first line, {first_line[:80]!r}."
        )
    return separator


def _guess_separator(lines: list[str], *, certain: bool) -> str | None:
    """The separator every line has, or None for words between blanks ("user item item …")."""
    found = [separator for separator in _SEPARATORS if all(separator in line for line in lines)]
    if found[:1] == ["::"] and len(found) > 1 and len({line.count("::") for line in lines}) > 1:
        found = found[1:]  # some names hold it too
    if found:
        return found[0]
    if {"user", "item"} <= guess_columns(lines[0].split()).keys() or _ends_in_times(lines):
        return " "
    return "," if certain else None


def _ends_in_times(lines: list[str]) -> bool:
    """Rows of equal length that end in an epoch time are a table, not histories."""
    rows = [line.split() for line in lines]
    return (
        len({len(row) for row in rows}) == 1 and len(rows[0]) > 2 and all(_is_epoch(row[-1]) for row in rows)
    )


def _is_ragged(lines: list[str], separator: str) -> bool:
    """Numbers in rows of different lengths are histories, not a table."""
    return _is_number(lines[0].split(separator)[0]) and len({line.count(separator) for line in lines}) > 1


def _has_quoted_field(lines: list[str]) -> bool:
    """Tab-separated files rarely quote; those that do not may hold quotes anywhere, as in: "Toy Knife" Dagger."""
    return any(re.search(r'(^|\t) *"([^"]|"")*"(\t|$)', line) for line in lines)


def _fields(line: str, separator: str) -> list[str]:
    line = line.removeprefix("\ufeff")
    can_quote = not takes_several_bytes(separator)
    row = split_row(line, separator, skip_blanks=True) if can_quote else line.split(separator)
    return [field.strip() for field in row]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_number_or_date(text: str) -> bool:
    return _is_number(text) or re.match(r"\d{4}[-/]\d", text) is not None


def _is_epoch(text: str) -> bool:
    """A number this large is taken for a time since 1970 if nothing says what it is."""
    return _is_number(text) and float(text) > 1e8


def _first_bad_line(path: Path) -> str:
    import gzip

    with path.open("rb") as file:
        magic = file.read(4)
    with gzip.open(path, "rb") if magic.startswith(b"\x1f\x8b") else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f":{number}"
    return ""
