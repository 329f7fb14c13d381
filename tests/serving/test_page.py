"""The page in a real browser, against a real server: what a visitor sees and does, and what goes wrong."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Route,
    expect,
)

from bert4rec.artefact import write_manifest
from bert4rec.serving import page_files
from tests.serving.servers import PATIENCE, RunningServer, running

MARKUP = """<img src=x onerror="document.body.textContent='pwned'"><b>bold</b>"""
LONG = "The Unabridged and Thoroughly " + "Very" * 100 + " Long Tale, " * 30
TITLES = {
    "i7": MARKUP,
    "i8": LONG,
    "i9": "قصة مدينتين",
    "i10": "🎬 Émoji & “Quotes”",
    "i11": None,
    "i12": "  ",
}
SAMPLES = {"ann": ["i3", "i5", "i4"], "bob": [f"i{number}" for number in range(1, 41)]}
MAX_HISTORY = 19

Visit = Callable[..., Page]
expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def model(exported_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films with awkward titles, and two sample users."""
    folder = tmp_path_factory.mktemp("page") / "model"
    shutil.copytree(exported_model, folder)
    catalogue = json.loads((folder / "catalogue.json").read_text())
    catalogue["titles"] = [
        TITLES.get(*each) for each in zip(catalogue["ids"], catalogue["titles"], strict=True)
    ]
    (folder / "catalogue.json").write_text(json.dumps(catalogue))
    samples = [{"user_id": user, "history": history} for user, history in SAMPLES.items()]
    (folder / "samples.json").write_text(json.dumps(samples))
    write_manifest(folder, "model.json", json.loads((folder / "model.json").read_text()))
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with running(model) as server:
        yield server


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    """Open the page with a state in its address. In the end: no complaints, and nothing asked of anybody else."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []
    asked: list[tuple[str, str]] = []

    def visit(
        state: str = "", *, origin: str = server.address, may_fail: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE * 1000)
        contexts.append(context)

        def hear(message: ConsoleMessage) -> None:
            is_failure = message.text.startswith("Failed to load resource")
            if message.type in ("error", "warning") and not (is_failure and may_fail):
                complaints.append(message.text)

        context.on("console", hear)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on("request", lambda request: asked.append((request.url, origin)))
        page = context.new_page()
        page.goto(f"{origin}/{state}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert asked
    assert [url for url, origin in asked if not url.startswith((f"{origin}/", "data:"))] == []


def ask(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        answer: dict[str, Any] = client.post(path, json=body).json()
        return answer


def recommended_after(server: RunningServer, *history: str) -> list[str]:
    items = ask(server, "/v1/recommend", history=history)["items"]
    return [named(item["item_id"], item["title"]) for item in items]


def named(item_id: str, title: str | None) -> str:
    return (title or "").strip() or item_id


def film(number: int) -> str:
    return named(f"i{number}", TITLES.get(f"i{number}", f"Film {number:03}"))


def expect_history(page: Page, *names: str) -> None:
    """Newest first, as the page shows it."""
    expect(page.locator("#history ol li .name")).to_have_text(list(names))


def expect_recommended(page: Page, names: list[str]) -> None:
    expect(page.locator("#recommendations li .name")).to_have_text(names)


def search_box(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Add an item by title or id")


def suggestion(page: Page, **wanted: Any) -> Locator:
    return page.get_by_role("listbox").get_by_role("option", **wanted)


def stop_the_clock(page: Page) -> None:
    """From now on, time passes in the page only where a test lets it."""
    page.clock.install(time=datetime(2030, 1, 1))
    page.clock.pause_at(datetime(2030, 1, 2))


def add(page: Page, text: str) -> None:
    search_box(page).fill(text)
    suggestion(page).first.click()


# Putting together a history


def test_items_are_searched_and_added_with_the_keyboard_alone(visit: Visit, server: RunningServer) -> None:
    page = visit()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the recommendations")).to_be_focused()
    page.keyboard.press("Tab")
    box = search_box(page)
    expect(box).to_be_focused()
    page.keyboard.type("film 02")
    expect(suggestion(page)).to_have_count(10)
    expect(box).to_have_attribute("aria-expanded", "true")
    expect(suggestion(page, name="Film 020")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    expect(suggestion(page, selected=True)).to_have_text("Film 029i29")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    active = suggestion(page, selected=True)
    expect(active).to_have_text("Film 021i21")
    assert box.get_attribute("aria-activedescendant") == active.get_attribute("id")
    page.keyboard.press("Enter")
    expect_history(page, "Film 021")
    expect(box).to_be_focused()
    expect(box).to_have_value("")
    expect(box).to_have_attribute("aria-expanded", "false")
    page.keyboard.type("i22")
    expect(suggestion(page)).to_have_count(1)
    page.keyboard.press("Enter")
    expect_history(page, "Film 022", "Film 021")
    expect_recommended(page, recommended_after(server, "i21", "i22"))


def test_escape_closes_the_suggestions_and_then_empties_the_box(visit: Visit) -> None:
    page = visit()
    box = search_box(page)
    box.fill("film")
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()
    expect(box).to_have_value("film")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(box).to_have_value("")
    box.fill("nosuchfilm")
    expect(page.get_by_text("Nothing found.")).to_be_visible()


def test_enter_never_takes_a_suggestion_for_another_text(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#recommendations li")).to_have_count(10)
    stop_the_clock(page)
    box = search_box(page)
    box.fill("film 020")
    page.clock.run_for(100)
    expect(suggestion(page)).to_have_text(["Film 020i20"])
    box.fill("film 021")
    box.press("Enter")
    page.clock.run_for(100)
    expect(suggestion(page)).to_have_text(["Film 021i21"])
    expect_history(page)
    box.press("Enter")
    expect_history(page, "Film 021")


def test_items_are_moved_and_removed_and_the_focus_stays_where_the_hand_is(
    visit: Visit, server: RunningServer
) -> None:
    page = visit("#h=i1,i2,i3")
    expect_history(page, "Film 003", "Film 002", "Film 001")
    down = page.get_by_role("button", name="Move down: Film 003")
    down.focus()
    page.keyboard.press("Enter")
    expect_history(page, "Film 002", "Film 003", "Film 001")
    page.keyboard.press("Enter")
    expect_history(page, "Film 002", "Film 001", "Film 003")
    expect_recommended(page, recommended_after(server, "i3", "i1", "i2"))
    expect(down).to_be_focused()
    page.keyboard.press("Enter")  # it is the oldest already
    expect_history(page, "Film 002", "Film 001", "Film 003")
    page.get_by_role("button", name="Remove: Film 003").focus()
    page.keyboard.press("Enter")
    expect_history(page, "Film 002", "Film 001")
    expect(page.get_by_role("button", name="Remove: Film 001")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect_history(page, "Film 001")
    expect(page.get_by_role("button", name="Remove: Film 001")).to_be_focused()
    page.keyboard.press("Enter")
    expect_history(page)
    expect(search_box(page)).to_be_focused()


def test_a_history_is_cleared_at_once(visit: Visit) -> None:
    page = visit("#h=i1,i2")
    page.get_by_role("button", name="Clear").click()
    expect_history(page)
    expect(search_box(page)).to_be_focused()


def test_a_repeated_item_can_be_removed_once(visit: Visit) -> None:
    page = visit("#h=i1,i2,i1")
    page.get_by_role("button", name="Remove: Film 001").first.click()
    expect_history(page, "Film 002", "Film 001")


def test_a_sample_user_fills_the_history(visit: Visit, server: RunningServer) -> None:
    page = visit()
    users = page.get_by_label("Or start from a sample user")
    users.select_option("ann (3 items)")
    expect_history(page, "Film 004", "Film 005", "Film 003")
    expect_recommended(page, recommended_after(server, *SAMPLES["ann"]))
    page.get_by_role("button", name="Remove: Film 004").click()
    expect(users).to_have_value("")


# What is recommended


def test_without_a_history_the_popular_items_are_shown_and_it_says_so(visit: Visit) -> None:
    page = visit()
    expect(page.get_by_text("No history yet: showing what is popular.")).to_be_visible()
    expect_recommended(page, [film(number) for number in range(1, 11)])
    expect(page.locator("#recommendations li").first).to_contain_text("60 actions")


def test_a_recommendation_can_be_added_and_bars_show_the_odds(visit: Visit, server: RunningServer) -> None:
    page = visit("#h=i3")
    answer = ask(server, "/v1/recommend", history=["i3"])["items"]
    expect_recommended(page, [named(item["item_id"], item["title"]) for item in answer])
    shares = page.locator("#recommendations .bar").evaluate_all(
        "bars => bars.map(bar => Number(getComputedStyle(bar).getPropertyValue('--share')))"
    )
    assert shares[0] == 1
    assert shares[1] == pytest.approx(2.718281828 ** (answer[1]["score"] - answer[0]["score"]))
    page.get_by_role("button", name="Add to the history").first.click()
    expect_recommended(page, recommended_after(server, "i3", answer[0]["item_id"]))


def test_an_answer_that_comes_too_late_changes_nothing(visit: Visit, server: RunningServer) -> None:
    page = visit("#h=i1")
    expect_recommended(page, recommended_after(server, "i1"))
    held: list[Route] = []
    page.route("**/v1/recommend", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/v1/recommend"):
        add(page, "i2")
    with page.expect_event("requestfailed") as failed:
        add(page, "i3")
    assert failed.value.failure == "net::ERR_ABORTED"
    assert failed.value.post_data_json == {"history": ["i1", "i2"], "k": 10}
    expect_recommended(page, recommended_after(server, "i1", "i2", "i3"))


def test_a_history_longer_than_the_model_sees_is_folded_and_counted(visit: Visit) -> None:
    page = visit()
    page.get_by_label("Or start from a sample user").select_option("bob (40 items)")
    expect(page.get_by_text(f"The model looks at the newest {MAX_HISTORY} of 40.")).to_be_visible()
    expect(page.locator("#history ol li")).to_have_count(10)
    page.get_by_role("button", name="Show 30 older items").click()
    expect(page.locator("#history ol li")).to_have_count(40)
    expect(page.locator("#history ol li", has_text="too long ago")).to_have_count(40 - MAX_HISTORY)
    page.get_by_role("button", name="Show fewer").click()
    expect(page.locator("#history ol li")).to_have_count(10)


@pytest.mark.parametrize("number", [7, 8, 9, 10, 11, 12])
def test_awkward_titles_are_shown_as_they_are(visit: Visit, number: int) -> None:
    page = visit()
    add(page, f"i{number}")
    page.get_by_role("button", name="Add to the history").first.click()
    expect(page.locator("#history ol li .name").last).to_have_text(film(number))
    page.locator(".recommendation").first.click()
    expect(page.locator("#why tbody th").last).to_have_text(film(number))
    assert page.locator("img, b").count() == 0
    expect(page).to_have_title(
        "What comes next after " + page.locator("#history ol .name").first.inner_text() + "?"
    )


def test_another_model_that_took_over_introduces_itself(visit: Visit, server: RunningServer) -> None:
    page = visit("#h=i3&item=i5")
    expect(page.locator("#why tbody tr")).to_have_count(2)

    def by_another(route: Route) -> None:
        answer = route.fetch().json()
        route.fulfill(json={**answer, "model": {"name": "films", "version": "other"}})

    page.route("**/v1/recommend", by_another)
    with page.expect_response("**/v1/models"):
        add(page, "i1")
    expect_recommended(page, recommended_after(server, "i3", "i1"))
    expect_history(page, "Film 001", "Film 003")
    expect(page.locator("#why tbody th")).to_have_text(["the place to be filled", "Film 001", "Film 003"])
    expect(page.get_by_text("Model films, version ")).to_be_visible()


# Why


def test_an_explanation_shows_effects_and_the_attention_of_the_chosen_heads(
    visit: Visit, server: RunningServer
) -> None:
    page = visit("#h=i3,i5,i4")
    first = page.locator(".recommendation").first
    first.click()
    expect(first).to_have_attribute("aria-pressed", "true")
    item = page.url.rsplit("item=", 1)[1]
    answer = ask(server, "/v1/explain", history=["i3", "i5", "i4"], item_id=item)
    layer = answer["attention"][0]
    rows = page.locator("#why tbody tr")
    # The place itself, then the actions, newest first.
    expect(rows.locator("th")).to_have_text(["the place to be filled", "Film 004", "Film 005", "Film 003"])
    effects = [f"{each['effect']:+.2f}".replace("-", "−") for each in reversed(answer["contributions"])]
    expect(rows.locator(".effect")).to_have_text(effects)
    weights = [f"{100 * head[place]:.0f}" for place in (3, 2, 1, 0) for head in layer]
    expect(rows.locator(".heat")).to_have_text(weights)
    page.get_by_role("combobox", name="Head").select_option("2")
    expect(rows.locator(".heat")).to_have_text([f"{100 * layer[1][place]:.0f}" for place in (3, 2, 1, 0)])
    page.get_by_role("combobox", name="Layer").select_option("1")
    expect(page.locator("#why thead")).to_contain_text("Layer 1")
    page.get_by_role("button", name="Close").press("Enter")
    expect(first).to_be_focused()
    expect(page.get_by_text("Choose a recommendation to see what it rests on.")).to_be_visible()
    expect(page.get_by_role("table")).to_be_hidden()


def test_a_model_without_attention_still_shows_effects(visit: Visit) -> None:
    page = visit("#h=i3,i5")
    page.route("**/v1/explain", lambda route: route.fulfill(json={**route.fetch().json(), "attention": None}))
    page.locator(".recommendation").first.click()
    expect(page.locator("#why tbody th")).to_have_text(["Film 005", "Film 003"])
    expect(page.locator("#why td:not(.effect)")).to_have_count(0)
    expect(page.get_by_text("attention")).to_be_hidden()
    expect(page.get_by_role("combobox", name="Layer")).to_be_hidden()


def test_popularity_needs_no_explanation(visit: Visit) -> None:
    page = visit("#item=i2")
    expect(page.get_by_text("No known item in the history: it is popular, with 59 actions.")).to_be_visible()
    expect(page.get_by_role("table")).to_be_hidden()


# The address


def test_a_link_brings_back_what_was_on_the_screen(visit: Visit, server: RunningServer) -> None:
    page = visit("#h=i3,i5")
    page.locator(".recommendation").nth(1).click()
    chosen = page.locator("#recommendations .name").nth(1).inner_text()

    def expect_all(page: Page) -> None:
        expect_history(page, "Film 005", "Film 003")
        expect_recommended(page, recommended_after(server, "i3", "i5"))
        expect(page.locator("#why h2")).to_have_text(f"Why {chosen}?")
        expect(page.locator("#why tbody tr")).to_have_count(3)

    expect_all(page)
    page.reload()
    expect_all(page)
    expect_all(visit(page.url.partition("/#")[2].join(["#", ""])))


def test_back_and_forward_walk_through_the_states(visit: Visit, server: RunningServer) -> None:
    page = visit()
    add(page, "i1")
    add(page, "i2")
    page.locator(".recommendation").first.click()
    expect(page.get_by_role("table")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("table")).to_be_hidden()
    expect_history(page, "Film 002", "Film 001")
    page.go_back()
    expect_history(page, "Film 001")
    expect_recommended(page, recommended_after(server, "i1"))
    page.go_forward()
    expect_history(page, "Film 002", "Film 001")
    expect_recommended(page, recommended_after(server, "i1", "i2"))


def test_rows_that_look_the_same_change_the_history_of_the_moment(visit: Visit) -> None:
    newest = ",".join(f"i{number}" for number in range(20, 30))
    page = visit(f"#h=i1,{newest}")
    expect(page.get_by_text("After 11 items.")).to_be_visible()
    page.goto(f"{page.url.partition('#')[0]}#h=i2,i3,{newest}")
    expect(page.get_by_text("After 12 items.")).to_be_visible()
    page.get_by_role("button", name="Remove: Film 029").click()
    assert page.url.endswith("#h=i2,i3," + newest.removesuffix(",i29"))


def test_a_link_with_unknown_ids_reports_them_and_shows_the_rest(visit: Visit, server: RunningServer) -> None:
    page = visit("#h=i1,a%2Cb,%E0%A4,i2&item=ghost", may_fail=True)
    skipped = "Skipped, as the model does not know them: a,b, %E0%A4."
    expect(page.get_by_text(skipped)).to_be_visible()
    expect_history(page, "Film 002", "%E0%A4", "a,b", "Film 001")
    expect(page.locator("#history ol li", has_text="unknown to the model")).to_have_count(2)
    expect(page.get_by_text("The model knows no item with this id: ghost.")).to_be_visible()
    expect_recommended(page, recommended_after(server, "i1", "i2"))
    expect(page.locator("#problem")).to_be_hidden()


def test_a_link_of_nothing_but_junk_falls_back_on_what_is_popular(visit: Visit) -> None:
    page = visit(f"#h=%00,{'x' * 255}🎬,{'y' * 2000}&item&=&x")
    expect(
        page.get_by_text("None of these items is known to the model: showing what is popular.")
    ).to_be_visible()


def test_the_skip_link_leads_on_and_keeps_the_state(visit: Visit) -> None:
    page = visit("#h=i1")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#recommendations")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".recommendation").first).to_be_focused()
    assert page.url.endswith("#h=i1")


# When things go wrong


def test_a_key_is_asked_for_and_kept_for_this_tab_only(visit: Visit, model: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sésame\n", encoding="utf-8")
    with running(model, "--api-key-file", str(tmp_path / "keys")) as guarded:
        page = visit("#h=i1", origin=guarded.address, may_fail=True)
        field = page.get_by_label("API key")
        expect(page.get_by_role("alert")).to_have_text("The service asks for a key.")
        expect(field).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("The service did not accept this key.")
        field.fill("sésame")
        page.keyboard.press("Enter")
        expect_history(page, "Film 001")
        expect(page.locator("#recommendations li")).to_have_count(10)
        expect(field).to_be_hidden()
        page.reload()
        expect_history(page, "Film 001")
        assert page.evaluate("[localStorage.length, document.cookie, location.href.includes('s%C3%A9')]") == [
            0,
            "",
            False,
        ]


@contextmanager
def started_again(stopped: RunningServer) -> Iterator[RunningServer]:
    """The same command once more, on the port it had."""
    arguments = stopped.process.args
    assert isinstance(arguments, list)
    command = [str(stopped.port) if argument == "0" else argument for argument in arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield RunningServer(process)
        finally:
            process.kill()


def test_a_stopped_service_is_reported_and_the_page_recovers(visit: Visit, model: Path) -> None:
    with running(model) as server:
        page = visit("#h=i1", origin=server.address, may_fail=True)
        expect(page.locator("#recommendations li")).to_have_count(10)
        stop_the_clock(page)
        assert server.stop() == 0
        page.get_by_role("button", name="Add to the history").nth(3).click()
        expect(page.get_by_role("alert")).to_have_text("The service cannot be reached. Trying again soon.")
        expect(page.locator("#recommendations li")).to_have_count(10)
        with started_again(server):
            page.get_by_role("button", name="Try again").click()
            expect(page.locator("#problem")).to_be_hidden()
            expect(page.locator("#recommendations")).to_have_attribute("aria-busy", "false")
            expect(page.locator("#history ol li")).to_have_count(2)


def test_a_busy_service_is_asked_again_when_it_says(visit: Visit, server: RunningServer) -> None:
    page = visit(may_fail=True)
    expect(page.locator("#recommendations li")).to_have_count(10)
    stop_the_clock(page)
    busy = {"status": 503, "code": "overloaded", "detail": "More requests are waiting."}
    times: list[int] = []

    def refuse_once(route: Route) -> None:
        times.append(1)
        if len(times) == 1:
            headers = {"Retry-After": "7", "Content-Type": "application/problem+json"}
            route.fulfill(status=503, headers=headers, body=json.dumps(busy))
        else:
            route.continue_()

    page.route("**/v1/recommend", refuse_once)
    page.get_by_role("button", name="Add to the history").first.click()
    expect(page.get_by_role("alert")).to_have_text("More requests are waiting. Trying again soon.")
    page.clock.run_for(6_900)
    assert len(times) == 1
    page.clock.run_for(200)
    expect(page.locator("#problem")).to_be_hidden()
    expect_recommended(page, recommended_after(server, "i1"))


# How it looks


def show_everything(page: Page) -> None:
    """Every kind of text at once: chosen, unknown, too old, explained by many heads, suggested, gone wrong."""

    def with_many_heads(route: Route) -> None:
        answer = route.fetch().json()
        route.fulfill(json={**answer, "attention": [heads * 8 for heads in answer["attention"]]})

    page.route("**/v1/explain", with_many_heads)
    page.locator(".recommendation").nth(2).click()
    expect(page.get_by_role("table")).to_be_visible()
    page.route("**/v1/items*", lambda route: route.fulfill(status=500, body="<h1>Oops</h1>"), times=1)
    search_box(page).fill("f")
    expect(page.get_by_role("alert")).to_have_text("The service failed to answer (500).")
    search_box(page).fill("film")
    expect(suggestion(page).first).to_be_visible()


EVERYTHING = "#h=ghost," + ",".join(f"i{number}" for number in range(1, 31))

# Composes each text's colour and what lies behind it, as WCAG 2 does. Disabled controls are exempt.
LOW_CONTRAST = """() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  let seen = 0;
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || !node.checkVisibility() || node.closest("[aria-disabled=true], noscript, .skip")) continue;
    const behind = [];
    for (let each = node; each; each = each.parentElement) behind.unshift(getComputedStyle(each).backgroundColor);
    const [dark, light] = [paint(behind), paint([...behind, getComputedStyle(node).color])]
      .map(luminance).sort((a, b) => a - b);
    seen += 1;
    if ((light + 0.05) / (dark + 0.05) < 4.5) low.push(node.outerHTML);
  }
  return { seen, low };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_enough(visit: Visit, scheme: str) -> None:
    page = visit(EVERYTHING, color_scheme=scheme, may_fail=True)
    page.get_by_role("button", name="older items").click()
    show_everything(page)
    found = page.evaluate(LOW_CONTRAST)
    assert found["low"] == []
    assert found["seen"] > 100
    brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] / 255")
    assert (brightness > 0.5) == (scheme == "light")


def test_a_phone_needs_no_sideways_scrolling(visit: Visit) -> None:
    page = visit(EVERYTHING, viewport={"width": 360, "height": 740}, has_touch=True, may_fail=True)
    show_everything(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    small = page.locator("button:visible, select:visible, input:visible").evaluate_all(
        "all => all.map(each => each.getBoundingClientRect()).filter(box => Math.min(box.width, box.height) < 24)"
    )
    assert small == []


def test_the_page_is_small_and_guarded(server: RunningServer) -> None:
    with httpx2.Client(base_url=server.address) as client:
        policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    files = page_files.page_files()
    assert sum(len(content) for path, (content, _) in files.items() if path != "/") < 40 * 1024
