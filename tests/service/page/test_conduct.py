"""The address, what the page does when things go wrong, and how it looks."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import (
    Page,
    Route,
    expect,
)

from bert4rec.service.contract.documents import page_files
from tests.service.page.steps import (
    Visit,
    add,
    expect_history,
    expect_recommended,
    recommended_after,
    search_box,
    stop_the_clock,
    suggestion,
)
from tests.service.servers import RunningServer, running

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
    expect(page.get_by_text("The model does not know an item with this id: ghost.")).to_be_visible()
    expect_recommended(page, recommended_after(server, "i1", "i2"))
    expect(page.locator("#problem")).to_be_hidden()


def test_a_link_of_nothing_but_junk_falls_back_on_what_is_popular(visit: Visit) -> None:
    page = visit(f"#h=%00,{'x' * 255}🎬,{'y' * 2000}&item&=&x")
    expect(
        page.get_by_text("None of these items is known to the model: showing what is popular.")
    ).to_be_visible()


def test_the_skip_link_leads_on_and_keeps_the_state(visit: Visit) -> None:
    page = visit("#h=i1")
    expect(page.locator("#recommendations li")).to_have_count(10)
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
        expect(page.get_by_role("alert")).to_have_text("The service requires an API key.")
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
    contents = [file.content for path, file in page_files().items() if path != "/"]
    assert sum(len(each) for each in contents if isinstance(each, bytes)) < 50 * 1024
