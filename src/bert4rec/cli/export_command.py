"""`bert4rec export`: from a run to a model that is served without torch."""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from bert4rec.cli.console import count, print_json, print_table, say, this_command
from bert4rec.cli.evaluate_command import PROTOCOLS
from bert4rec.cli.needs import require_torch
from bert4rec.cli.prepare_command import Flag
from bert4rec.cli.recommend_command import open_dataset
from bert4rec.errors import UsageError

if TYPE_CHECKING:
    from bert4rec.export.verify import ExportCheck
    from bert4rec.training.run import Run


def export_command(
    run: Path,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    to: Literal["onnx"] = "onnx",  # noqa: ARG001 (says what is written; there is one answer so far)
    int8: Flag = False,
    verify: Flag = False,
    samples: Flag = False,
    data: Path | None = None,
    overwrite: Flag = False,
    json: Flag = False,
) -> None:
    """Write the final model of a run as a folder that ONNX Runtime serves without torch.

    Parameters
    ----------
    run
        A folder that `bert4rec train` wrote.
    output
        Folder of the model.
    to
        The format.
    int8
        Store and multiply the encoder's matrices as whole numbers: faster, a little less exact. Always verified;
        refused where it costs more than 1% of NDCG@10.
    verify
        Judge the export beside the run on the validation items.
    samples
        Also write the histories of a few users, so that the service's page can show them. Whoever may use the
        service will see them.
    data
        The dataset to verify on and to take samples from, if it has moved since the training.
    overwrite
        Replace the folder if it exists.
    json
        Print what was verified as JSON.
    """
    if json and not (verify or int8):
        raise UsageError("--json goes with --verify and --int8.")
    if data is not None and not (verify or int8 or samples):
        raise UsageError("--data goes with --verify, --int8 and --samples.")
    require_torch()
    require_exporters()
    from bert4rec.artefact import refuse_existing
    from bert4rec.export.exporter import check_exportable, export_run
    from bert4rec.recommend.onnx_engine import MANIFEST
    from bert4rec.training.run import Run
    from bert4rec.training.specs import MODELS

    refuse_existing(output, MANIFEST, overwrite=overwrite)
    opened = Run.open(run)
    kind = MODELS[opened.plan.model]
    check_exportable(kind.network, kind.title)
    opened.verify()
    if verify or int8:
        compared = _compare(opened, data, int8=int8)
        if json:
            print_json(asdict(compared))
        else:
            _show(compared)
        if not compared.is_good:
            advice = " Try again without --int8." if int8 else ""
            raise UsageError(f"The export loses too much and was not written.{advice}")
    sampled_from = open_dataset(data or Path(opened.plan.dataset)) if samples else None
    export_run(opened, output, int8=int8, sampled_from=sampled_from, overwrite=overwrite)
    say(f"Wrote {output}. Serve it with: {this_command()} serve {output}")


def require_exporters() -> None:
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise UsageError("This command needs ONNX: pip install 'bert4rec[export,serve]'.")


def _compare(run: "Run", data: Path | None, *, int8: bool) -> "ExportCheck":
    from bert4rec.export.verify import compare_export

    dataset = open_dataset(data or Path(run.plan.dataset))
    dataset.verify()
    run.plan.check_dataset(dataset)
    return compare_export(run, dataset, int8=int8)


def _show(compared: "ExportCheck") -> None:
    rows = [
        (label, f"{compared.before[protocol]:.4f}", f"{compared.after[protocol]:.4f}")
        for protocol, label in PROTOCOLS.items()
    ]
    print_table(["NDCG@10 on validation items", "before", "after"], rows)
    say(f"{count(compared.users, 'user')}, judged with the weights that never saw these items.")
