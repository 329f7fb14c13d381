"""The manifests: valid by the schemas of Kubernetes, and in agreement with each other, the image and the service."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict

from bert4rec.cli.production.refresh_command import NOT_IN_SERVICE
from bert4rec.service.app import create_app
from bert4rec.service.http.server import GRACE
from tests.deploy.command_lines import read_options, value_of
from tests.deploy.dockerfile import DEPLOY, FINAL
from tests.service.application import TestClient, settings_for
from tests.service.postgres import Postgres, find_programs
from tests.service.servers import running

FOLDER = DEPLOY / "kubernetes"
MANIFESTS: dict[str, Any] = {
    path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))
}
OTHERS = ("kustomization.yaml", "service-monitor.yaml")
"""Not of Kubernetes itself: kustomize's, and the Prometheus operator's."""
NAME = {"app.kubernetes.io/name": "bert4rec"}
PORT = "http"
DEPLOYMENT = MANIFESTS["deployment.yaml"]["spec"]
POD = DEPLOYMENT["template"]["spec"]
CONTAINER = POD["containers"][0]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.mark.parametrize("version", ["1.30", "1.33"])
@pytest.mark.parametrize("name", [name for name in MANIFESTS if name not in OTHERS])
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    schemas.validate(MANIFESTS[name], version, strict=True)


def test_kustomize_takes_all_files_but_the_optional_one() -> None:
    files = MANIFESTS["kustomization.yaml"]["resources"]
    assert sorted([*files, *OTHERS]) == sorted(MANIFESTS)


def test_everything_selects_the_pods_of_the_deployment() -> None:
    assert DEPLOYMENT["template"]["metadata"]["labels"] == NAME
    assert DEPLOYMENT["selector"]["matchLabels"] == NAME
    assert POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == NAME
    assert MANIFESTS["service.yaml"]["spec"]["selector"] == NAME
    assert MANIFESTS["service.yaml"]["metadata"]["labels"] == NAME, "which the monitor selects"
    assert MANIFESTS["service-monitor.yaml"]["spec"]["selector"]["matchLabels"] == NAME
    assert MANIFESTS["disruption-budget.yaml"]["spec"]["selector"]["matchLabels"] == NAME
    assert MANIFESTS["network-policy.yaml"]["spec"]["podSelector"]["matchLabels"] == NAME
    scaled = MANIFESTS["autoscaler.yaml"]["spec"]["scaleTargetRef"]
    deployment = MANIFESTS["deployment.yaml"]
    assert scaled == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }


def test_everything_means_the_same_port() -> None:
    number = int(value_of(CONTAINER["args"], "--port"))
    assert CONTAINER["ports"] == [{"name": PORT, "containerPort": number}]
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in PROBES} == {PORT}
    [port] = MANIFESTS["service.yaml"]["spec"]["ports"]
    assert (port["name"], port["targetPort"]) == (PORT, PORT)
    assert MANIFESTS["network-policy.yaml"]["spec"]["ingress"][0]["ports"] == [{"port": PORT}]
    assert MANIFESTS["service-monitor.yaml"]["spec"]["endpoints"][0]["port"] == PORT


def test_every_path_is_answered(exported_model: Path, tmp_path: Path) -> None:
    paths = {CONTAINER[probe]["httpGet"]["path"] for probe in PROBES}
    assert paths == {"/health/live", "/health/ready"}
    metrics = MANIFESTS["service-monitor.yaml"]["spec"]["endpoints"][0]["path"]
    with TestClient(create_app(settings_for(exported_model, tmp_path))) as client:
        assert {client.get(path).status_code for path in (*paths, metrics)} == {200}


def test_a_pod_that_cannot_answer_now_is_not_killed_for_it() -> None:
    """Liveness waits longer than readiness, and does not ask the same."""
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] != CONTAINER["readinessProbe"]["httpGet"]["path"]
    patience = {
        probe: CONTAINER[probe]["periodSeconds"] * CONTAINER[probe]["failureThreshold"] for probe in PROBES
    }
    assert patience["readinessProbe"] < patience["livenessProbe"] < patience["startupProbe"]


def test_the_command_is_one_that_the_service_understands() -> None:
    options = read_options(CONTAINER["args"])
    assert options["host"] == "0.0.0.0"
    assert options["api_key_file"] is not None, "beyond its own machine, only with keys"
    assert options["store"].startswith("postgresql://"), "replicas share what users did"


def test_what_the_command_names_is_mounted_or_set() -> None:
    mounted = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    options = read_options(CONTAINER["args"])
    (model,) = options["model"]
    assert model.startswith(mounted["model"])
    assert str(options["api_key_file"].parent) == mounted["keys"]
    assert not any("subPath" in mount for mount in CONTAINER["volumeMounts"]), "changes would not arrive"
    assert {volume["name"] for volume in POD["volumes"]} == set(mounted)
    claim = MANIFESTS["model.yaml"]["metadata"]["name"]
    assert [
        each["persistentVolumeClaim"]["claimName"] for each in POD["volumes"] if each["name"] == "model"
    ] == [claim]
    used = {word[word.index("$(") + 2 : word.index(")")] for word in CONTAINER["args"] if "$(" in word}
    assert used == {variable["name"] for variable in CONTAINER["env"]}


def test_the_names_of_the_service_are_those_it_may_be_called_by() -> None:
    name = MANIFESTS["service.yaml"]["metadata"]["name"]
    allowed = [word.partition("=")[2] for word in CONTAINER["args"] if word.startswith("--allow-host=")]
    assert {name, f"{name}.$(NAMESPACE).svc", "$(POD_IP)"} <= set(allowed), (
        "probes call the pod by its address"
    )


def test_there_is_time_to_stop() -> None:
    drain = float(value_of(CONTAINER["args"], "--drain"))
    assert POD["terminationGracePeriodSeconds"] > drain + GRACE


def test_the_container_may_do_nothing_that_it_need_not() -> None:
    user, group = map(int, FINAL.one("USER").split(":"))
    of_pod, of_container = POD["securityContext"], CONTAINER["securityContext"]
    assert of_pod["runAsNonRoot"]
    assert (of_pod["runAsUser"], of_pod["runAsGroup"]) == (user, group), "as in the image"
    assert of_container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} <= set(CONTAINER["resources"]["requests"]), "the autoscaler counts in requests"
    assert "memory" in CONTAINER["resources"]["limits"]


def test_one_may_go_while_the_others_answer() -> None:
    least = MANIFESTS["autoscaler.yaml"]["spec"]["minReplicas"]
    assert "replicas" not in DEPLOYMENT, "the autoscaler decides"
    assert MANIFESTS["disruption-budget.yaml"]["spec"]["maxUnavailable"] < least
    assert DEPLOYMENT["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_database_is_found_by_the_variables_of_the_secret(
    exported_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the password is on no command line."""
    if find_programs() is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    variables = {
        "host": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "dbname": "PGDATABASE",
        "options": "PGOPTIONS",
    }
    event = {"event_id": "e1", "user_id": "ann", "item_id": "i1", "timestamp": "2026-01-31T12:00:00Z"}
    with Postgres.running() as server:
        for name, value in conninfo_to_dict(server.new_store()).items():
            monkeypatch.setenv(variables[name], str(value))
        store = value_of(CONTAINER["args"], "--store")
        with running(exported_model, store=store) as service, service.client() as client:
            answer = client.post("/v1/events", json={"events": [event]})
            assert answer.json()["accepted"] == 1, answer.text


def test_the_refresh_writes_where_the_service_reads_and_takes_the_same_database() -> None:
    job = MANIFESTS["refresh.yaml"]["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    options = read_options(container["args"], of="refresh")
    assert options["source"] == value_of(CONTAINER["args"], "--store")
    assert container["envFrom"] == CONTAINER["envFrom"]
    assert read_options(CONTAINER["args"])["model"] == [f"{options['output']}/current"]
    claims = [
        [each["persistentVolumeClaim"]["claimName"] for each in volumes if each["name"] == "model"]
        for volumes in (pod["volumes"], POD["volumes"])
    ]
    assert claims[0] == claims[1]
    assert pod["securityContext"] == POD["securityContext"], "who writes a model is who reads it"
    [rule] = [each for each in job["podFailurePolicy"]["rules"] if each["action"] == "FailJob"]
    assert NOT_IN_SERVICE in rule["onExitCodes"]["values"], "a worse model is not trained three times"


def test_no_request_is_sent_to_a_refresh() -> None:
    labels = MANIFESTS["refresh.yaml"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert labels != NAME
