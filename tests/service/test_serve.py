"""`bert4rec.service.serve` as a library calls it: what it refuses, by the names of its parameters."""

import importlib.util
import socket
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.service import serve
from bert4rec.service.app import Settings, check


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"workers": 0}, "`workers` must be at least 1; found 0."),
        ({"threads": -1}, "`threads` must be at least 1; found -1."),
        ({"port": 2**16}, "`port` must be from 0 to 65535; found 65536."),
        ({"host": "999.0.0.1", "insecure": True}, "Choose another `host` or `port`."),
        ({"host": "0.0.0.0"}, "On 0.0.0.0 others can reach the service"),
        ({"drain": -1}, "`drain` must be from 0 to 3600 seconds; found -1."),
        ({"drain": float("nan")}, "`drain` must be from 0 to 3600 seconds; found nan."),
        ({"tls_key": "key.pem"}, "`tls_key` needs `tls_cert`"),
        ({"tls_cert": "/nowhere/cert.pem"}, "`tls_cert`, `tls_key`: /nowhere/cert.pem cannot be read"),
        ({"tls_cert": "/dev/null"}, "`tls_cert`, `tls_key`: no valid certificate"),
        ({"unix_socket": "/nowhere/socket"}, "`unix_socket`: cannot listen on /nowhere/socket"),
        ({"log_format": "xml"}, "`log_format` must be 'text' or 'json'; found 'xml'."),
    ],
)
def test_wrong_parameters_are_named(exported_model: Path, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        serve(exported_model, **{"port": 0, **parameters})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store": "history.db"}, "`store`: 'history.db' is not a known address."),
        ({"allow_host": ("http://shop.example",)}, "`allow_host` takes names such as 'shop.example'"),
        ({"api_key_file": Path("/dev/null")}, "`api_key_file`: /dev/null contains no key."),
    ],
)
def test_wrong_settings_are_named(exported_model: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(replace(Settings(exported_model, "sqlite:////nowhere/history.db"), **changes))
    assert message in str(caught.value)


def test_a_port_in_use_is_refused(exported_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"^Cannot listen on 127\.0\.0\.1:{port}: Address already in use\."
        ):
            serve(exported_model, port=port)


def test_a_run_is_refused_with_the_method_that_exports_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"requires an exported model. Create one with `run.export\(\)`\.$"):
        serve(str(tmp_path))
    with pytest.raises(NotFoundError, match="does not exist; expected an exported model"):
        serve(tmp_path / "nowhere")


def test_missing_libraries_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, exported_model: Path
) -> None:
    known = importlib.util.find_spec

    def without_httptools(name: str) -> ModuleSpec | None:
        return None if name == "httptools" else known(name)

    monkeypatch.setattr("bert4rec.service.find_spec", without_httptools)
    with pytest.raises(UsageError, match=r"requires httptools, .*: pip install 'bert4rec\[serve\]'\.$"):
        serve(exported_model)
