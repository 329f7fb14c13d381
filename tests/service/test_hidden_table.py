"""The list in memory: fed with changes, it is what the store holds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.recommend.catalogue import Catalogue
from bert4rec.service.hidden_table import NEVER, HiddenTable, KnownNumbers
from bert4rec.store.hiding import Hiding, HidingsRead

ITEMS = ("a", "b", "c", "unknown")
CATALOGUE = Catalogue(["a", "b", "c"], None, np.array([3, 2, 1]))
hidings = st.builds(Hiding, st.sampled_from(ITEMS), st.integers(0, 9), st.none() | st.integers(10, 19))


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
        assert set(table.hidings()) == set(expected.values())
        in_force = table.in_force(moment)
        now = {CATALOGUE.number_of(name) for name, each in expected.items() if each.holds_at(moment)} - {None}
        assert set(known.at(table.ids, in_force).tolist()) == now
        dates = [date for each in expected.values() for date in (each.begin, each.end) if date is not None]
        assert table.next_change(moment) == min((date for date in dates if date > moment), default=NEVER)
