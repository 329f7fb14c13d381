"""Where things are kept that need not be made twice."""

import os
from pathlib import Path

import pytest

from bert4rec.machine import keep_compiled_code

FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOLDERS:
        monkeypatch.setenv(name, "")  # So that it is put back afterwards.
        monkeypatch.delenv(name)


def test_compiled_code_is_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/where/i/said")
    keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "bert4rec" / "compiled" / "torch")
    assert os.environ["TRITON_CACHE_DIR"] == "/where/i/said"


def test_without_a_home_to_write_to_it_is_kept_among_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    keep_compiled_code()
    assert all(os.environ[name].startswith(str(tmp_path / "bert4rec-")) for name in FOLDERS)
