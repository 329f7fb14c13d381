"""The command `bert4rec`: parse, call, print; nothing else.

Results go to stdout, messages and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 bad data, 4 not
found, 5 a worse model was not put into service, 130 interrupted. Commands import what they need when they run, so that
`--help` is instant.
"""

import os
import signal
import sys
from types import FrameType

from cyclopts import App, CycloptsError

from bert4rec import __version__
from bert4rec.cli.console import complain, messages, this_command
from bert4rec.cli.options import explain
from bert4rec.cli.process import end_at_once, end_in_time, share_the_machine
from bert4rec.errors import Bert4RecError, UsageError, is_out_of_memory
from bert4rec.machine import num_ranks, rank


def _in_one_style(error: CycloptsError) -> str:
    """A mistake on the command line, printed as all other errors are."""
    from rich.markup import escape

    return f"[bold red]Error:[/] {escape(explain(error, this_command()))}"


app = App(
    name="bert4rec",
    help="Sequential recommendation with BERT4Rec: from an interaction log to predictions of what comes next.",
    version=__version__,
    help_format="plaintext",  # The list of commands has no Markdown; its parser takes a quarter of the time.
    error_console=messages,
    error_formatter=_in_one_style,
    suppress_keyboard_interrupt=False,  # `main` says that it was interrupted.
)
_COMMANDS = {
    "demo": (
        "demo_command:demo_command",
        "See what bert4rec does: built-in data, models, metrics, a report.",
    ),
    "auto": (
        "production.auto_command:auto_command",
        "Do everything with a log: prepare, train, compare, export the best, write a page.",
    ),
    "prepare": ("prepare_command:prepare_command", "Turn an interaction log into a dataset folder."),
    "train": ("train_command:train_command", "Train BERT4Rec+, BERT4Rec or a baseline, and test it once."),
    "refit": (
        "train_command:refit_command",
        "Train a chosen run on all but the test items and test it once.",
    ),
    "tune": ("tune_command:tune_command", "Search for better settings on the validation items."),
    "settings": ("settings_command:settings_command", "List the settings that `train --set` can change."),
    "evaluate": (
        "evaluate_command:evaluate_command",
        "Evaluate a run on validation or test items, by slices of users and items.",
    ),
    "compare": ("evaluate_command:compare_command", "Compare runs, with intervals and significance tests."),
    "reproduce": (
        "reproduce_command:reproduce_command",
        "Reproduce a table or figure of the paper, beside its numbers.",
    ),
    "report": ("reproduce_command:report_command", "Write a page of all results, beside the paper's."),
    "recommend": (
        "recommend_command:recommend_command",
        "Recommend items for a history, a user, or all users in a file.",
    ),
    "export": ("export_command:export_command", "Turn a run into a model that can be served without torch."),
    "stats": ("prepare_command:stats_command", "Show what a dataset looks like."),
    "serve": ("serve_command:serve_command", "Answer requests for recommendations over HTTP."),
    "refresh": (
        "production.refresh_command:refresh_command",
        "Train the next model from a store, and put it into service unless it is worse.",
    ),
    "ab": (
        "production.ab_command:ab_command",
        "Tell which of the models that are served side by side is better.",
    ),
}
for _name, (_place, _summary) in _COMMANDS.items():
    app.command(f"bert4rec.cli.{_place}", name=_name, help=_summary, help_format="markdown")
app.command(
    "bert4rec.cli.production.store_command:app",
    name="store",
    help="Import, export, check and copy what the service stores.",
)
app.command("bert4rec.cli.bench_command:app", name="bench", help="Measure speed and memory on this machine.")


def main() -> None:
    """Run one command and leave with its exit code."""
    signal.signal(signal.SIGTERM, _stop)
    if sys.argv[1:2] != ["serve"]:  # It lets requests finish, and has rules of its own for how long.
        end_in_time()
    share_the_machine()
    end_at_once()
    if num_ranks() > 1 and sys.argv[1:2] != ["train"]:
        if rank():
            sys.exit(0)  # The first one says it.
        complain("torchrun is for `bert4rec train`. Start this command without it.")
        sys.exit(UsageError.exit_code)
    try:
        app(result_action="return_value")
    except Bert4RecError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        messages.print("Interrupted.")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        complain(
            "There is not enough memory. Lower training.batch_size, model.max_length or model.dim with --set. "
            f"({reason})"
        )
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if "requested and" in str(error):  # what NumPy says when a write falls short
            error.strerror = f"the disk is full ({error})"
        complain(where + (error.strerror or str(error)))
        sys.exit(1)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """End on SIGTERM as on Ctrl-C, so that half-written folders are removed."""
    raise KeyboardInterrupt
