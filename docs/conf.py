"""How `make docs` turns these pages, the docstrings and the commands into a website. No network is needed."""

import contextlib
import inspect
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import bert4rec
from bert4rec.cli import app as commands

ROOT = Path(__file__).parents[1]

project = "bert4rec"
author = copyright = "The bert4rec developers"
release = version = bert4rec.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"bert4rec {release}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_favicon = str(ROOT / "src/bert4rec/service/page/icon.svg")
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # a quoted value is code
pygments_style, pygments_dark_style = "friendly", "monokai"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # the changelog and the commands begin below their pages' titles

# Objects come from functions: nobody types their constructors.
autodoc_class_signature = "separated"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_google_docstring = False
default_role = "literal"  # docstrings mark code with single backticks, as in Markdown
# Types of other libraries have no page here. Links that somebody wrote (:func:, :meth:) must work.
nitpick_ignore_regex = [("py:(class|obj|data|exc)", ".*")]

FIRST_FUNCTIONS = ("prepare", "train", "tune", "load", "compare", "serve", "register")
"""In the order of use; the others follow by name."""


def api_reference() -> str:
    """All public names and nothing else: functions, classes, errors."""
    members = {name: getattr(bert4rec, name) for name in bert4rec.__all__ if not name.startswith("_")}
    order = [*FIRST_FUNCTIONS, *sorted(members)]
    names = sorted(members, key=order.index)
    errors = [
        name for name in names if inspect.isclass(members[name]) and issubclass(members[name], Exception)
    ]
    classes = [name for name in names if inspect.isclass(members[name]) and name not in errors]
    functions = [name for name in names if inspect.isroutine(members[name])]
    members_of = (":members:", ":inherited-members: ABC, Module, Sequence")
    return "".join(
        [
            *_autodoc("Functions", "autofunction", functions),
            *_autodoc("Classes", "autoclass", classes, *members_of),
            *_autodoc("Errors", "autoexception", errors),
        ]
    )


def _autodoc(title: str, directive: str, names: list[str], *options: str) -> Iterator[str]:
    yield f"\n## {title}\n"
    for name in names:
        yield f"\n### {name}\n\n```{{eval-rst}}\n.. {directive}:: bert4rec.{name}\n"
        yield "".join(f"   {option}\n" for option in options) + "```\n"


def command_reference() -> str:
    """What `--help` says, without the lists at its beginning and defaults that say nothing."""
    text = commands.generate_docs(output_format="markdown").replace("```console", "```text")
    return re.sub(r" \*\[default: (False|\(\))\]\*", "", text[text.index("\n## bert4rec ") :])


def tutorial() -> str:
    """examples/tutorial.py, cell by cell, with what each cell prints."""
    cells = (ROOT / "examples/tutorial.py").read_text(encoding="utf-8").split("\n# %%")
    names: dict[str, object] = {}
    pages = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in cells[1:]:
            kind, _, text = cell.partition("\n")
            if "[markdown]" in kind:
                pages.append(re.sub(r"^# ?", "", text, flags=re.MULTILINE))
                continue
            pages.append(f"```python\n{text.strip()}\n```")
            with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
                exec(compile(text, "examples/tutorial.py", "exec"), names)
            if printed.getvalue():
                output = printed.getvalue().rstrip()
                pages.append(f"```{{code-block}} text\n:class: output\n\n{output}\n```")
    return "\n" + "\n\n".join(pages) + "\n"


MADE_HERE: dict[str, Callable[[], str]] = {
    "tutorial": tutorial,
    "reference/api": api_reference,
    "reference/commands": command_reference,
}
"""Page → what follows its text."""


def add_what_is_made_here(_app: Sphinx, page: str, source: list[str]) -> None:
    if page in MADE_HERE:
        source[0] += MADE_HERE[page]()


def keep_colons(
    _app: Sphinx, what: str, _name: str, _thing: object, _options: object, lines: list[str]
) -> None:
    """An attribute is described in prose; napoleon would take what is before a colon for its type."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment, which holds no colon


def link_to_public_name(
    _app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.reference | None:
    """A signature names a class by the module it is in; its page has the public name."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in bert4rec.__all__:
        return None
    node["reftarget"] = f"bert4rec.{name}"
    page = node.get("refdoc", env.docname)
    python = env.domains.python_domain
    return python.resolve_xref(env, page, _app.builder, "obj", node["reftarget"], node, text)


def setup(app: Sphinx) -> None:
    os.environ.setdefault("COLUMNS", "100")
    app.connect("source-read", add_what_is_made_here)
    app.connect("env-get-outdated", lambda *_: list(MADE_HERE))
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("missing-reference", link_to_public_name)
