"""Markdown tables of rows, and sections of a document that are rendered from rows."""

from collections.abc import Iterable, Sequence

from soap.errors import InputError
from soap.report.accuracy import ATTACK_TITLES, percent
from soap.report.row_text import eps_text, gradient_text
from soap.results import Row


def models_table(rows: Sequence[Row]) -> str:
    """One line a model and defence, one column an attack: accuracy in per cent with its 95 % interval."""
    attacks = list(dict.fromkeys(row.attack.name for row in rows))
    lines = list(dict.fromkeys((row.model, row.defence) for row in rows))
    found = {(row.model, row.defence, row.attack.name): row for row in rows}
    head = ["model", "purified", *(ATTACK_TITLES.get(attack, attack) for attack in attacks)]
    table = []
    for model, defence in lines:
        cells = [found.get((model, defence, attack)) for attack in attacks]
        label = eps_text(defence) + gradient_text(defence) if defence.purifies else "no"
        table.append([f"`{model}`", label, *("" if row is None else percent(row) for row in cells)])
    return markdown_table(head, table)


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table of text cells."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def with_section(document: str, name: str, content: str) -> str:
    """`document` with the text between its markers `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = document.partition(opening)
    _, closed, after = rest.partition(closing)
    if not (found and closed):
        raise InputError(f"the document has no section {opening} ... {closing}; add both markers to it.")
    return f"{before}{opening}\n{content}\n{closing}{after}"
