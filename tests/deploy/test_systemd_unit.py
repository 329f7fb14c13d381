"""The unit for systemd: valid, shut in, and in agreement with the service."""

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from bert4rec.service.http.server import GRACE
from tests.deploy.command_lines import read_options, value_of
from tests.deploy.dockerfile import DEPLOY

UNIT = DEPLOY / "bert4rec.service"
MORE_OPTIONS = "$BERT4REC_OPTIONS"
NEWER = ("RestartSteps", "RestartMaxDelaySec")
"""Known to systemd since 254; older ones ignore them and say so."""


@pytest.fixture
def service() -> dict[str, str]:
    """The section [Service]; of settings that are given twice, the last."""
    unit = ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the names as they are written
    unit.read(UNIT)
    return dict(unit["Service"])


@pytest.fixture
def analysable(tmp_path: Path) -> Path:
    """The unit with a command that exists on this machine: systemd looks."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/bert4rec/bin/bert4rec", sys.executable))
    return unit


def test_systemd_finds_no_fault(analysable: Path) -> None:
    verify = ["systemd-analyze", "verify", "--man=no", str(analysable)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    of_ours = [line for line in done.stderr.splitlines() if UNIT.stem in line]
    assert [line for line in of_ours if not any(f"'{name}'" in line for name in NEWER)] == []


def test_systemd_calls_it_well_shut_in(analysable: Path) -> None:
    """Its own scale goes from 0 to 10, and calls up to 2 safe enough for anything."""
    rate = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(analysable)]
    done = subprocess.run(rate, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_command_is_one_that_the_service_understands(service: dict[str, str]) -> None:
    program, *words, more = service["ExecStart"].split()
    assert (program, more) == ("/opt/bert4rec/bin/bert4rec", MORE_OPTIONS)
    options = read_options(words)
    assert options["host"] == "127.0.0.1"
    assert options["api_key_file"] is not None
    assert "BERT4REC_OPTIONS=" in service["Environment"], "without the file, nothing is added"


def test_the_store_lies_where_alone_it_may_write(service: dict[str, str]) -> None:
    assert service["ProtectSystem"] == "strict"
    assert value_of(service["ExecStart"].split(), "--store").startswith(
        f"sqlite:////var/lib/{service['StateDirectory']}/"
    )


def test_a_stop_is_told_once_and_waited_for(service: dict[str, str]) -> None:
    assert service["KillMode"] == "mixed", "workers that are told twice stop at once"
    drain = float(value_of(service["ExecStart"].split(), "--drain"))
    assert float(service["TimeoutStopSec"]) > drain + GRACE


def test_a_reload_sends_the_signal_that_reads_keys_again(service: dict[str, str]) -> None:
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "LoadCredential" not in service, "a copy of the keys made at the start would never change"
