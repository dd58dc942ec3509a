"""Rows as a Markdown table."""

from dataclasses import replace

from report_samples import sample_row

from soap.report import models_table


def test_each_gradient_has_a_line_of_its_own():
    """The later of two gradients once took the place of the recipe's own."""
    bare = sample_row("pgd", purified=False, correct=2)
    paper, stop = (sample_row("pgd", purified=True, correct=correct) for correct in (445, 664))
    rows = [
        replace(row, defence=replace(row.defence, settings={"eps": "min-aux", "task": {"gradient": gradient}}))
        for row, gradient in ((paper, "paper"), (stop, "stop"))
    ]
    head, _, *lines = models_table([bare, *rows]).splitlines()
    assert head == "| model | purified | PGD |"
    assert [line.split(" | ")[1] for line in lines] == ["no", "min-aux, gradient paper", "min-aux, gradient stop"]
    assert [line.split(" | ")[2].split()[0] for line in lines] == ["0.2", "44.5", "66.4"]
