"""The units for systemd: valid, shut in, and in agreement with the service."""

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from bert4rec.cli.production.refresh_command import NOT_IN_SERVICE
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.service.http.server import GRACE
from tests.deploy.command_lines import read_options, value_of
from tests.deploy.dockerfile import DEPLOY

UNIT = DEPLOY / "bert4rec.service"
REFRESH = DEPLOY / "bert4rec-refresh.service"
TIMER = DEPLOY / "bert4rec-refresh.timer"
MORE_OPTIONS = "$BERT4REC_OPTIONS"
NEWER = ("RestartSteps", "RestartMaxDelaySec")
"""Known to systemd since 254; older ones ignore them and say so."""


def section(unit: Path, name: str) -> dict[str, str]:
    """Of settings that are given twice, the last."""
    parser = ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the names as they are written
    parser.read(unit)
    return dict(parser[name])


@pytest.fixture
def service() -> dict[str, str]:
    return section(UNIT, "Service")


@pytest.fixture
def refresh() -> dict[str, str]:
    return section(REFRESH, "Service")


@pytest.fixture
def analysable(tmp_path: Path) -> Path:
    """The units with a command that exists on this machine: systemd looks."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in (UNIT, REFRESH, TIMER):
        command = re.sub(r"/opt/bert4rec(-train)?/bin/bert4rec", sys.executable, unit.read_text())
        (tmp_path / unit.name).write_text(command)
    return tmp_path


@pytest.mark.parametrize("unit", [UNIT, REFRESH, TIMER], ids=lambda path: path.name)
def test_systemd_finds_no_fault(unit: Path, analysable: Path) -> None:
    verify = ["systemd-analyze", "verify", "--man=no", str(analysable / unit.name)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    of_ours = [line for line in done.stderr.splitlines() if UNIT.stem in line]
    assert [line for line in of_ours if not any(f"'{name}'" in line for name in NEWER)] == []


def test_systemd_calls_it_well_shut_in(analysable: Path) -> None:
    """Its own scale goes from 0 to 10, and calls up to 2 safe enough for anything."""
    rate = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(analysable / UNIT.name)]
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


def test_the_refresh_is_a_command_that_reads_the_store_of_the_service_and_switches_its_link(
    service: dict[str, str], refresh: dict[str, str]
) -> None:
    program, *words, more = refresh["ExecStart"].split()
    assert (program, more) == ("/opt/bert4rec-train/bin/bert4rec", "$BERT4REC_REFRESH_OPTIONS")
    options = read_options(words, of="refresh")
    assert value_of(service["ExecStart"].split(), "--store") == f"sqlite:///{options['source']}"
    assert f"{options['output']}/current --watch" in service["ExecStart"]
    assert refresh["User"] == service["User"], "who may read the store, and whose models the service reads"
    assert refresh["ReadWritePaths"] == str(options["output"])


def test_a_refresh_is_not_repeated_where_that_changes_nothing(refresh: dict[str, str]) -> None:
    final = [UsageError.exit_code, DataError.exit_code, NotFoundError.exit_code, NOT_IN_SERVICE]
    assert refresh["RestartPreventExitStatus"].split() == list(map(str, final))


def test_a_night_that_was_missed_is_made_up_for() -> None:
    assert section(TIMER, "Timer")["Persistent"] == "yes"
