"""The page of a run of the adaptive suite: one HTML file that asks nothing of the network."""

from soap.data import Dataset
from soap.evaluation.adaptive.broken import broken
from soap.evaluation.adaptive.checks import FAIL, NOT_RUN, PASS, WARN
from soap.evaluation.adaptive.evaluate import Report
from soap.evaluation.adaptive.verdict import NOTHING, TRUSTED, UPPER, headline
from soap.report.drawing import DARK, LIGHT, picture
from soap.report.run_figures.bars import draw_bars
from soap.report.run_figures.curves import draw_losses, draw_radii, loss_curve, radius_curve
from soap.report.run_figures.gallery import gallery
from soap.report.run_words import alone, gain, right, shown_lines, subject, threat_words
from soap.report.templating import environment
from soap.results import Provenance

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


def run_page(report: Report, data: Dataset, *, command: str) -> str:
    """The page as text. data: the images of the run. command: how it was made; may be empty."""
    summary, plan = report.summary, report.summary.plan
    radii, losses = radius_curve(report.folder), loss_curve(report.folder)
    shown = gallery(broken(report.folder, data, GALLERY), plan["classes"])
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
            provenance=Provenance(**plan["provenance"]),
            command=command,
            light=LIGHT,
            dark=DARK,
        )
    )
