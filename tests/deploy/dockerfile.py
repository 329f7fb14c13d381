"""The Dockerfile as tests read it: stages of instructions, and what .dockerignore lets through."""

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@dataclass(frozen=True)
class Stage:
    """From one FROM to the next."""

    base: str
    instructions: list[tuple[str, str]]
    """Word and argument, in order."""

    def all(self, word: str) -> list[str]:
        return [argument for each, argument in self.instructions if each == word]

    def one(self, word: str) -> str:
        [argument] = self.all(word)
        return argument

    def words(self, word: str) -> list[str]:
        """The argument of an instruction in exec form; raises if it is in the form that starts a shell."""
        found: list[str] = json.loads(self.one(word)[self.one(word).index("[") :])
        return found

    @property
    def arguments(self) -> dict[str, str]:
        """Of the build, as they are unless somebody gives others."""
        return dict(argument.split("=", 1) for argument in self.all("ARG"))

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for argument in self.all("ENV") for pair in argument.split()]
        return dict(pair.split("=", 1) for pair in pairs)


def read_stages(text: str) -> list[Stage]:
    """As Docker reads them: comments go first, also those between the lines of one instruction."""
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    stages: list[Stage] = []
    for line in filter(str.strip, re.sub(r"\\\n\s*", "", lines).splitlines()):
        word, argument = line.split(maxsplit=1)
        if word == "FROM":
            stages.append(Stage(argument, []))
        elif stages:
            stages[-1].instructions.append((word, argument))
    return stages


def is_sent(path: Path) -> bool:
    """Whether .dockerignore lets a file of the repository through: the last line that fits it or a folder above it."""
    relative = path.relative_to(ROOT)
    names = [each.as_posix() for each in (relative, *relative.parents)][:-1]
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not line or line.startswith("#"):
            continue
        anywhere = "**/" in line
        if any(fnmatchcase(Path(name).name if anywhere else name, pattern) for name in names):
            sent = line.startswith("!")
    return sent


BUILD, FINAL = read_stages((DEPLOY / "Dockerfile").read_text())
