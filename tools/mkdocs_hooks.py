"""mkdocs hooks: the command line's reference, and linked files outside docs/.

Pages link to files by their paths in the repository, so that links work there. Linked files outside docs/ are copied to
the site: Python files as pages with their source, others unchanged.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files, InclusionLevel

from soap.cli import COMMANDS, load_command
from soap.cli.console import COMMON_PANEL

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
COMMAND_LINE = "<!-- command line -->"


def on_files(files: Files, *, config: Any) -> Files:
    """Add files outside docs/ that pages link to."""
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

    return LINK.sub(on_site, markdown).replace(COMMAND_LINE, command_reference() if COMMAND_LINE in markdown else "")


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


def command_reference() -> str:
    """The command line as Markdown: the common options once, then every command with its arguments and options."""
    commands = dict(_commands({name: load_command(name) for name in COMMANDS}, "soap"))
    shared = {
        tuple(parameter.opts): parameter
        for command in commands.values()
        for parameter in command.params
        if parameter.rich_help_panel == COMMON_PANEL
    }
    any_command = next(iter(commands.values()))
    parts = [f"## {COMMON_PANEL}", "Some commands omit a few of them.", _table(any_command, shared.values())]
    for path, command in commands.items():
        own = [parameter for parameter in command.params if parameter.rich_help_panel != COMMON_PANEL]
        parts += [f"## {path}", _plain(command.help), f"```text\n{_usage(path, command)}\n```"]
        for panel in dict.fromkeys(parameter.rich_help_panel for parameter in own):
            parts += [f"### {panel}"] if panel else []
            parts.append(_table(command, [parameter for parameter in own if parameter.rich_help_panel == panel]))
        parts += [_plain(command.epilog).replace("Example: ", "```console\n") + "\n```"]
    return "\n\n".join(parts)


def _commands(group: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """The commands that are not groups, by their full names."""
    for name, command in group.items():
        if hasattr(command, "commands"):
            yield from _commands(command.commands, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _usage(path: str, command: Any) -> str:
    return " ".join([path, *command.collect_usage_pieces(typer.Context(command))])


def _table(command: Any, parameters: Any) -> str:
    context = typer.Context(command)
    lines = ["| option | meaning |", "| --- | --- |"]
    for parameter in parameters:
        names, meaning = parameter.get_help_record(context)
        lines.append(f"| `{names}` | {_plain(meaning).replace('|', '&#124;')} |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """The text without rich's markup."""
    return re.sub(r"\[/?(?:dim|bold)\]", "", text).replace("\\[", "[")
