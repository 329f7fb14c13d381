"""`bert4rec export`: from a run to a model that is served without torch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bert4rec.cli.console import count, print_json, print_table, say, this_command, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import UsageError
from bert4rec.evaluation.protocol import PROTOCOLS

if TYPE_CHECKING:
    from bert4rec.export.verify import ExportCheck


def export_command(
    run: Path,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    int8: Flag = False,
    approximate: Flag = False,
    verify: Flag = False,
    samples: Flag = False,
    data: Path | None = None,
    overwrite: Flag = False,
    force: Flag = False,
    json: Flag = False,
) -> None:
    """Write the final model of a run as a folder that ONNX Runtime serves without torch.

    Parameters
    ----------
    run
        A folder that `bert4rec train` wrote.
    output
        Folder of the model.
    int8
        Store and multiply the encoder's matrices as whole numbers: faster, a little less exact. Always verified;
        refused if it costs more than 1% of NDCG@10.
    approximate
        Of 500,000 items and more: also write an index for approximate search, and measure how many of the best items
        it finds. Takes minutes for millions of items.
    verify
        Evaluate the export beside the run on the validation items.
    samples
        Also write the histories of a few users, so that the service's page can show them. Everybody who may use the
        service will see them.
    data
        The dataset to verify on and to take samples from, if it has moved since the training.
    overwrite
        Replace the folder if it exists.
    force
        Export a model even if it recommends the same to everybody.
    json
        Print what was verified as JSON.
    """
    if json and not (verify or int8):
        raise UsageError("--json goes with --verify and --int8.")
    if data is not None and not (verify or int8 or samples):
        raise UsageError("--data goes with --verify, --int8 and --samples.")
    from bert4rec.training.run import Run

    Run.open(run).export(
        output,
        int8=int8,
        approximate=approximate,
        verify=verify,
        samples=samples,
        dataset=data,
        overwrite=overwrite,
        force=force,
        callback=_print_json if json else _print,
    )
    if approximate:
        _tell_recall(output)
    option = " --approximate" if approximate else ""
    say(f"Wrote {output}. Serve it with: {this_command()} serve {output}{option}")


def _tell_recall(folder: Path) -> None:
    from bert4rec.export.build_index import RECALL
    from bert4rec.recommend.onnx_engine import read_facts
    from bert4rec.recommend.search.approximate import K, facts_of

    found = facts_of(read_facts(folder))
    assert found is not None
    say(
        f"Approximate search finds {found.recall:.2%} of the {K} best items after {found.histories:,} histories that "
        f"were made up, and reads {found.probes:,} of {found.lists:,} lists."
    )
    if found.recall < RECALL:
        warn(f"That is less than {RECALL:.0%}, though all is read: consider exact search.")


def _print_json(check: "ExportCheck") -> None:
    print_json(asdict(check))


def _print(check: "ExportCheck") -> None:
    rows = [
        (label, f"{check.before[protocol]:.4f}", f"{check.after[protocol]:.4f}")
        for protocol, label in PROTOCOLS.items()
    ]
    print_table(["NDCG@10 on validation items", "before", "after"], rows)
    say(f"{count(check.users, 'user')}, evaluated with the weights that never saw these items.")
