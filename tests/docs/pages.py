"""The documents as tests read them: pages, blocks of code, code inside the text."""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    if "_build" not in path.parts
}
"""Path → text."""

FENCE = re.compile(
    r"(?P<mark><!-- not run: [^\n]+ -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    code: str
    is_run: bool
    """Unless a comment above it says why not."""


def blocks_of(text: str) -> list[Block]:
    return [
        Block(found["language"], dedent(found["code"]), found["mark"] is None)
        for found in FENCE.finditer(text)
    ]


def commands_of(text: str) -> list[str]:
    """Every command of the page's shell blocks, without its comment."""
    lines = [line for block in blocks_of(text) if block.language == "sh" for line in block.code.splitlines()]
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def inline_code(text: str) -> list[str]:
    """What stands between backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE))
