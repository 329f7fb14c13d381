"""The log of any source that `prepare` takes: a DataFrame, files, or the name of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.frames import Frame, is_frame
from bert4rec.progress import ProgressCallback, progress_bar

if TYPE_CHECKING:
    from bert4rec.logs.columns import ColumnRequest
    from bert4rec.logs.files import Hints
    from bert4rec.logs.growing import Scratch
    from bert4rec.logs.log import Log

SYNTHETIC = "synthetic"
"""The name of the built-in world's data."""


@dataclass(frozen=True)
class SourceLog:
    """A log and what its source says about it."""

    log: "Log"
    name: str
    origin: dict[str, Any]
    """What dataset.json keeps of the source."""
    min_item_actions: int = 0
    """The filter that the paper applied to a named data set."""


@dataclass(frozen=True)
class SourceReader:
    """Chooses how a source is read, and refuses parameters that do not belong to it."""

    columns: "ColumnRequest"
    hints: "Hints"
    drop_bad_rows: bool
    catalogue: bool
    """Whether `items` was passed, which `encoding` may be for."""
    show: bool | None
    callback: ProgressCallback | None
    scratch: "Scratch | None"
    """Where the rows of a large log go."""

    def read(self, source: object, local_copy: str | Path | None, like: str | None, seed: int) -> SourceLog:
        """The log of any source that `prepare` takes."""
        from bert4rec.sources.named import SOURCES

        paths = [source] if isinstance(source, str | Path) else source
        name = str(paths[0]) if isinstance(paths, list | tuple) and len(paths) == 1 else ""
        if like and name != SYNTHETIC:
            raise UsageError(f"`like` requires the data set {SYNTHETIC}.")
        if local_copy and name not in SOURCES:
            raise UsageError(f"`local_copy` requires a named data set: {', '.join(SOURCES)}.")
        if name == SYNTHETIC or name in SOURCES:
            self._refuse_form(name)
            return _synthetic(like, seed) if name == SYNTHETIC else self._named(name, local_copy)
        if is_frame(source):
            return self._frame(source)
        if not isinstance(paths, Sequence) or not all(isinstance(path, str | Path) for path in paths):
            raise UsageError(
                "`source` must be a DataFrame, a path, several paths or the name of a data set, found "
                f"{type(source).__name__}."
            )
        if not paths:
            raise UsageError(
                "`source` is required: a file, a folder, or a data set such as ml-1m or synthetic."
            )
        return self._files(paths)

    def _refuse_form(self, name: str) -> None:
        """A catalogue can be joined to any data; the rest describes logs whose form is unknown."""
        encoding = None if self.catalogue else self.hints.encoding
        written = (encoding, self.hints.separator, self.hints.time_format, self.drop_bad_rows)
        if any((*vars(self.columns).values(), *written)):
            raise UsageError(
                "`user`, `item`, `time`, `title`, `time_format`, `drop_bad_rows`, `separator` and `encoding` are for "
                f"files and frames; the form of {name} is known."
            )

    def _frame(self, frame: Frame) -> SourceLog:
        from bert4rec.logs.log import read_frame
        from bert4rec.logs.readers import LogFrame

        if self.hints.separator or (self.hints.encoding and not self.catalogue):
            raise UsageError("`separator` and `encoding` are for files, not for frames.")
        with progress_bar("Reading", "rows", self.show, self.callback) as report:
            log = read_frame(
                LogFrame.of(frame, "source"),
                self.columns,
                self.hints.time_format,
                drop_bad_rows=self.drop_bad_rows,
                progress=report,
                scratch=self.scratch,
            )
        kind = type(frame)
        return SourceLog(log, "log", {"frame": f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"})

    def _files(self, paths: Sequence[str | Path]) -> SourceLog:
        from bert4rec.logs.files import name_of_log
        from bert4rec.logs.log import read_log
        from bert4rec.sources.named import SOURCES

        refuse_artefacts(paths)
        try:
            with progress_bar("Reading", "rows", self.show, self.callback) as report:
                log = read_log(
                    paths,
                    self.columns,
                    self.hints,
                    drop_bad_rows=self.drop_bad_rows,
                    progress=report,
                    scratch=self.scratch,
                )
        except NotFoundError as error:
            near = get_close_matches(str(paths[0]), (*SOURCES, SYNTHETIC), n=1)
            hint = f" Did you mean the data set {near[0]}?" if near else ""
            raise NotFoundError(f"{error}{hint}") from error
        return SourceLog(log, name_of_log(paths[0]), {"files": [str(path) for path in paths]})

    def _named(self, name: str, local_copy: str | Path | None) -> SourceLog:
        from bert4rec.logs.log import encode
        from bert4rec.machine import cache_folder
        from bert4rec.sources.named import open_source

        path = None if local_copy is None else Path(local_copy)
        with (
            progress_bar("Downloading", "bytes", self.show, self.callback) as downloaded,
            open_source(name, path, cache=cache_folder(), progress=downloaded) as files,
            progress_bar("Reading", "rows", self.show, self.callback) as report,
        ):
            log = encode(files.frames(), progress=report, scratch=self.scratch)
            log = replace(log, item_columns=files.items(), notes=[*files.notes, *log.notes])
            return SourceLog(log, name, dict(files.provenance), files.filters.min_item_actions)


def _synthetic(like: str | None, seed: int) -> SourceLog:
    from bert4rec.world.world import World, WorldConfig
    from bert4rec.world.world import like as shaped_like

    config = shaped_like(like, seed) if like else WorldConfig(seed=seed)
    name = f"{SYNTHETIC}-{like}" if like else SYNTHETIC
    return SourceLog(World.generate(config).log(), name, {"name": SYNTHETIC, "world": config.to_json()})


def refuse_artefacts(paths: Sequence[str | Path]) -> None:
    """Folders that we wrote ourselves are no logs."""
    from bert4rec.artefact import NAMES, kind_of, purpose

    for path in map(Path, paths):
        if (kind := kind_of(path)) not in (None, "file"):
            raise UsageError(f"{path} is {NAMES[kind]}; expected a log. {purpose(path, kind)}")
