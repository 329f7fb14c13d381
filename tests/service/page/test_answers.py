"""Putting together a history, what is recommended after it, and why."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import (
    Route,
    expect,
)

from tests.service.page.steps import (
    MAX_HISTORY,
    SAMPLES,
    Visit,
    add,
    ask,
    expect_history,
    expect_recommended,
    film,
    named,
    recommended_after,
    search_box,
    stop_the_clock,
    suggestion,
)
from tests.service.servers import LARGE_ID, RunningServer, running, variant

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


def test_items_whose_ids_are_integers_are_searched_added_recommended_and_explained(
    visit: Visit, exported_model: Path, tmp_path: Path
) -> None:
    """One of them is larger than a number of JavaScript can hold."""
    model = variant(exported_model, tmp_path / "model", "numbers", whole_numbers=True)
    (model / "samples.json").write_text(json.dumps([{"user_id": 7, "history": [3, LARGE_ID]}]))
    with running(model) as server:
        page = visit(origin=server.address)
        add(page, str(LARGE_ID))
        expect_history(page, "Film 060")
        assert page.url.endswith(f"#h={LARGE_ID}")
        page.get_by_label("Or start from a sample user").select_option("7 (2 items)")
        expect_history(page, "Film 060", "Film 003")
        expect(page.get_by_label("Or start from a sample user")).to_have_value("0")
        expect_recommended(page, recommended_after(server, 3, LARGE_ID))
        page.locator(".recommendation").first.click()
        expect(page.locator(".recommendation").first).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#why tbody th")).to_have_text(["the predicted position", "Film 060", "Film 003"])
        page.reload()
        expect_history(page, "Film 060", "Film 003")
        expect(page.locator("#why tbody tr")).to_have_count(3)
        page.get_by_role("button", name="Add to the history").first.click()
        expect(page.locator("#history ol li")).to_have_count(3)
        expect(page.get_by_text("After 3 items.")).to_be_visible()


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
    expect(page.locator("#why tbody th")).to_have_text(["the predicted position", "Film 001", "Film 003"])
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
    expect(rows.locator("th")).to_have_text(["the predicted position", "Film 004", "Film 005", "Film 003"])
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
