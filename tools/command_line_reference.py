"""The reference of the command line as Markdown, from the commands; `tools/mkdocs_hooks.py` adds it to the docs."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from soap.cli import COMMANDS, load_command
from soap.cli.console import COMMON_PANEL


def reference() -> str:
    """Every command with its arguments and options; the common options come once, at the top."""
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
        parts += [_table(command, own)] if own else []
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
