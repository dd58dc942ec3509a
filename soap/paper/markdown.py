"""The paper's tables and claims with our numbers beside the printed ones, as Markdown."""

from collections.abc import Sequence
from typing import Any

from soap.paper import judging
from soap.paper.comparison import ComparedCell, Comparison, Entry, heading, number_text, points
from soap.paper.figure_claims import radius_text
from soap.paper.figure_data import FigureData, PaperFigure
from soap.paper.judging import JudgedClaim
from soap.paper.rows import attack_radius
from soap.paper.tables import Heading
from soap.report import markdown_table, percent
from soap.report.row_text import ATTACK_TITLES


def table_markdown(entry: Entry) -> str:
    """A table with its caption and footnotes, one part for each group of columns."""
    parts = [f"## {heading(entry)}", entry.table.caption]
    if isinstance(entry, Comparison):
        for group in entry.groups:
            parts += [f"### {group.label}", markdown_table(*_group_cells(entry, group))]
        parts += [f"<sup>{number}</sup> {note}" for number, note in enumerate(entry.notes, 1)]
        parts += entry.remarks
    else:
        parts += [markdown_table(entry.head, entry.rows), *entry.notes]
    return "\n\n".join(parts)


def sweep_markdown(figure: PaperFigure, data: FigureData) -> str:
    """The rows of an ablation as a table: a line a model and purifier, a column an attack or a number of steps."""
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    for model in figure.models:
        found = data.get(figure.kind, model)
        numeric = figure.kind in ("steps", "radii")
        for key in sorted(found, key=lambda key: (isinstance(key, str), key)) if numeric else found:
            row = found[key]
            purifier, column = _sweep_names(figure.kind, key, attack_radius(row))
            chosen = f"; mean radius {255 * row.measures['mean_eps_pfy']:.1f}/255" if figure.kind == "rotation" else ""
            lines.setdefault((model, purifier, f"{row.n:,}"), {})[column] = percent(row) + chosen
    titles = list(ATTACK_TITLES.values())
    columns = dict.fromkeys(column for cells in lines.values() for column in cells)
    shown = sorted(columns, key=lambda name: titles.index(name) if name in titles else len(titles))
    body = [(*name, *(cells.get(column, "") for column in shown)) for name, cells in lines.items()]
    return markdown_table(["model", "purified by", "images", *(f"{name}, %" for name in shown)], body)


def _sweep_names(kind: str, key: Any, attack: float) -> tuple[str, str]:
    """The purifier and the column of a cell. attack: its radius, in whose unit radii and step sizes are."""
    if kind == "steps":
        return f"gamma = {radius_text(key[0], attack)}", f"T = {key[1]}"
    if kind == "radii":
        return key if isinstance(key, str) else f"eps = {radius_text(key, attack)}", ATTACK_TITLES["pgd"]
    name, purifier = (key, "") if isinstance(key, str) else key
    return purifier, ATTACK_TITLES[name]


def claims_markdown(judged: Sequence[JudgedClaim]) -> str:
    """Tables of the claims, those that did not hold first."""
    parts = [f"## {judging.TITLE}", f"{judging.READING} Of {len(judged)} claims: {judging.count_text(judged)}."]
    for held, own in judging.grouped_by_verdict(judged).items():
        if own:
            lines = [
                (f"{one.claim.text} ({one.source}) *Rule: {one.claim.rule}.*", one.ours.evidence, one.printed_text)
                for one in own
            ]
            escaped = [[text.replace("|", "\\|") for text in line] for line in lines]
            parts.append(f"### {judging.MARKS[held]} {judging.VERDICT_WORDS[held].capitalize()}: {len(own)}")
            parts.append(markdown_table(["Claim", "Our numbers", "By the paper's own numbers"], escaped))
    signs = judging.signs_text(judged)
    return "\n\n".join([*parts, f"{signs}."] if signs else parts)


def _group_cells(entry: Comparison, group: Heading) -> tuple[list[str], list[list[str]]]:
    """Head and lines of one group of columns; a method with several rows has a heading line above them."""
    columns = entry.table.columns
    lines: list[list[str]] = []
    for row, first, cells in entry.lines(group):
        if first:
            lines.append([f"*{row.section}*", *[""] * len(columns)])
        texts = ("" if compared is None else _cell(compared) for compared in cells)
        lines.append([row.label.replace("*", "\\*"), *texts])
    return [entry.table.stub, *(column.label for column in columns)], lines


def _cell(compared: ComparedCell) -> str:
    """'61.54 / **61.88** (−0.34)', with signs and the number of its footnote."""
    note = "" if compared.note is None else f"<sup>{compared.note}</sup>"
    difference = f" ({points(compared.difference)})" if compared.difference is not None else ""
    ours = _marked(number_text(compared.ours), compared.mark)
    paper = _marked(number_text(compared.cell.printed), compared.cell.mark)
    return f"{ours} / {paper}{difference}{''.join(compared.signs)}{note}"


def _marked(text: str, mark: str) -> str:
    return {"best": f"<u>**{text}**</u>", "second": f"**{text}**", "": text}[mark]
