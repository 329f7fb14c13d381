"""Ctrl-C and SIGTERM in real processes, polite and otherwise."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from bert4rec.cli import process
from bert4rec.cli.process import StopSwitch, end_in_time


def endless() -> None:
    """One operation that takes for ever, however politely it is asked to stop."""
    process.SECONDS_TO_STOP = 0.0
    end_in_time()
    with StopSwitch(lambda: "How to go on."):
        announce()
        os.read(os.pipe()[0], 1)


def polite() -> None:
    """The first signal is a request, the second is not."""
    with StopSwitch(lambda: "") as switch:
        announce()
        try:
            while not switch.is_on():
                signal.pause()
            announce()
            while True:
                signal.pause()
        except KeyboardInterrupt:
            announce()


def announce() -> None:
    sys.stdout.write("now\n")
    sys.stdout.flush()


def start(work: Callable[[], None]) -> subprocess.Popen[str]:
    program = f"from {__name__} import {work.__name__}; {work.__name__}()"
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_in_one_endless_operation_ends_and_says_how_to_go_on(number: signal.Signals) -> None:
    with start(endless) as running:
        assert running.stdout
        assert running.stdout.readline() == "now\n"
        running.send_signal(number)
        _, messages = running.communicate()
    assert running.returncode == 130
    assert messages == "How to go on.\nInterrupted.\n"


def test_the_first_ctrl_c_is_a_request_and_the_second_is_not() -> None:
    with start(polite) as running:
        assert running.stdout
        for _ in range(2):
            assert running.stdout.readline() == "now\n"
            running.send_signal(signal.SIGINT)
        output, messages = running.communicate()
    assert (running.returncode, output, messages) == (0, "now\n", "")
