"""Configuration of the documentation: ``python -m sphinx -W docs OUT``; needs no network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqla_taskqueue

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).parent / "_extensions"))

project = "sqla_taskqueue"
author = "sqla_taskqueue contributors"
copyright = "sqla_taskqueue contributors, MIT licence"
version = release = sqla_taskqueue.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "drawn_from_the_code",
]

# --- Pages -------------------------------------------------------------------------------------

source_suffix = {".md": "markdown"}
exclude_patterns = ["_extensions"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False

# --- Reference ---------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

nitpicky = True
nitpick_ignore_regex = [
    # Other projects: their inventories would have to be downloaded.
    (r"py:.*", r"(sqlalchemy|collections|datetime|enum|typing|uuid)\..*"),
    (r"py:(class|exc)", r"(Any|bool|dict|float|frozenset|int|list|object|str|tuple|type)"),
    (r"py:(class|exc)", r"(BaseException|ValueError|TypeError|StrEnum|UUID|datetime|timedelta)"),
    (r"py:(class|exc)", r"(Iterable|Iterator|Literal|Mapping|Sequence|Generic|Protocol)"),
    # Names for types of our own and the host's class, which the reference explains in words.
    (r"py:(class|obj)", r"(.*\.)?(AnySession|TaskT|IfExists|OnLost|States|MaxAttempts)"),
    (r"py:(class|obj)", r"(.*\.)?(QueueSettings|HandlerDecorator|Enqueuer|Sessions|P|Q|R)"),
    (r"py:class", r"(Engine|AsyncEngine)"),
]


def setup(app: Sphinx) -> None:
    """Keep napoleon from reading ``Who did it: a worker`` as a type and a text."""
    kept: dict[int, list[str]] = {}

    def keep(_: Sphinx, what: str, *details: Any) -> None:
        lines: list[str] = details[-1]
        if what in ("attribute", "property") and lines:
            kept[id(lines)] = lines[:]
            lines[:] = ["kept"]

    def give_back(_: Sphinx, what: str, *details: Any) -> None:
        lines: list[str] = details[-1]
        if what in ("attribute", "property") and lines:
            lines[:] = kept.pop(id(lines))

    app.connect("autodoc-process-docstring", keep, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-docstring", give_back, priority=600)
