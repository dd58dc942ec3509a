"""The HTML page of `soap demo`: one file without network requests, for screen, phone and print."""

from collections.abc import Sequence

from soap.errors import InputError
from soap.evaluation.showcase import Showcase
from soap.evaluation.suite import SuiteReport
from soap.report.accuracy import ATTACK_TITLES, UPPER_BOUND, percent, under_attack
from soap.report.demo_figures import draw_digits, draw_radii, draw_steps
from soap.report.drawing import DARK, LIGHT
from soap.report.html import environment, picture
from soap.report.row_text import defence_text, settings_text
from soap.report.run_figures import draw_bars
from soap.report.run_words import knowing_words
from soap.results import Row


def render_demo(
    rows: Sequence[Row],
    show: Showcase,
    *,
    attack: str,
    command: str,
    seconds: float,
    knowing: SuiteReport | None = None,
) -> str:
    """The page as text. All its numbers come from `rows`, `show` and `knowing`.

    attack: the attack of the rows that `show` shows. command, seconds: how the rows were made. knowing: result of
    attacks that know the purifier, if they were run.
    """
    lines = under_attack(rows)
    shown = next((line for line in lines if line.bare.attack.name == attack), None)
    if shown is None:
        known = [*{row.attack.name for row in rows}]
        raise InputError(f"got attack {attack!r}; expected one of the rows' attacks: {known}.")
    title = ATTACK_TITLES.get(attack, attack)
    attacked = f"attacked by {title}"
    correct = [int((labels == show.y).sum()) for labels in show.labels]
    of = len(show.y)
    predictions = (
        f"{of} digits in three rows. Correctly classified: {correct[0]} of {of} clean, {correct[1]} of {of} under "
        f"{title}, {correct[2]} of {of} purified."
    )
    levels = f"clean {show.loss_clean:.4f}, adversarial {show.loss_by_step[0]:.4f}"
    by_step = ", ".join(f"{loss:.4f}" for loss in show.loss_by_step)
    by_radius = ", ".join(f"{r:.3g}: {loss:.4f}" for r, loss in zip(show.radii, show.loss_by_radius, strict=True))
    return (
        environment()
        .get_template("demo.html")
        .render(
            lines=lines,
            shown=shown,
            show=show,
            correct=correct,
            percent=percent,
            upper_bound=UPPER_BOUND,
            light=LIGHT,
            dark=DARK,
            inputs=picture(draw_digits(show, LIGHT, attack=attacked, blocks=("inputs",)), predictions),
            decoded=picture(
                draw_digits(show, LIGHT, attack=attacked, blocks=("decoded",)),
                f"What the decoder rebuilds from each of the same {of} digits: clean, under {title}, purified.",
            ),
            steps=picture(
                draw_steps(show, LIGHT), f"Mean auxiliary loss: {levels}; being purified, from step 0: {by_step}."
            ),
            radii=picture(draw_radii(show, LIGHT), f"Mean auxiliary loss: {levels}; purified with radius {by_radius}."),
            knowing=knowing and knowing_words(knowing),
            bars=knowing and picture(draw_bars(knowing, LIGHT), " ".join(knowing_words(knowing))),
            provenance=shown.bare.provenance,
            settings_text=settings_text,
            defence_text=defence_text,
            command=command,
            seconds=seconds,
        )
    )
