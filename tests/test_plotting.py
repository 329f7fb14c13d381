"""Figures can be read by people who do not think in powers of ten."""

from pathlib import Path
from typing import Any

import pytest

from bert4rec.errors import UsageError
from bert4rec.plotting import new_figure, save_figure


def labels(axis: Any) -> list[str]:
    low, high = axis.get_view_interval()
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1.get_text() for tick in ticks]


def test_numbers_are_written_out(tmp_path: Path) -> None:
    figure, (left, right) = new_figure(columns=2)
    left.plot([0, 1], [0, 12_000])
    right.plot([1, 1_000_000], [5, 60])
    right.set(xscale="log", yscale="log", xlim=(1, 1_000_000), ylim=(5, 60))
    save_figure(figure, tmp_path / "deep" / "picture.svg")
    assert "10,000" in labels(left.yaxis)
    assert set(labels(right.xaxis)) >= {"1", "100", "10,000", "1,000,000"}
    assert labels(right.yaxis) == ["5", "10", "20", "50"]
    assert (tmp_path / "deep" / "picture.svg").is_file()


def test_ticks_chosen_by_hand_stay_as_they_are(tmp_path: Path) -> None:
    figure, axes = new_figure()
    axes.plot([16, 4096], [0, 1])
    axes.set_xscale("log", base=2)
    axes.set_xticks([16, 4096], ["16", "4096 (!)"])
    save_figure(figure, tmp_path / "picture.png")
    assert labels(axes.xaxis) == ["16", "4096 (!)"]


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    figure, _ = new_figure()
    with pytest.raises(UsageError, match=r"must end in \.png, \.svg or \.pdf"):
        save_figure(figure, tmp_path / "picture.bmp")
