"""Sphinx configuration of the documentation site; `make docs` builds it.

The source folder is the repository, so that links from the pages in `docs` to the changelog, the notation or the
results work on the site as they do in the repository.
"""

import re
from pathlib import Path

from sphinx.errors import SphinxError

import stackattn

project = "stackattn"
author = copyright = "the stackattn authors"
version = release = stackattn.__version__

extensions = [
    "myst_nb",  # Markdown pages, and notebooks that the build executes
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxarg.ext",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "*.md",
    "src/stackattn/ops/NOTATION.md",
    "experiments/**.md",
    "benchmarks/results/*.md",
]
suppress_warnings = [
    "toc.not_included",  # pages that are not in the table of contents are found through links and the search
    "myst.domains",  # the domain of sphinx-argparse cannot resolve references of unspecified type
]

html_theme = "furo"
html_title = f"stackattn {release}"
html_static_path = ["_static"]
html_extra_path = ["_root"]
html_css_files = ["site.css"]
html_copy_source = False

myst_enable_extensions = ["html_image"]  # copies the images of <img> to the site
myst_heading_anchors = 4  # anchors of headings in the form that GitHub uses
nb_execution_mode = "cache"
nb_execution_timeout = 600  # seconds; the tutorial takes less than a minute on an idle machine
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # the first line of `Returns` is a shape, not a type
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


def prepare_docstring(app, what, name, obj, options, lines):
    """Convert Markdown's `code` to reStructuredText; drop docstrings of modules, which CONTRIBUTING.md summarises."""
    text = "" if what == "module" else "\n".join(lines)
    lines[:] = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text).splitlines()


def check_files(app, exception):
    """Fail if a page shows or links to a file that the site lacks; Sphinx does not check links in HTML blocks."""
    if exception is not None:
        return
    missing = set()
    pages = Path(app.outdir).rglob("*.html")
    for page in (page for page in pages if "_static" not in page.parts):  # _static contains fragments of pages
        for target in re.findall(r'<(?:img|a|script|link)\b[^>]*?\s(?:src|href)="([^"#?:]+)["#?]', page.read_text()):
            if not (page.parent / target).exists():
                missing.add(f"{page.relative_to(app.outdir)}: {target}")
    if missing:
        raise SphinxError(f"expected a file for every link and image, missing: {', '.join(sorted(missing))}")


def setup(app):
    app.connect("build-finished", check_files)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=100)  # before napoleon
