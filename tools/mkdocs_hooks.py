"""mkdocs hooks: the command line's reference, the HTML page of results, and linked files outside docs/.

Pages link to files by their paths in the repository, so that links work there. Linked files outside docs/ are copied to
the site: Python files as pages with their source, others unchanged.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line_reference import reference
from mkdocs.structure.files import File, Files, InclusionLevel

from soap.paper.render import results_html

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
COMMAND_LINE = "<!-- command line -->"
RESULTS_PAGE = "results-on-one-page.html"
"""Address on the site of the HTML page that `soap.paper.render` makes."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the rendered page of results, and files outside docs/ that pages link to."""
    files.append(File.generated(config, RESULTS_PAGE, content=results_html()))
    wanted = {target for page in files.documentation_pages() for target in _outside(page)}
    for target in sorted(wanted):
        path = ROOT / target
        if path.suffix == ".py":
            code = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
            file = File.generated(config, _place(target), content=code)
        else:
            file = File.generated(config, _place(target), abs_src_path=str(path))
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Change links to the files' places on the site, and insert the command line's reference at its marker."""
    here = posixpath.dirname(page.file.src_uri)

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[0]))
        place = target
        if target.startswith("../"):
            place = _place(target.removeprefix("../"))
        return link[0] if place == target else posixpath.relpath(place, here or ".")

    return LINK.sub(on_site, markdown).replace(COMMAND_LINE, reference() if COMMAND_LINE in markdown else "")


def _outside(page: File) -> Iterator[str]:
    """Files outside docs/ that a page links to, by their paths in the repository."""
    here = posixpath.dirname(page.src_uri)
    for link in LINK.findall(page.content_string):
        target = posixpath.normpath(posixpath.join(here, link))
        if target.startswith("../") and (ROOT / target.removeprefix("../")).is_file():
            yield target.removeprefix("../")


def _place(target: str) -> str:
    """Path on the site of a file of the repository."""
    return re.sub(r"\.py$", ".md", target)
