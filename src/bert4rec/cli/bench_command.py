"""`bert4rec bench`: speed and memory on this machine."""

from typing import Literal

from cyclopts import App

from bert4rec.cli.console import print_json, print_table
from bert4rec.cli.prepare_command import Flag
from bert4rec.extras import require_torch, require_transformers

app = App(name="bench", help_format="markdown", help="Measure speed and memory on this machine.")


@app.command
def train(
    *,
    like: Literal["ml-1m", "beauty", "steam", "ml-20m"] = "ml-1m",
    dim: int = 64,
    batch_size: int = 256,
    items: int | None = None,
    negatives: int | None = None,
    device: str = "auto",
    plain: bool = True,
    peer: Literal["hf"] | None = None,
    json: Flag = False,
) -> None:
    """Time training on synthetic data with the shape of a data set, beside a plain PyTorch loop in the same process.

    Parameters
    ----------
    like
        The data set whose numbers of users and items, lengths and popularity are imitated.
    dim
        Width of the model.
    batch_size
        Sequences in each step.
    items
        A larger number of items, such as 1000000.
    negatives
        Items that targets are compared with in a sampled softmax; 0 compares with all items, the exact softmax. By
        default whichever a catalogue of this size gets: the exact one up to a million items.
    device
        auto, cpu, cuda, cuda:1 or mps.
    plain
        Also time a plain PyTorch loop.
    peer
        Also time a library that one could take instead. `hf`: BertForMaskedLM of Hugging Face's transformers, which
        must be installed (pip install transformers), with the same size, device and precision.
    json
        Print the numbers as JSON.
    """
    require_torch()
    if peer == "hf":
        require_transformers()
    from bert4rec.api.bench import bench_training
    from bert4rec.training.device import place

    placement = place(device)
    found = bench_training(
        like,
        placement,
        dim=dim,
        batch_size=batch_size,
        num_items=items,
        negatives=negatives,
        plain=plain,
        peer=peer,
    )
    found["device_shared"] = placement.is_shared
    if json:
        print_json(found)
        return
    softmax = f"sampled, {found['negatives']:,} negatives" if found["negatives"] else "exact"
    rows = [
        ("items", f"{found['items']:,}"),
        ("softmax", softmax),
        ("samples/s", f"{found['samples_per_second']:,.0f}"),
        ("tokens/s", f"{found['tokens_per_second']:,.0f}"),
    ]
    rows.append(("share of the arithmetic limit", f"{found['share_of_arithmetic_limit']:.1%}"))
    rows.append(("peak memory, GiB", f"{found['peak_memory_gib']:.2f}"))
    if plain:
        rows.append(("plain loop, samples/s", f"{found['plain']['samples_per_second']:,.0f}"))
        rows.append(("ratio", f"{found['ratio']:.1f}"))
    if peer == "hf":
        hf = found["hf"]
        rows.append((f"transformers {hf['version']}, samples/s", f"{hf['samples_per_second']:,.0f}"))
        rows.append(("ratio", f"{hf['ratio']:.1f}"))
    print_table([f"{like}'s shape, d={dim}, batch {batch_size}, {found['device']}", ""], rows)
