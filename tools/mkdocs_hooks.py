"""What the site needs beyond Markdown: the command line's reference, and files that lie outside docs/.

Pages link to files as they lie in the repository, so that links work there. Those outside docs/ come along into the
site: Python files as pages that show them, others as they are.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line_reference import reference
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
COMMAND_LINE = "<!-- command line -->"
MOVED = {"results.html": "results-on-one-page.html"}
"""From docs/ to the site, where results.md becomes results.html."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add what lies elsewhere: files outside docs/ that pages link to, and what would be in the way of another."""
    for source, place in MOVED.items():
        files.append(File.generated(config, place, abs_src_path=str(Path(config.docs_dir, source))))
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
    """Point links at where their files lie in the site; write the command line's reference where it is asked for."""
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[0]))
        place = MOVED.get(target, target)
        if target.startswith("../"):
            place = _place(target.removeprefix("../"))
        return link[0] if place == target else posixpath.relpath(place, here or ".")

    return LINK.sub(moved, markdown).replace(COMMAND_LINE, reference() if COMMAND_LINE in markdown else "")


def _outside(page: File) -> Iterator[str]:
    """Files of the repository, but not of docs/, that a page links to, by their paths in the repository."""
    here = posixpath.dirname(page.src_uri)
    for link in LINK.findall(page.content_string):
        target = posixpath.normpath(posixpath.join(here, link))
        if target.startswith("../") and (ROOT / target.removeprefix("../")).is_file():
            yield target.removeprefix("../")


def _place(target: str) -> str:
    """Where a file of the repository lies in the site."""
    return re.sub(r"\.py$", ".md", target)
