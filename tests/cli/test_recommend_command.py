"""`recommend` and `export` as a user meets them: what is printed, what is written, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.cli import app
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.errors import Bert4RecError, UsageError
from bert4rec.evaluation.judge import judge, metrics_of
from bert4rec.export import verify
from bert4rec.export.verify import ExportCheck
from bert4rec.recommend.known_users import user_number
from bert4rec.recommend.recommender import Recommender
from bert4rec.training.run import Run
from tests.cli.test_data_commands import bert4rec
from tests.conftest import MakeDataset, log_of
from tests.recommend.test_recommender import CPU
from tests.recommend.tiny import untrained_run
from tests.training.tiny import random_histories


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with titles, a run of BERT4Rec and one of a model that knows only its users."""
    scratch = tmp_path_factory.mktemp("recommend")
    log = log_of(random_histories())
    actions = pl.DataFrame({"user": log.user_ids.gather(log.users), "item": log.item_ids.gather(log.items)})
    actions.write_csv(scratch / "log.csv")
    titles = [f"Title of {item}" for item in log.item_ids]
    prices, colours = [0.5 * place for place in range(len(titles))], ["red", "blue", "dark, red"]
    described = {"price": prices, "colour": [colours[place % 3] for place in range(len(titles))]}
    pl.DataFrame({"id": log.item_ids, "title": titles, **described}).write_csv(scratch / "items.csv")
    prepared = bert4rec(
        "prepare", scratch / "log.csv", "--items", scratch / "items.csv", "-o", scratch / "data"
    )
    assert prepared.returncode == 0, prepared.stderr
    dataset = Dataset.open(scratch / "data")
    untrained_run(dataset, scratch / "run", dim=16, layers=1, heads=2, max_length=8)
    untrained_run(dataset, scratch / "bpr-mf", "bpr-mf", dim=8)
    untrained_run(dataset, scratch / "fpmc", "fpmc", dim=8)
    untrained_run(dataset, scratch / "caser", "caser", dim=8, max_length=3)
    return scratch


def call(*arguments: str | Path) -> None:
    """The command in this process: importing torch anew for each would take longer than all the rest."""
    app(list(map(str, arguments)), result_action="return_value")


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """`recommend --json`, read."""

    def ask(*arguments: str | Path) -> dict[str, Any]:
        call("recommend", *arguments, "--json")
        return dict(json.loads(capsys.readouterr().out))

    return ask


def actions_of(user: str, folder: Path) -> list[str]:
    return pl.read_csv(folder / "log.csv").filter(pl.col("user") == user)["item"].to_list()


