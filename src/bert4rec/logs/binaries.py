"""Files that are not logs, recognised by their first bytes or their ending, and what to do with each."""

import re
from dataclasses import dataclass

_SAVE = "Save it as CSV, Parquet or JSON Lines."
_SHEET = "Save the sheet with the actions as CSV."
_UNPACK = "Unpack it and name the file with the actions."


def _from_pandas(read: str) -> str:
    return f"Write it as Parquet: pandas.{read}(…).to_parquet(…)."


@dataclass(frozen=True)
class Binary:
    """A kind of file that cannot be read here."""

    name: str
    advice: str
    begins: bytes = rb"(?!)"
    """A regular expression for the first bytes; by default nothing matches."""
    endings: tuple[str, ...] = ()
    """Recognise it if the first bytes do not."""
    is_text: bool = False
    """It can be read if its encoding is named."""


_CONTROL = rb"[\x00-\x08\x0e-\x1f]"
"""No text has these. Magic words that are letters are believed only before one of them."""

EXCEL = Binary("an Excel workbook", _SHEET, rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", (".xls", ".xlsx", ".xlsb"))
OFFICE = Binary("an office document", _SHEET, endings=(".ods",))
NUMPY = Binary("a NumPy array", _SAVE, rb"\x93NUMPY", (".npy", ".npz"))
_PICKLE = Binary(
    "a pickle, which is never opened, because it could run any code",
    "If you trust it, write it as Parquet: pandas.read_pickle(…).to_parquet(…).",
    rb"\x80[\x02-\x05]",
    (".pkl", ".pickle"),
)
_KINDS = (
    EXCEL,
    OFFICE,
    NUMPY,
    _PICKLE,
    Binary("an HDF5 file", _from_pandas("read_hdf"), rb"\x89HDF\r\n\x1a\n", (".h5", ".hdf5")),
    Binary(
        "an SQLite database",
        'Write the table as CSV: sqlite3 -csv -header FILE "SELECT …" > log.csv.',
        rb"SQLite format 3\x00",
        (".sqlite", ".sqlite3"),
    ),
    Binary("a DuckDB database", "Write the table as Parquet: COPY … TO 'log.parquet'.", rb".{8}DUCK.\x00{3}"),
    Binary("an ORC file", _from_pandas("read_orc"), rb"ORC" + _CONTROL, (".orc",)),
    Binary("an Avro file", "Write it as Parquet or JSON Lines.", rb"Obj\x01", (".avro",)),
    Binary(
        "Feather of version 1",
        "Convert it: pandas.read_feather(…).to_feather(…) writes version 2, which can be read.",
        rb"FEA1" + _CONTROL,
    ),
    Binary("an Arrow stream", "Write it as an Arrow file or as Parquet.", rb"\xff{4}", (".arrows",)),
    Binary(
        "R data",
        "Write it as CSV: write.csv(…, row.names = FALSE).",
        rb"(RD[AX][23]\n)?X\n\x00{3}",
        (".rds", ".rdata", ".rda"),
    ),
    Binary("a Stata file", _from_pandas("read_stata"), rb"<stata_dta>", (".dta",)),
    Binary("a SAS file", _from_pandas("read_sas"), endings=(".sas7bdat", ".xpt")),
    Binary("an SPSS file", _from_pandas("read_spss"), rb"\$FL[23]@\(#\)", (".sav",)),
    Binary("a MATLAB file", _SAVE, rb"MATLAB \d\.\d MAT-file", (".mat",)),
    Binary("encrypted Parquet", "Write it without encryption.", rb"PARE" + _CONTROL),
    Binary("a tar archive", _UNPACK, rb".{257}ustar(\x00|  \x00)", (".tar", ".tgz")),
    Binary("a 7z archive", _UNPACK, rb"7z\xbc\xaf\x27\x1c", (".7z",)),
    Binary("a rar archive", _UNPACK, rb"Rar!\x1a\x07", (".rar",)),
    Binary("compressed with LZ4", _UNPACK, rb"\x04\x22\x4d\x18", (".lz4",)),
    Binary("a PDF", _SAVE, rb"%PDF-\d", (".pdf",)),
    Binary(
        "an image",
        "Name the file with the actions.",
        rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF.{4}WEBP|II\*\x00|MM\x00\*",
    ),
    Binary(
        "a web page",
        "If it was downloaded, the server may have sent an error page instead: look at it.",
        rb"(?i)\s*<(!doctype )?html",
    ),
)
_NO_UTF_8 = (
    Binary("UTF-32 text", 'Pass `encoding="utf-32"`.', rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", is_text=True),
    Binary("UTF-16 text", 'Pass `encoding="utf-16"`.', rb"\xff\xfe|\xfe\xff", is_text=True),
    Binary("UTF-16 text", 'Pass `encoding="utf-16-le"`.', rb"([\x09-\x7e]\x00){8}", is_text=True),
    Binary("UTF-16 text", 'Pass `encoding="utf-16-be"`.', rb"(\x00[\x09-\x7e]){8}", is_text=True),
    Binary("not text: it holds NUL bytes", _SAVE, rb".*?\x00"),
)


def is_columnar(head: bytes) -> bool:
    """Whether this is the beginning of Parquet or Arrow IPC, which are read."""
    return head.startswith((b"PAR1", b"ARROW1"))


def recognise(head: bytes, ending: str, *, encoding: str | None = None) -> Binary | None:
    """What a file is that begins with `head`; None if it may be a log.

    Bytes say more than an ending, which counts only if they are not text, or unknown (empty). In a named encoding
    NUL bytes mean nothing: UTF-16 is full of them.
    """
    if is_columnar(head):
        return None
    if found := _first(_KINDS, head):
        return found
    by_ending = next((kind for kind in _KINDS if ending in kind.endings), None)
    if by_ending and (by_ending is _PICKLE or not head or re.search(_CONTROL, head)):
        return by_ending
    return None if encoding else _first(_NO_UTF_8, head)


def _first(kinds: tuple[Binary, ...], head: bytes) -> Binary | None:
    return next((kind for kind in kinds if re.match(kind.begins, head, re.DOTALL)), None)
