"""The report shows what is in the results, says what is not, and can be read anywhere."""

import json
import re
import shlex
import shutil
import sys
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from bert4rec.cli.reproduce_command import report_command
from bert4rec.paper.experiments.index import EXPERIMENTS
from bert4rec.paper.reporting.layout import DAGGER, DAGGER_RULE, Measured
from bert4rec.paper.reporting.report import Report, Section, read_report, write_report
from bert4rec.paper.runs.ledger import Ledger
from bert4rec.training.reporting.code_mark import code_checksum
from tests.paper.fake import add_result, facts_of, write_results
from tests.paper.tiny import pretended_job


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_results(folder)
    bench = {"shape": "ml-20m", "dim": 256, "items": 26744, "max_length": 200, "batch_size": 512}
    speed = {"samples_per_second": 12345.0, "peak_memory_gib": 3.21, "device": "NVIDIA H200"}
    (folder / "speed.jsonl").write_text(json.dumps({**bench, **speed}) + "\n")
    return folder


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    return read_report(results)


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(report, folder)
    return folder


@pytest.fixture(scope="module")
def page(written: Path) -> str:
    return (written / "report.html").read_text(encoding="utf-8")


def section(report: Report, name: str) -> list[Section]:
    return next(parts for experiment, parts in report.sections if experiment.name == name)


def plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", html))


def test_nothing_is_missing_from_a_whole_programme(report: Report) -> None:
    assert [shown.missing for _, parts in report.sections for shown in parts if shown.missing] == []
    assert {experiment.name for experiment, _ in report.sections} == set(EXPERIMENTS)
    assert all(shown.findings.tables for _, parts in report.sections for shown in parts)


def test_the_page_has_every_number_of_every_table_and_the_papers_beside_it(report: Report, page: str) -> None:
    text = " ".join(plain(page).split())
    cells = [
        cell
        for _, parts in report.sections
        for shown in parts
        for table in shown.findings.tables
        for row in table.rows
        for cell in row.cells
        if isinstance(cell, Measured)
    ]
    assert len(cells) > 300
    for cell in cells:
        assert f"{cell.value:.4f} ±" in text
        if cell.paper is not None:
            assert f"paper {cell.paper:.4f}, " in text


def test_the_markdown_has_them_too(report: Report, written: Path) -> None:
    text = (written / "report.md").read_text(encoding="utf-8")
    table2 = section(report, "table2")
    ours = table2[0].findings.tables[0].rows[8].cells[4]
    assert isinstance(ours, Measured)
    assert f"{ours.value:.4f} ± " in text
    assert "(paper 0.1862: +3.0%, " in text
    figures = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(figures) > 10
    assert all((written / figure).is_file() for figure in figures)


def test_what_contradicts_the_paper_comes_first(report: Report, page: str) -> None:
    words = [statement.verdict for _, statement in report.surprises]
    assert words[0] == "contradiction"
    assert words == sorted(words, key=["contradiction", "not reproduced", "finding"].index)
    text = plain(page)
    assert text.index("SASRec trained with the exact softmax is above BERT4Rec.") < text.index("In short")


def test_seconds_and_device_of_every_run_are_there(report: Report) -> None:
    table2 = section(report, "table2")
    rows = table2[0].runs.rows
    assert len(rows) == 36
    assert rows[0].cells == ["7,000", "12.2", "8.5", "41", "NVIDIA H200", code_checksum()]


def test_how_long_a_run_took_that_was_interrupted_is_not_told(tmp_path: Path) -> None:
    ledger = write_results(tmp_path, ["beauty"], ["table3"])
    text = (tmp_path / "beauty.jsonl").read_text()
    assert ledger.lines()[2]["command_seconds"] == 41
    (tmp_path / "beauty.jsonl").write_text(text.replace('"command_seconds": 41.0', '"command_seconds": 20.7'))
    (shown,) = section(read_report(tmp_path), "table3")
    assert shown.runs.rows[0].cells == ["7,000", "12.2", "8.5", "resumed", "NVIDIA H200", code_checksum()]


