"""The list in memory: fed with changes, it is what the store holds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.recommend.catalogue import Catalogue
from bert4rec.service.hidden_table import NEVER, HiddenTable, KnownNumbers
from bert4rec.store.hiding import Hiding, HidingsRead

ITEMS = ("a", "b", "c", "unknown")
CATALOGUE = Catalogue(["a", "b", "c"], None, np.array([3, 2, 1]))
hidings = st.builds(Hiding, st.sampled_from(ITEMS), st.integers(-2, 9), st.none() | st.integers(10, 19))


@given(
    st.lists(
        st.tuples(
            st.lists(hidings, unique_by=lambda each: each.item_id),
            st.sets(st.sampled_from(ITEMS)),
            st.booleans(),
        )
    ),
    st.integers(0, 20),
)
def test_it_holds_what_was_hidden_and_not_shown_again(
    changes: list[tuple[list[Hiding], set[str], bool]], moment: int
) -> None:
    table, known, expected = HiddenTable(), KnownNumbers(CATALOGUE), dict[str, Hiding]()
    for version, (hidden, shown, is_whole) in enumerate(changes):
        shown -= {each.item_id for each in hidden}
        if is_whole:
            expected.clear()
        expected = {name: each for name, each in expected.items() if name not in shown}
        expected |= {each.item_id: each for each in hidden}
        table.take(HidingsRead(version, hidden, [] if is_whole else sorted(shown), is_whole))
        ordered = sorted(expected.values(), key=lambda each: (-each.begin, each.item_id))
        assert list(table.hidings()) == ordered
        assert list(table.hidings(2)) == ordered[:2]
        assert len(table) == len(ordered)
        assert len(table.ids) <= max(2 * len(table), len(hidden))
        in_force = table.in_force(moment)
        now = {CATALOGUE.number_of(name) for name, each in expected.items() if each.holds_at(moment)} - {None}
        assert set(known.at(table.ids, in_force).tolist()) == now
        dates = [date for each in expected.values() for date in (each.begin, each.end) if date is not None]
        assert table.next_change(moment) == min((date for date in dates if date > moment), default=NEVER)


def test_a_list_that_is_being_read_stays_as_it_was() -> None:
    table = HiddenTable()
    listed = [Hiding("b", 2), Hiding("c", 2, 9), Hiding("a", 1)]
    table.take(HidingsRead(1, listed, [], True))
    begun = table.hidings()
    table.take(HidingsRead(2, [Hiding("c", 7)], ["a", "b"], False))
    assert list(begun) == listed
    assert list(table.hidings()) == [Hiding("c", 7)]


def test_what_is_hidden_and_shown_a_thousand_times_leaves_no_places() -> None:
    table, known = HiddenTable(), KnownNumbers(CATALOGUE)
    table.take(HidingsRead(0, [Hiding("b", 0)], [], True))
    for version in range(1000):
        item = f"item-{version}"
        table.take(HidingsRead(2 * version + 1, [Hiding(item, 0)], [], False))
        table.take(HidingsRead(2 * version + 2, [], [item], False))
        assert len(table.ids) <= 3
        assert known.at(table.ids, table.in_force(1)).tolist() == [2]
