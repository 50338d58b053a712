"""Sphinx configuration."""

import re
from importlib.metadata import version as installed

project = "headtail"
author = "The headtail authors"
copyright = "the headtail authors"
release = version = installed("headtail")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "figures"]
html_theme = "furo"
html_title = "headtail"
html_static_path = ["figures"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
nitpicky = False
# Python's `slice` in a signature is not one of our attributes of that name.
suppress_warnings = ["ref.python"]


def _markdown_maths(app, what, name, obj, options, lines):
    """Docstrings write maths as Markdown does; Sphinx reads them as reStructuredText."""
    text = "\n".join(lines)
    text = re.sub(
        r"\$\$(.+?)\$\$",
        lambda m: "\n.. math:: " + " ".join(m[1].split()) + "\n",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"\$([^$]+?)\$", lambda m: ":math:`" + " ".join(m[1].split()) + "`", text)
    lines[:] = text.split("\n")


def setup(app):
    app.connect("autodoc-process-docstring", _markdown_maths, priority=400)
