"""What the page shows of the service's store: users by id, and what is hidden; and which model answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.service.page.steps import (
    Visit,
    add,
    expect_history,
    expect_recommended,
    film,
    named,
    recommended_after,
    search_box,
    suggestion,
)
from tests.service.servers import TRAINED, RunningServer, running, variant


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    """With what three users did; the id of one of them is awkward."""
    with running(model) as server, server.client() as client:
        events = [
            {
                "event_id": f"{user}-{item}",
                "user_id": user,
                "item_id": item,
                "timestamp": f"2026-01-{day:02}T00:00:00Z",
            }
            for user in ("ann", "a/history&user=b", "carl")
            for day, item in enumerate(("i3", "i5", "i4" if user == "ann" else "tomorrow"), start=1)
        ]
        assert client.post("/v1/events", json={"events": events}).json()["accepted"] == 9
        yield server


@pytest.fixture(autouse=True)
def nothing_hidden(server: RunningServer) -> Iterator[None]:
    yield
    with server.client() as client:
        for item in client.get("/v1/items/hidden").json()["items"]:
            client.delete(f"/v1/items/{item['item_id']}/hidden")


def hide(server: RunningServer, item: str, **period: str) -> None:
    with server.client() as client:
        assert client.put(f"/v1/items/{item}/hidden", json=period).status_code == 200


def show_user(page: Page, user: str) -> None:
    page.get_by_label("Or show a user by id").fill(user)
    page.keyboard.press("Enter")


def recommended_to(server: RunningServer, user: str) -> list[str]:
    with server.client() as client:
        items = client.post("/v1/recommend", json={"user_id": user}).json()["items"]
    return [named(item["item_id"], item["title"]) for item in items]


def hidden_list(page: Page) -> Locator:
    return page.locator("#hidden li")


# Users


def test_a_user_is_shown_by_id_with_what_is_stored_and_recommended(
    visit: Visit, server: RunningServer
) -> None:
    page = visit()
    show_user(page, "ann")
    expect_history(page, "Film 004", "Film 005", "Film 003")
    expect_recommended(page, recommended_to(server, "ann"))
    expect(page.get_by_text("Stored of \u2068ann\u2069: 3 actions, newest first.")).to_be_visible()
    assert page.url.endswith("#user=ann")
    page.locator(".recommendation").first.click()
    expect(page.locator("#why tbody th")).to_have_text(
        ["the predicted position", "Film 004", "Film 005", "Film 003"]
    )
    page.reload()
    expect_history(page, "Film 004", "Film 005", "Film 003")
    expect(page.get_by_label("Or show a user by id")).to_have_value("ann")
    expect(page.locator("#why tbody tr")).to_have_count(4)


def test_a_changed_history_is_the_users_no_more(visit: Visit, server: RunningServer) -> None:
    page = visit("#user=ann")
    expect_history(page, "Film 004", "Film 005", "Film 003")
    page.get_by_role("button", name="Remove: Film 005").click()
    expect_history(page, "Film 004", "Film 003")
    expect_recommended(page, recommended_after(server, "i3", "i4"))
    expect(page.get_by_label("Or show a user by id")).to_have_value("")
    page.go_back()
    expect_history(page, "Film 004", "Film 005", "Film 003")
    add(page, "i7")
    expect_history(page, film(7), "Film 004", "Film 005", "Film 003")
    assert page.url.endswith("#h=i3,i5,i4,i7")


def test_awkward_users_and_unknown_items_are_shown_as_they_are(visit: Visit, server: RunningServer) -> None:
    page = visit()
    show_user(page, "a/history&user=b")
    expect_history(page, "tomorrow", "Film 005", "Film 003")
    expect(page.get_by_text("Skipped, as the model does not know them: tomorrow.")).to_be_visible()
    expect_recommended(page, recommended_to(server, "a/history&user=b"))
    page.reload()
    expect_history(page, "tomorrow", "Film 005", "Film 003")


def test_of_an_unknown_user_nothing_is_stored_and_what_is_popular_is_shown(visit: Visit) -> None:
    page = visit("#user=nobody")
    expect(page.get_by_text("Stored of \u2068nobody\u2069: nothing.")).to_be_visible()
    expect(page.get_by_text("No history yet: showing what is popular.")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("Empty so far.")).to_be_visible()
    assert "#" not in page.url


# Hidden items


def test_a_recommendation_is_hidden_at_once_and_taken_back(visit: Visit, server: RunningServer) -> None:
    page = visit("#h=i3")
    before = recommended_after(server, "i3")
    expect_recommended(page, before)
    button = page.get_by_role("button", name=f"Never recommend: {before[1]}", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Hidden: \u2068{before[1]}\u2069.")).to_be_visible()
    after = recommended_after(server, "i3")
    assert before[1] not in after
    expect_recommended(page, after)
    expect(page.get_by_role("button", name=f"Never recommend: {after[1]}", exact=True)).to_be_focused()
    page.get_by_role("button", name="Undo").click()
    expect_recommended(page, before)
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    expect(page.locator("#recommendations")).to_be_focused()


def test_what_is_hidden_is_listed_with_its_dates_and_shown_again(visit: Visit, server: RunningServer) -> None:
    hide(server, "i1")
    hide(server, "i2", **{"from": "2120-01-01T12:00:00Z"})
    hide(server, "i5", **{"from": "2020-01-01T12:00:00Z", "until": "2021-01-01T12:00:00Z"})
    hide(server, "unheard-of", until="2121-01-01T12:00:00Z")
    page = visit(timezone_id="UTC")
    page.get_by_text("Hidden items (4)").click()
    expect(page.get_by_text("Hidden now: 2 items.")).to_be_visible()
    rows = hidden_list(page)
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("Film 002to be hidden from 1 Jan 2120, 12:00 on")
    expect(rows.nth(1)).to_contain_text("unheard-ofsince ")
    expect(rows.nth(1)).to_contain_text(", until 1 Jan 2121, 12:00")
    expect(rows.nth(3)).to_contain_text("Film 005was hidden until 1 Jan 2021, 12:00")
    expect_recommended(page, [film(number) for number in range(2, 12)])
    again = page.get_by_role("button", name="Show again: Film 001")
    again.focus()
    page.keyboard.press("Enter")
    expect_recommended(page, [film(number) for number in range(1, 11)])
    expect(page.get_by_role("button", name="Show again: Film 005")).to_be_focused()
    for _ in range(3):
        page.get_by_role("button", name="Show again").last.click()
    expect(page.get_by_text("Nothing is hidden.")).to_be_visible()
    expect(page.locator("summary")).to_be_focused()


def test_any_item_is_found_and_hidden_with_the_keyboard_and_marked_where_it_is_found(visit: Visit) -> None:
    page = visit()
    page.locator("summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("combobox", name="Hide an item by title or id")).to_be_focused()
    page.keyboard.type("film 033")
    expect(suggestion(page)).to_have_text(["Film 033i33"])
    page.keyboard.press("Enter")
    expect(hidden_list(page)).to_have_count(1)
    expect(hidden_list(page)).to_contain_text("Film 033")
    search_box(page).fill("film 03")
    expect(suggestion(page, name="Film 033")).to_have_text("Film 033hiddeni33")
    expect(suggestion(page, name="Film 034")).to_have_text("Film 034i34")
    page.keyboard.type("3")
    expect(suggestion(page)).to_have_text(["Film 033hiddeni33"])
    page.keyboard.press("Enter")
    expect_history(page, "Film 033")


def test_who_may_not_hide_is_told_so_and_nothing_changes(visit: Visit, model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'[{role}]\nkey = "{role * 4}"\nrole = "{role}"\n' for role in ("read", "write")))
    with running(model, "--api-key-file", str(keys)) as guarded:
        page = visit(origin=guarded.address, may_fail=True)
        page.get_by_label("API key").fill("read" * 4)
        page.keyboard.press("Enter")
        expect(page.locator("#recommendations li")).to_have_count(10)
        page.get_by_role("button", name="Never recommend: Film 002").click()
        expect(page.get_by_role("alert")).to_have_text(
            "This needs a key with the role write; read has the role read."
        )
        expect_recommended(page, [film(number) for number in range(1, 11)])
        page.evaluate(f"sessionStorage.setItem('bert4rec-api-key', '{'write' * 4}')")
        page.get_by_role("button", name="Never recommend: Film 002").click()
        expect_recommended(page, [film(number) for number in (1, *range(3, 12))])
        expect(page.locator("#problem")).to_be_hidden()


# The model


def test_the_page_tells_which_model_answers_since_when_and_how_good_it_is(
    visit: Visit, exported_model: Path, tmp_path: Path
) -> None:
    model = variant(exported_model, tmp_path / "model", "one", trained=TRAINED)
    with running(model) as server:
        page = visit(origin=server.address, timezone_id="UTC")
        facts = page.locator("#facts")
        expect(facts).to_contain_text("Model films, version one, 60 items, serving since ")
        expect(facts).to_contain_text(
            "bert4rec+, trained on 1,234 actions until 31 Jan 2026, 12:00; "
            "NDCG@10 on test items 0.123 among all items, 0.568 among a sample of items."
        )


def test_of_a_test_the_page_tells_the_arms_and_which_of_them_answered(
    visit: Visit, exported_model: Path, tmp_path: Path
) -> None:
    first, second = (variant(exported_model, tmp_path / name, name) for name in ("one", "two"))
    store = f"sqlite:///{tmp_path / 'history.db'}"
    served = (Path(f"champion={first}"), f"challenger={second}", "--split", "60:40")
    with running(*served, store=store) as server:
        users = [f"u{number}" for number in range(40)]
        with server.client() as client:
            event = {"item_id": "i3", "timestamp": "2026-01-01T00:00:00Z"}
            events = [{"event_id": user, "user_id": user, **event} for user in users]
            assert client.post("/v1/events", json={"events": events}).json()["accepted"] == 40
            arms = {
                client.post("/v1/recommend", json={"user_id": user}).json()["model"]["arm"]: user
                for user in users
            }
        page = visit(f"#user={arms['challenger']}", origin=server.address)
        facts = page.locator("#facts span")
        expect(facts).to_have_count(2)
        expect(facts.first).to_contain_text("champion (share 60): Model films, version one")
        expect(facts.last).to_contain_text("challenger (share 40): Model films, version two")
        note, why = (page.locator(f"{each} > [role=status]") for each in ("#recommendations", "#why"))
        expect(note).to_contain_text("Answered by challenger. After 1 item.")
        page.locator(".recommendation").first.click()
        expect(why).to_contain_text("As champion sees it; challenger recommended.")
        show_user(page, arms["champion"])
        expect(note).to_contain_text("Answered by champion. After 1 item.")
        page.locator(".recommendation").first.click()
        expect(why).to_contain_text("Score ")
        expect(why).not_to_contain_text("sees it")


def test_of_a_model_of_an_earlier_version_less_is_told(visit: Visit) -> None:
    facts: Any = visit().locator("#facts")
    expect(facts).to_contain_text("60 items, serving since ")
    expect(facts).not_to_contain_text("trained")


# How it looks


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(visit: Visit, server: RunningServer, width: int) -> None:
    hide(server, "i8", until="2121-01-01T12:00:00Z")
    page = visit("#user=ann", viewport={"width": width, "height": 800})
    page.locator("summary").click()
    expect(hidden_list(page)).to_have_count(1)
    expect_recommended(page, recommended_to(server, "ann"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
