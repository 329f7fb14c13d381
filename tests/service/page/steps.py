"""What a visitor does and sees, and the titles that are hardest to show."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from playwright.sync_api import (
    Locator,
    Page,
    expect,
)

from tests.service.servers import PATIENCE, RunningServer

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


def ask(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        answer: dict[str, Any] = client.post(path, json=body).json()
        return answer


def recommended_after(server: RunningServer, *history: str | int) -> list[str]:
    items = ask(server, "/v1/recommend", history=history)["items"]
    return [named(item["item_id"], item["title"]) for item in items]


def named(item_id: str | int, title: str | None) -> str:
    return (title or "").strip() or str(item_id)


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
