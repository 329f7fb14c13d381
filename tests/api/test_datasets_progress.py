"""Progress bars: live for people, quiet in scripts, and a callback for one's own."""

import os
import pty
import subprocess
import sys

import pytest

from bert4rec.progress import is_notebook, progress_bar

PROGRAM = """
from bert4rec.progress import progress_bar
with progress_bar("Reading", "rows"{show}) as report:
    report(5, 10)

"""


def shown_on_a_terminal(*flags: str, show: str = "") -> str:
    """What a real Python process draws on a terminal that is its stderr."""
    leader, follower = pty.openpty()
    run = [sys.executable, *flags, "-q"] if flags else [sys.executable, "-"]
    subprocess.run(
        run, input=PROGRAM.format(show=show), stderr=follower, stdout=follower, text=True, check=True
    )
    os.close(follower)
    shown = b""
    try:
        while block := os.read(leader, 4096):
            shown += block
    except OSError:  # The terminal has been read to its end.
        pass
    os.close(leader)
    return shown.decode()


def test_an_interactive_session_on_a_terminal_draws_a_bar() -> None:
    assert "5 rows" in shown_on_a_terminal("-i")


def test_a_script_is_quiet_unless_asked() -> None:
    assert shown_on_a_terminal() == ""
    assert "5 rows" in shown_on_a_terminal(show=", show=True")


def test_a_callback_hears_everything_and_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[tuple[int, int | None]] = []
    with progress_bar("Reading", "rows", callback=lambda done, total: heard.append((done, total))) as report:
        report(1)
        report(2, 2)
    assert heard == [(1, None), (2, 2)]
    assert capsys.readouterr() == ("", "")
    assert not is_notebook()
