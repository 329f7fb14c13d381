"""The whole circle, twice: train for production, serve, hear of new items, refresh, and recommend them."""

import json
import threading
from pathlib import Path

import httpx2

from bert4rec.cli import app
from tests.production.shop import SET, fashion, open_shop
from tests.service.servers import RunningServer, running


class Customers:
    """Asks for recommendations all the time, and keeps what did not go well."""

    def __init__(self, server: RunningServer, user: str) -> None:
        self._server, self._user = server, user
        self.answers: list[httpx2.Response] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        with self._server.client() as client:
            while not self._is_over.is_set():
                self.answers.append(client.post("/v1/recommend", json={"user_id": self._user, "k": 5}))

    def __enter__(self) -> "Customers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def bert4rec(*words: str) -> None:
    app(words, result_action="return_value")


def test_what_users_do_today_is_what_the_next_model_recommends(tmp_path: Path) -> None:
    dataset = open_shop(tmp_path / "dataset")
    store, folder = tmp_path / "history.db", tmp_path / "production"
    old, user = dataset.items()["id"][0], dataset.users()["id"][0]
    bert4rec("store", "import", str(store), str(dataset.folder))
    bert4rec("refresh", str(store), "-o", str(folder), *SET)
    with (
        running(folder / "current", "--watch", store=f"sqlite:///{store}") as server,
        server.client() as client,
        Customers(server, user) as customers,
    ):
        versions, untils = [], []
        for day, new in enumerate(("novelty", "sensation"), start=1):
            [serving] = [
                each for each in client.get("/v1/models").json()["models"] if each["state"] == "current"
            ]
            versions.append(serving["version"])
            untils.append(serving["trained_until"])
            events = fashion(dataset, old, new, day)
            sent = client.post("/v1/events", json={"events": events})
            assert sent.json()["accepted"] == len(events)
            assert sent.json()["unknown_items"] == [new], "kept, though this model does not know it"
            before = client.post("/v1/recommend", json={"history": [old], "k": 5}).json()
            assert new not in [item["item_id"] for item in before["items"]]

            bert4rec("refresh", str(store), "-o", str(folder), *SET)

            server.wait_for_line(f"Model .*, version {version_of(folder)}: loaded")
            after = client.post("/v1/recommend", json={"history": [old], "k": 5}).json()
            assert after["model"]["version"] == version_of(folder)
            assert new in [item["item_id"] for item in after["items"]]
    assert len(set(versions)) == 2
    assert untils == sorted(untils)
    assert {answer.status_code for answer in customers.answers} == {200}
    assert len({answer.json()["model"]["version"] for answer in customers.answers}) == 3


def version_of(folder: Path) -> str:
    return str(json.loads((folder / "current" / "model.json").read_text())["version"])
