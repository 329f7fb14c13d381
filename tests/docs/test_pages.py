"""What README and documentation name exists: commands, options, functions, files. What they count was counted."""

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

import bert4rec
from bert4rec.paper.reporting.summary import END, MARK, fill, make_parts
from tests.docs.pages import PAGES, ROOT, blocks_of, commands_of, inline_code

ALL_PAGES = pytest.mark.parametrize("page", PAGES)
WRITTEN_BY_A_COMMAND = ("README.md", "docs/results.md", "docs/guides/scaling.md")


@cache
def parts() -> dict[str, str]:
    return make_parts(ROOT / "results")


@cache
def options() -> dict[str, set[str]]:
    """Command → its options, by what the command itself says."""
    from bert4rec.cli import app

    sections = re.split(r"^#+ bert4rec ", app.generate_docs(), flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: set(re.findall(r"--[a-z][a-z0-9-]*", section)) | {"--help"}
        for section in sections
    }


@pytest.mark.parametrize("page", WRITTEN_BY_A_COMMAND)
def test_tables_are_those_made_from_the_results(page: str) -> None:
    assert fill(PAGES[page], parts()) == PAGES[page]


def test_every_table_that_is_made_is_shown() -> None:
    shown = [name for page in WRITTEN_BY_A_COMMAND for name in MARK.findall(PAGES[page])]
    assert sorted(shown) == sorted(parts())


@ALL_PAGES
def test_no_result_is_written_by_hand(page: str) -> None:
    """A metric has four decimals; outside the parts that a command wrote there is none."""
    pieces = MARK.split(PAGES[page])
    by_hand = [pieces[0], *(piece.partition(END)[2] for piece in pieces[2::2])]
    assert [re.findall(r"\b0\.\d{4}\b", piece) for piece in by_hand] == [[] for _ in by_hand]


def test_the_readme_s_word_on_sasrec_is_what_the_results_say() -> None:
    assert "SASRec, trained with the same loss, is ahead of BERT4Rec" in PAGES["README.md"]
    assert "SASRec trained with the exact softmax is above BERT4Rec" in parts()["surprises"]


def test_the_readme_is_one_to_read() -> None:
    assert PAGES["README.md"].count("\n") <= 120


@ALL_PAGES
def test_every_command_and_option_of_a_page_exists(page: str) -> None:
    text, known = PAGES[page], options()
    for code in (*commands_of(text), *inline_code(text)):
        if code.startswith(("curl ", "pip ", "python ", "torchrun ")):
            continue
        words = code.removeprefix("bert4rec ").split()
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in known), None)
        assert name or not re.match("bert4rec [a-z]", code), f"{code}: no such command"
        has = known[name] if name else {"--version"}.union(*known.values())
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code)) <= has, code


@ALL_PAGES
def test_every_name_of_the_library_on_a_page_exists(page: str) -> None:
    text = PAGES[page]
    python = [block.code for block in blocks_of(text) if block.language == "python"]
    for code in (*python, *inline_code(text)):
        for path in re.findall(r"(?<![\w/])bert4rec((?:\.[A-Za-z_]\w*)+)", code):
            thing: object = bert4rec
            for name in path.split(".")[1:]:
                thing = member(thing, name)


def member(thing: object, name: str) -> object:
    """An attribute, or a module that nobody has imported yet."""
    if hasattr(thing, name):
        return getattr(thing, name)
    return importlib.import_module(f"{getattr(thing, '__name__', thing)}.{name}")


@ALL_PAGES
def test_every_method_of_a_page_exists(page: str) -> None:
    """By the names that the pages give to what they speak of."""
    spoken_of = {"run": "Run", "recommender": "Recommender", "dataset": "Dataset"}
    for code in inline_code(PAGES[page]):
        for variable, name in re.findall(r"\b(run|recommender|dataset)\.([a-z_]+)\(", code):
            assert hasattr(getattr(bert4rec, spoken_of[variable]), name), code


@ALL_PAGES
def test_every_file_of_a_page_exists(page: str) -> None:
    for path in inline_code(PAGES[page]):
        if path.startswith(("src/", "tests/", "docs/", "examples/", "benchmarks/")):
            assert (ROOT / path).exists(), path


@ALL_PAGES
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page])
    for target in targets:
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_every_page_is_in_the_table_of_contents() -> None:
    index = PAGES["docs/index.md"]
    for page in PAGES:
        name = Path(page).relative_to("docs").with_suffix("").as_posix() if page.startswith("docs/") else ""
        assert not name or name == "index" or f"\n{name}\n" in index, page


@ALL_PAGES
def test_every_link_of_a_page_has_a_text(page: str) -> None:
    """Sphinx would find one; a reader of the file sees nothing."""
    assert "[](" not in PAGES[page]