def test_a_history_gets_a_table_with_titles(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("recommend", folder / "run", "--history", "item-3, item-4,nothing", "-k", "3")
    printed = capsys.readouterr()
    found = Recommender.load(folder / "run").recommend(["item-3", "item-4"], k=3)
    lines = printed.out.splitlines()
    assert lines[0].split() == ["after", "2", "items", "id", "score"]
    assert [line.split() for line in lines[1:]] == [
        [*str(item.title).split(), str(item.item_id), f"{item.score:.4f}"] for item in found.items
    ]
    assert "does not know 'nothing'; skipped" in printed.err


def test_a_slip_in_an_id_and_a_title_are_answered_by_the_id(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("recommend", folder / "run", "--history", "item-4,itm-3,title of ITEM-14,nothing", "-k", "1")
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "does not know 'itm-3', 'title of ITEM-14', 'nothing'; skipped. "
        "Did you mean item-3 (Title of item-3) and item-14 (Title of item-14)?" in said
    )


def test_an_id_with_a_comma_stands_in_quotes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("recommend", folder / "run", "--history", '"item-3","A, 1001", item-4', "-k", "1")
    printed = capsys.readouterr()
    assert "does not know 'A, 1001'; skipped" in printed.err
    assert printed.out.startswith("after 2 items")


def test_one_of_something_is_not_spoken_of_as_many(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("recommend", folder / "run", "--history", "item-3", "-k", "1")
    assert capsys.readouterr().out.splitlines()[0].split() == ["after", "1", "item", "id", "score"]
    (tmp_path / "log.csv").write_text("user,item\nann,nothing\n")
    call("recommend", folder / "run", "--input", tmp_path / "log.csv", "-o", tmp_path / "out.csv")
    said = " ".join(capsys.readouterr().err.split())
    assert "Skipped 1 action on items that the model does not know." in said
    assert "No known item in the history of 1 user: they get the most popular ones." in said
    assert f"Wrote {tmp_path / 'out.csv'}: 1 user." in said


def test_a_dataset_that_dropped_nobody_does_not_say_so(make_dataset: MakeDataset) -> None:
    with pytest.raises(Bert4RecError, match=r"Unknown user 'nobody'\. A known user is 'user-0'") as caught:
        user_number(make_dataset([[0, 1], [1, 0]]), "nobody")
    assert "fewer than" not in str(caught.value)


def test_an_unknown_user_is_answered_in_words_of_the_command_line(folder: Path) -> None:
    asked = bert4rec("recommend", folder / "run", "--user", "nobody")
    assert asked.returncode == 4
    assert asked.stderr == (
        "Error: Unknown user 'nobody'. A known user is 'user-0'. Users with fewer than 5 actions were dropped by "
        "bert4rec prepare LOG. Models such as BERT4Rec also answer for a history: use bert4rec recommend RUN "
        "--history IDS.\n"
    )


def test_json_says_all_that_is_known(folder: Path, ask: Ask) -> None:
    found = ask(folder / "run", "--history", "nothing,item-3", "-k", "2")
    assert (found["used"], found["unknown_items"], found["fallback"]) == (1, ["nothing"], None)
    assert ask(folder / "run", "--history", "", "-k", "2")["fallback"] == "popular"
    assert [set(item) for item in found["items"]] == [{"item_id", "title", "score"}] * 2


def test_a_user_of_the_dataset_is_asked_for_by_id(folder: Path, ask: Ask) -> None:
    by_user = ask(folder / "run", "--user", "user-5")
    assert by_user == ask(folder / "run", "--history", ",".join(actions_of("user-5", folder)))
    assert by_user == ask(folder / "run", "--user", " user-5 ", "--data", folder / "data")


def test_models_that_know_only_their_users_answer_for_those(folder: Path, ask: Ask) -> None:
    found = ask(folder / "bpr-mf", "--user", "user-5", "-k", "3")["items"]
    names = [item["item_id"] for item in found]
    assert len(names) == 3
    assert not set(names) & set(actions_of("user-5", folder))
    assert ask(folder / "bpr-mf", "--user", "user-5", "--allow", ",".join(names[1:]))["items"] == found[1:]
    assert ask(folder / "bpr-mf", "--user", "user-5", "--deny", names[0], "-k", "2")["items"] == found[1:]
    everything = ask(folder / "bpr-mf", "--user", "user-5", "--no-exclude-seen", "-k", "99")["items"]
    assert len(everything) == 20


@pytest.mark.parametrize(("model", "used"), [("bpr-mf", 0), ("fpmc", 1), ("caser", 3)])
def test_what_is_said_to_be_used_is_what_the_model_looks_at(
    model: str, used: int, folder: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(actions_of("user-5", folder)) > 3
    found = ask(folder / model, "--user", "user-5")
    assert (found["used"], found["fallback"]) == (used, None)
    call("recommend", folder / model, "--user", "user-5")
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith(f"after {used} item" if used else "item ")


def test_whoever_asks_for_more_items_than_there_are_is_told_once_how_many_there_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "-k 21 is more than the model knows: there are 20 items."
    for question in (
        ["--history", "item-3"],
        ["--user", "user-5", "--json"],
        ["--input", str(folder / "log.csv"), "-o", str(tmp_path / "out.csv")],
    ):
        call("recommend", folder / "run", *question, "-k", "21")
        assert " ".join(capsys.readouterr().err.split()).count(told) == 1
    call("recommend", folder / "run", "--history", "item-3", "-k", "20")
    assert "more than the model knows" not in capsys.readouterr().err


def test_everybody_in_a_file(folder: Path, tmp_path: Path, ask: Ask) -> None:
    call("recommend", folder / "run", "--input", folder / "log.csv", "-k", "2", "-o", tmp_path / "out.csv")
    table = pl.read_csv(tmp_path / "out.csv")
    assert table["user"].n_unique() == 30
    for user in ("user-5", "user-29"):
        alone = ask(folder / "run", "--user", user, "-k", "2")["items"]
        mine = table.filter(pl.col("user") == user)
        assert mine["item"].to_list() == [item["item_id"] for item in alone]
        assert mine["score"].to_list() == pytest.approx([item["score"] for item in alone], abs=1e-4)


def test_a_file_takes_allowed_and_denied_items_and_names_unknown_ones(
    folder: Path, tmp_path: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--allow", "item-1,item-2,itm-3", "--deny", "item-2", "--no-exclude-seen"]
    call("recommend", folder / "run", "--input", folder / "log.csv", "-o", tmp_path / "out.csv", *options)
    said = " ".join(capsys.readouterr().err.split())
    assert "does not know 'itm-3'; skipped. Did you mean item-3 (Title of item-3)?" in said
    assert pl.read_csv(tmp_path / "out.csv")["item"].unique().to_list() == ["item-1"]
    call("recommend", folder / "run", "--user", "user-5", "--allow", "item-1", "--deny", "item-1")
    assert "No items to recommend: all are excluded." in capsys.readouterr().err


def test_attributes_of_a_catalogue_are_filtered_by_and_lists_can_be_made_to_differ(
    folder: Path, tmp_path: Path, ask: Ask
) -> None:
    recommender = Recommender.load(folder / "run")
    options = ["--where", 'colour=blue,"dark, red"', "--where", "price>=2", "--where", "price<9.5"]
    where = {"colour": ["blue", "dark, red"], "price": {">=": 2, "<": 9.5}}
    asked = ["item-3", "item-4"]
    found = ask(folder / "run", "--history", ",".join(asked), *options)["items"]
    assert found == [vars(item) for item in recommender.recommend(asked, where=where).items]
    assert found
    found = ask(folder / "run", "--user", "user-5", *options)["items"]
    assert found == [vars(item) for item in recommender.recommend_user("user-5", where=where).items]
    diverse = ask(folder / "run", "--history", ",".join(asked), "--diversity", "0.8")["items"]
    assert diverse == [vars(item) for item in recommender.recommend(asked, diversity=0.8).items]
    call("recommend", folder / "run", "--input", folder / "log.csv", "-o", tmp_path / "out.csv", *options)
    written = pl.read_csv(tmp_path / "out.csv")
    alone = recommender.recommend_user("user-5", where=where).items
    assert written.filter(user="user-5")["item"].to_list() == [item.item_id for item in alone]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["run"], 2, "One of --history, --user and --input is required"),
        (
            ["run", "--history", "item-1", "--user", "user-1"],
            2,
            "One of --history, --user and --input is required",
        ),
        (["run", "--input", "log.csv"], 2, "--input requires --output"),
        (["run", "--history", "item-1", "-o", "out.csv"], 2, "--output requires --input"),
        (["run", "--history", "item-1", "-k", "0"], 2, "`k`: expected a whole number of at least 1; found 0"),
        (["run", "--input", "log.csv", "-o", "out.txt"], 2, r"ends in \.parquet, \.csv, \.jsonl"),
        (["run", "--input", "log.csv", "-o", "items.csv"], 2, "`overwrite=True`"),
        (
            ["run", "--input", "log.csv", "-o", "out.csv", "--json"],
            2,
            "--json requires --history or --user",
        ),
        (
            ["run", "--history", "item-1", "--user-col", "user"],
            2,
            "--time-col and --overwrite require --input",
        ),
        (["run", "--user", "user-1", "--overwrite"], 2, "--time-col and --overwrite require --input"),
        (["run", "--history", "item-1", "--data", "data"], 2, "--data requires --user"),
        (["run", "--input", "log.csv", "-o", "out.csv", "--data", "data"], 2, "--data requires --user"),
        (["run", "--history", "item-1", "--threads", "2"], 2, "`threads` applies to exported models only"),
        (["run", "--history", "item-1", "--no-quantised"], 2, "`quantised` applies to exported models only"),
        (["run", "--history", "item-1", "--force"], 2, "`force` applies to exported models only"),
        (
            ["run", "--history", "item-1", "--where", "size=3"],
            2,
            "unknown attribute 'size'. Known: price, colour",
        ),
        (["run", "--history", "item-1", "--where", "price=cheap"], 2, "price holds numbers; found 'cheap'"),
        (
            ["run", "--history", "item-1", "--where", "price"],
            2,
            "expected a condition such as category=tea,coffee",
        ),
        (["run", "--history", "item-1", "--diversity", "2"], 2, "`diversity`: expected a number from 0 to 1"),
        (["bpr-mf", "--user", "user-1", "--diversity", "0.5"], 2, "BPR-MF cannot compare items"),
        (["run", "--input", "items.csv", "-o", "out.csv"], 3, "looks like the user"),
        (
            ["run", "--user", "nobody"],
            4,
            "Unknown user 'nobody'. A known user is 'user-0'. Users with fewer than 5 actions were dropped",
        ),
        (["run", "--user", "usr-12"], 4, r"Unknown user 'usr-12'\. Did you mean 'user-12'\?"),
        (["run", "--user", "USER-12"], 4, r"Unknown user 'USER-12'\. Did you mean 'user-12'\?"),
        (["run", "--user", "user-1", "--data", "nowhere"], 4, "nowhere does not exist; expected a dataset"),
        (
            ["data", "--history", "item-1"],
            4,
            r"data is a dataset; expected a run or an exported model\. Train with it first: `train\('data', 'run'\)`",
        ),
        (
            ["run", "--history", "a,b,c,d,e,f,g"],
            4,
            "The model knows no item of --history: 'a', 'b', 'c', 'd', 'e' and 2 more. A known item is 'item-",
        ),
        (
            ["run", "--history", "itm-3", "--json"],
            4,
            r"no item of --history: 'itm-3'\. Did you mean item-3 \(Title of item-3\)\? For the most popular items",
        ),
        (["bpr-mf", "--history", "item-1"], 2, "only for users of its dataset: use `recommend_user"),
    ],
)
def test_a_mistake_is_answered_by_what_to_do(
    arguments: list[str], code: int, complaint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(Bert4RecError, match=complaint) as caught:
        call("recommend", *arguments)
    assert caught.value.exit_code == code


def test_popularity_is_shown_as_the_count_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("recommend", folder / "run", "--history", "", "-k", "1")
    head, first = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["popular", "id", "actions"]
    actions = pl.read_csv(folder / "log.csv")["item"]
    assert first[-1] == str((actions == first[-2]).sum())


@pytest.mark.parametrize(
    ("option", "complaint"), [("--json", "--verify and --int8"), ("--data=data", "--samples")]
)
def test_an_option_that_would_change_nothing_of_an_export_is_refused(
    option: str, complaint: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"{option.partition('=')[0]} goes with .*{complaint}"):
        call("export", folder / "run", "-o", tmp_path / "model", option)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("option", [[], ["--verify"]])
def test_a_model_that_cannot_be_exported_is_refused_before_anything_is_done(
    option: list[str], folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(Bert4RecError, match="BPR-MF cannot be exported"):
        call("export", folder / "bpr-mf", "-o", tmp_path / "model", *option)


def test_an_exported_model_gives_the_same_answers(folder: Path, tmp_path: Path, ask: Ask) -> None:
    exported = bert4rec("export", folder / "run", "-o", tmp_path / "model")
    assert exported.returncode == 0
    assert exported.stdout == ""
    (said,) = exported.stderr.splitlines()
    assert said.startswith(f"Wrote {tmp_path / 'model'}. Serve it with: ")
    ours, theirs = (
        ask(model, "--user", "user-1", "--data", folder / "data")
        for model in (folder / "run", tmp_path / "model")
    )
    assert [item["item_id"] for item in ours["items"]] == [item["item_id"] for item in theirs["items"]]
    with pytest.raises(Bert4RecError, match="Pass `dataset`"):
        call("recommend", tmp_path / "model", "--user", "user-1")
    with pytest.raises(UsageError, match="`device='cuda'`: an exported model runs on the CPU"):
        call("recommend", tmp_path / "model", "--history", "item-1", "--device", "cuda")


def test_an_export_is_verified_with_weights_that_never_saw_the_items_and_refused_if_worse(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify, "TOLERANCE", -1)  # nothing less than twice as good will do
    with pytest.raises(Bert4RecError, match=r"loses too much and was not written\.$"):
        call("export", folder / "run", "-o", tmp_path / "model", "--verify", "--json")
    assert not (tmp_path / "model").exists()
    compared = json.loads(capsys.readouterr().out)
    dataset, scorer = Dataset.open(folder / "data"), Run.open(folder / "run").scorer("selection", CPU)
    judged = metrics_of(judge(scorer, dataset, make_split(dataset), "valid"))
    expected = {protocol: metrics["NDCG@10"] for protocol, metrics in judged.items()}
    assert compared["users"] == 30
    assert compared["before"] == expected
    assert compared["after"] == pytest.approx(expected, abs=1e-6)


def test_whole_numbers_are_verified_and_samples_are_written_where_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Bert4RecError, match="Try `int8=False`"):
        patch.setattr(verify, "compare_export", lambda *_, **__: ExportCheck(1, {"full": 1.0}, {"full": 0.9}))
        call("export", folder / "run", "-o", model, "--int8", "--json")
    monkeypatch.setattr(verify, "TOLERANCE", 1)
    call("export", folder / "run", "-o", model, "--int8", "--samples")
    assert "NDCG@10 on validation items" in capsys.readouterr().out
    assert json.loads((model / "model.json").read_text())["int8"] is True
    samples = json.loads((model / "samples.json").read_text())
    assert len(samples) == 6
    for sample in samples:
        assert sample["history"] == actions_of(sample["user_id"], folder)[-12:]
