"""The paper's claims on the command line: which held, by our numbers."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from soap.cli.tables import table
from soap.evaluation.gathered import Material
from soap.paper.verdicts import Findings, Judged
from soap.report.comparison_words import Entry
from soap.report.measured import epoch_seconds, numbers
from soap.report.verdicts import MARKS, READING, TITLE, WORDS, by_the_paper, counted, grouped, signs_in, source

NAME = "claims"
COLOURS = {False: "bold red", True: "green", None: ""}


def findings(entries: Sequence[Entry], material: Material) -> Findings:
    """All that claims are judged by: every table with ours in it, and what figures are drawn from."""
    return Findings(tables=numbers(entries), seconds=epoch_seconds(material.timings), material=material)


def verdict(judged: Judged) -> Text:
    """'✗ did not hold. Against it: ...', with the rule."""
    held = judged.ours.held
    return Text.assemble(
        (f"{MARKS[held]} {WORDS[held]}", COLOURS[held]), f". {judged.ours.evidence} (Rule: {judged.rule}.)"
    )


def view(judged: Sequence[Judged]) -> RenderableType:
    """All claims, those that did not hold first."""
    parts: list[RenderableType] = [Text(TITLE, "bold"), Text(READING), Text(f"Of {len(judged)}: {counted(judged)}.")]
    for held, own in grouped(judged).items():
        if own:
            parts.append(Text(f"\n{MARKS[held]} {WORDS[held].capitalize()}: {len(own)}", COLOURS[held] or "bold"))
        for one in own:
            parts.append(Text(f"- {one.claim.text} ({source(one.claim)})"))
            lines = [f"Rule: {one.rule}.", one.ours.evidence, f"The paper's own numbers: {by_the_paper(one)}."]
            parts += [Padding(Text(line), (0, 0, 0, 4), expand=False) for line in lines]
    signs = signs_in(judged)
    return Group(*parts, *([Text(f"\n{signs}.")] if signs else []))


def as_json(judged: Judged) -> dict[str, Any]:
    """The same for machines; `held` is null where a number is lacking."""
    printed = judged.printed
    return {
        "name": judged.claim.name,
        "text": judged.claim.text,
        "section": judged.claim.section,
        "about": list(judged.claim.about),
        "rule": judged.rule,
        "held": judged.ours.held,
        "evidence": judged.ours.evidence,
        "printed_held": None if printed is None else printed.held,
        "printed_evidence": None if printed is None else printed.evidence,
    }


def all_as_json(judged: Sequence[Judged]) -> dict[str, Any]:
    """Counts and claims."""
    return {"name": NAME, "title": TITLE, **count_json(judged), "claims": [as_json(one) for one in judged]}


def count_json(judged: Sequence[Judged]) -> dict[str, int]:
    """How many of each verdict: {"did_not_hold": 3, ...}."""
    return {WORDS[held].replace(" ", "_"): len(own) for held, own in grouped(judged).items()}


def line(judged: Sequence[Judged]) -> RenderableType:
    """The line of the list of all."""
    made = table("name", "title", "verdicts", whole=("name",))
    made.add_row(NAME, TITLE, counted(judged))
    return made