def test_seconds_of_the_selection_are_those_of_the_same_run(tmp_path: Path) -> None:
    """The line for the validation items may be of another run with the same settings."""
    write_results(tmp_path, ["beauty"], ["protocols"])
    lines = [json.loads(text) for text in (tmp_path / "beauty.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("split") == "valid":
            line["train_seconds"] = 99.0
    (tmp_path / "beauty.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (shown,) = section(read_report(tmp_path), "protocols")
    assert {row.cells[1] for row in shown.runs.rows} == {"12.2"}


def test_what_a_dagger_means_is_told_once_in_every_part_that_has_one(report: Report, page: str) -> None:
    parts = [shown.findings for _, shown_parts in report.sections for shown in shown_parts]
    marked = [part for part in parts if part.has_daggers]
    assert 0 < len(marked) < len(parts)
    in_box = any(statement.is_marked for _, statement in report.surprises)
    assert in_box
    assert page.count(DAGGER_RULE) == len(marked) + in_box
    assert f"&nbsp;{DAGGER}" in page


def test_missing_ranks_are_told_because_less_is_decided_without_them(tmp_path: Path) -> None:
    write_results(tmp_path / "results", ["beauty"], ["figure4"])
    assert not any("ranks" in each for each in read_report(tmp_path / "results").warnings(can_draw=True))
    for path in (tmp_path / "results" / "ranks").iterdir():
        path.unlink()
    report = read_report(tmp_path / "results")
    told = "The ranks of 9 results are missing."
    write_report(report, tmp_path / "report")
    for name in ("report.html", "report.md"):
        assert told in (tmp_path / "report" / name).read_text()


def test_attention_decides_only_what_all_seeds_say(tmp_path: Path) -> None:
    """Maps turned upside down look at what the others look away from."""
    ledger = write_results(tmp_path, ["beauty"], ["figure2"])
    lines = ledger.lines()
    (one,) = [line for line in lines if line.get("kind") == "attention"]
    turned = {**one, "seed": 2, "maps": one["maps"][::-1]}
    ledger.add([turned])
    (shown,) = section(read_report(tmp_path), "figure2")
    verdicts = {statement.text: statement.verdict for statement in shown.findings.statements}
    assert verdicts["The last layer looks at more recent items than the first."] == "undecided"
    assert verdicts["Items look both ways."] == "reproduced"


def test_every_figure_has_words_of_its_own(report: Report) -> None:
    for _, parts in report.sections:
        for shown in parts:
            captions = [figure.caption for figure in shown.findings.figures]
            assert all(len(caption) > 20 for caption in captions)
            assert len(set(captions)) == len(captions)


@pytest.mark.parametrize("experiment", ["table1", "figure4"])
def test_matplotlib_is_missed_only_where_there_is_something_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], experiment: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_results(tmp_path / "results", ["beauty"], [experiment])
    report_command(tmp_path / "results", output=tmp_path / "report")
    told = [
        capsys.readouterr().err,
        *((tmp_path / "report" / f"report.{kind}").read_text() for kind in ("html", "md")),
    ]
    assert ["bert4rec[report]" in each for each in told] == [experiment == "figure4"] * 3


def test_data_sets_that_could_not_be_run_are_named_with_what_is_known_of_them(page: str) -> None:
    text = plain(page).rpartition("Data sets without results")[2]
    assert "Steam" in text
    assert "bert4rec reproduce all --data ml-20m" in text
    assert "ML-20m's shape, d=256" in text
    assert "3.21" in text


def test_a_user_is_shown_by_titles_where_they_are_known(page: str) -> None:
    assert "A thing of beauty, number 1, with" in unescape(page)
    assert "item 99" not in page


def test_partial_results_give_a_page_that_says_how_to_go_on(tmp_path: Path) -> None:
    facts, table3 = facts_of("ml-1m"), EXPERIMENTS["table3"]
    ledger = Ledger.open(tmp_path / "results", quick=False)
    add_result(ledger, facts, table3.cases(facts)[0], 1, 0.4)
    report = read_report(tmp_path / "results")
    (shown,) = section(report, "table3")
    assert [case.label for case, _ in shown.missing] == ["SASRec (softmax)", "BERT4Rec (1 mask)", "BERT4Rec"]
    assert shown.command == "bert4rec reproduce table3 --data ml-1m --seeds 1"
    write_report(report, tmp_path / "report")
    for name in ("report.html", "report.md"):
        text = plain((tmp_path / "report" / name).read_text())
        assert shown.command in text
        assert "bert4rec reproduce table1 --data ml-1m" in text
        assert "bert4rec reproduce table2 --data ml-1m --seeds 1,2,3" in text


def test_every_command_a_report_names_can_be_parsed(page: str) -> None:
    from bert4rec.cli import app

    commands = {unescape(code) for code in re.findall(r"<code>(bert4rec [^<]+)</code>", page)}
    assert "bert4rec reproduce all --data steam" in commands
    for command in commands:
        app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_a_run_that_failed_is_told_with_its_reason(tmp_path: Path) -> None:
    facts = facts_of("beauty")
    case = EXPERIMENTS["table5"].cases(facts)[3]
    from dataclasses import replace

    job = replace(pretended_job(), facts=facts, case=case)
    line = {**job.identity(kind="failure"), "error": "it has diverged <at once>", "device": "here"}
    Ledger.open(tmp_path, quick=False).add([line])
    report = read_report(tmp_path)
    (shown,) = section(report, "table5")
    assert shown.failures == ["w/o LN: it has diverged <at once>"]
    assert case not in [missing for missing, _ in shown.missing]
    write_report(report, tmp_path / "report")
    assert "Failed: w/o LN: it has diverged &lt;at once&gt;" in (tmp_path / "report/report.html").read_text()


def test_no_results_at_all_give_a_page_that_says_so(tmp_path: Path) -> None:
    write_report(read_report(tmp_path), tmp_path / "report")
    assert "bert4rec reproduce --help" in (tmp_path / "report" / "report.html").read_text()


def test_lines_that_the_train_command_wrote_count_too(tmp_path: Path) -> None:
    """They have no standard errors, and there are no statistics of the data set."""
    ledger = write_results(tmp_path / "made", ["beauty"], ["table3"])
    lines = [
        {key: value for key, value in line.items() if key != "standard_errors"}
        for line in ledger.lines()
        if "metrics" in line
    ]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "beauty.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(tmp_path / "made" / "ranks", tmp_path / "results" / "ranks")
    report = read_report(tmp_path / "results")
    (shown,) = section(report, "table3")
    cell = shown.findings.tables[0].rows[0].cells[0]
    assert isinstance(cell, Measured)
    assert cell.low


def test_data_of_the_same_name_is_told_apart_by_its_checksum(tmp_path: Path) -> None:
    ledger = write_results(tmp_path, ["beauty"], ["figure2"])
    other = [{**line, "data_checksum": "another"} for line in ledger.lines()]
    ledger.add(other)
    report = read_report(tmp_path)
    titles = [shown.title for shown in report.sections[0][1]]
    assert titles == [
        "Beauty (leave-one-out, data 02fcbf619ecc995f)",
        "Beauty (leave-one-out, data another)",
    ]
    names = [
        shown.file_name(figure)
        for _, parts in report.sections
        for shown in parts
        for figure in shown.findings.figures
    ]
    assert len(set(names)) == len(names) > 3


def test_figures_of_an_earlier_report_are_removed_and_foreign_files_never(tmp_path: Path) -> None:
    figures = tmp_path / "report" / "figures"
    write_results(tmp_path / "results", ["ml-1m", "beauty"], ["figure4"])
    write_report(read_report(tmp_path / "results"), tmp_path / "report")
    assert (figures / "figure4-beauty.png").exists()
    (figures / "mine-beauty.png").write_text("somebody else's")
    (tmp_path / "results" / "beauty.jsonl").unlink()
    write_report(read_report(tmp_path / "results"), tmp_path / "report")
    assert (figures / "mine-beauty.png").exists()
    left = {path.name for path in figures.iterdir() if path.stem != "mine-beauty"}
    assert left == {
        Path(named).with_suffix(ending).name
        for named in re.findall(r"\]\((figures/[^)]+)\)", (tmp_path / "report" / "report.md").read_text())
        for ending in (".png", ".svg")
    }
    assert "figure4-ml-1m.svg" in left


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
def test_a_browser_shows_it_on_a_phone_and_in_the_dark_and_fetches_nothing(
    browser: Browser, written: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    opened = context.new_page()
    opened.goto((written / "report.html").as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= width, (
        "no sideways scrolling of the page"
    )
    assert len([url for url in asked if not url.startswith("data:")]) == 1
    ink, paper = opened.evaluate(
        """() => [getComputedStyle(document.querySelector('figure svg text')).fill,
                  getComputedStyle(document.body).backgroundColor].map(c => parseInt(c.slice(4)))"""
    )
    assert (ink > 200 > 50 > paper) if scheme == "dark" else (paper > 200 > 50 > ink)
    context.close()


def test_printed_it_shows_what_is_folded_on_the_screen(browser: Browser, written: Path) -> None:
    opened = browser.new_page()
    opened.goto((written / "report.html").as_uri())
    is_seen = "document.querySelector('details table').checkVisibility({contentVisibilityProperty: true})"
    assert not opened.evaluate(is_seen)
    opened.emulate_media(media="print")
    assert opened.evaluate(is_seen)
    a4 = 718  # 210 mm at 96 dots an inch, less a browser's margins
    opened.set_viewport_size({"width": a4, "height": 1000})
    assert opened.evaluate("document.documentElement.scrollWidth") <= a4
    opened.close()
