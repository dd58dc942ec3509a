"""The HTML page of a run of the adaptive suite: one file without network requests."""

from soap.data import Dataset
from soap.evaluation.checks import FAIL, NOT_RUN, PASS, WARN
from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary_builder import broken_images
from soap.evaluation.verdict import INVALID, PASSED, WARNED, headline
from soap.report.drawing import DARK, LIGHT
from soap.report.html import environment, picture
from soap.report.row_text import defence_text, step_text, training_text
from soap.report.run_figures import draw_bars, gallery, losses_figure, radii_figure
from soap.report.run_text import accuracy_text, bare_accuracy_text, protocol_lines, run_notes, subject, threat_text
from soap.results import defence_from_json, provenance_from_json
from soap.specs import AttackStep

MAX_GALLERY_IMAGES = 12

MEANING = {
    PASSED: "Every check passes and the adaptive suite is complete. It remains an upper bound, over these "
    "attacks, which know the defence. No measurement proves that no better attack exists.",
    WARNED: "True robustness may be lower, perhaps much lower: a check warns, or an attack was left out. Do not "
    "quote the number without this sentence.",
    INVALID: "A check failed, so the accuracy under these attacks does not measure robustness.",
}
SIGNS = {PASS: "✓", WARN: "!", FAIL: "✗", NOT_RUN: "·"}


def render_run(report: SuiteReport, data: Dataset, *, command: str) -> str:
    """The page as text. data: the images of the run. command: how it was made; may be empty."""
    summary, plan = report.summary, report.summary.plan
    verdict = report.verdict
    drawn = [] if verdict.note else [radii_figure(report.folder), losses_figure(report.folder)]
    shown = gallery(broken_images(report.folder, summary, data, MAX_GALLERY_IMAGES), plan["classes"])
    lines = protocol_lines(report)
    bars_text = ", ".join(f"{line.protocol} {accuracy_text(line)}" for line in lines if verdict.shows(line.protocol))
    return (
        environment()
        .get_template("run.html")
        .render(
            plan=plan,
            subject=subject(summary),
            headline=headline(summary, verdict),
            verdict=verdict,
            meaning=MEANING[verdict.name],
            about=" ".join([threat_text(summary), *run_notes(report)]),
            summary=summary,
            lines=lines,
            accuracy_text=lambda line: accuracy_text(line, verdict),
            bare_accuracy_text=lambda line: bare_accuracy_text(line, verdict),
            findings=report.findings,
            signs=SIGNS,
            counts={state: sum(one.state == state for one in report.findings) for state in SIGNS},
            bars=picture(draw_bars(report), f"Correctly classified images in per cent: {bars_text}."),
            curves=[(picture(one.figure, one.alt), one.caption) for one in drawn if one is not None],
            gallery=shown,
            broken=int((summary.clean.defended & ~summary.worst.defended).sum()),
            provenance=provenance_from_json(plan["provenance"]),
            training_text=training_text,
            defence=defence_text(defence_from_json(plan["target"]["defence"])),
            attempts=_attempts(report),
            weights=report.folder.weights_text(),
            command=command,
            light=LIGHT,
            dark=DARK,
        )
    )


def _attempts(report: SuiteReport) -> list[str]:
    """Every attempt; in the headline mode in the order of the first batch, with the images that it met and broke."""
    summary, planned, lines = report.summary, report.summary.plan["attempts"], []
    for each in summary.plan["cascade"] if summary.headline else range(len(planned)):
        one, (met, lost) = planned[each], summary.broken.get(each, (0, 0))
        counts = f"; attacked {met:,} images, broke {lost:,}" if summary.headline and not report.verdict.note else ""
        lines.append(f"{one['protocol']}, {one['name']}: {step_text(AttackStep(**one['attack']))}{counts}")
    return lines
