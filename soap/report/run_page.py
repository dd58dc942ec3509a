"""The page of a run of the adaptive suite: one HTML file that asks nothing of the network."""

from soap.data import Dataset
from soap.evaluation.checks import FAIL, NOT_RUN, PASS, WARN
from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary import broken_images
from soap.evaluation.verdict import NOTHING, TRUSTED, UPPER, headline
from soap.report.drawing import DARK, LIGHT, picture
from soap.report.row_text import defence_text, step_text, training_text
from soap.report.run_figures.bars import draw_bars
from soap.report.run_figures.curves import draw_losses, draw_radii, loss_curve, radius_curve
from soap.report.run_figures.gallery import gallery
from soap.report.run_words import alone, gain, right, shown_lines, subject, threat_words
from soap.report.templating import environment
from soap.results import defence_from_json, provenance_from_json
from soap.specs import AttackStep

GALLERY = 12
"""Images shown of those that broke it."""

MEANING = {
    TRUSTED: "Every check passes and the adaptive suite is complete. It remains a bound: what these attackers, who "
    "know the defence, did not break. No measurement proves that no better attacker exists.",
    UPPER: "True robustness may be lower, perhaps much lower: a check was in doubt, or an attack that matters was "
    "left out. Do not quote the figure without these words.",
    NOTHING: "A check failed, so whatever the attacks left standing says nothing about robustness.",
}
SIGNS = {PASS: "✓", WARN: "!", FAIL: "✗", NOT_RUN: "·"}


def run_page(report: SuiteReport, data: Dataset, *, command: str) -> str:
    """The page as text. data: the images of the run. command: how it was made; may be empty."""
    summary, plan = report.summary, report.summary.plan
    radii, losses = radius_curve(report.folder), loss_curve(report.folder)
    shown = gallery(broken_images(report.folder, summary, data, GALLERY), plan["classes"])
    lines = shown_lines(report)
    said = ", ".join(f"{line.protocol} {right(line)}, classifier alone {alone(line)}" for line in lines)
    return (
        environment()
        .get_template("run.html")
        .render(
            plan=plan,
            subject=subject(summary),
            headline=headline(summary, report.verdict),
            verdict=report.verdict,
            meaning=MEANING[report.verdict.name],
            about=threat_words(summary),
            summary=summary,
            lines=lines,
            right=right,
            alone=alone,
            gain=gain,
            findings=report.findings,
            signs=SIGNS,
            counts={state: sum(one.state == state for one in report.findings) for state in SIGNS},
            bars=picture(draw_bars(report, LIGHT), f"Images right in per cent: {said}."),
            radii=radii and picture(draw_radii(radii, LIGHT), radii.words),
            losses=losses and picture(draw_losses(losses, LIGHT), losses.words),
            curves=(radii, losses),
            gallery=shown,
            fallen=int((summary.clean.defended & ~summary.worst.defended).sum()),
            provenance=provenance_from_json(plan["provenance"]),
            training_text=training_text,
            defence=defence_text(defence_from_json(plan["target"]["defence"])),
            attempts=[
                f"{one['protocol']}, {one['name']}: {step_text(AttackStep(**one['attack']))}"
                for one in plan["attempts"]
            ],
            command=command,
            light=LIGHT,
            dark=DARK,
        )
    )
