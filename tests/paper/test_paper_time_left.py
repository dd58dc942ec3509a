"""How much longer: from jobs that are done, by kind, on a clock that the test moves."""

import pytest

from soap.paper.jobs import EvaluationJob, TrainingJob
from soap.paper.time_left import MULTIPLICATIONS_PER_SECOND, TimeLeft, duration_text


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_guess_is_the_work_at_the_devices_speed():
    jobs = [("train", 6e12), ("pgd", 2e12)]
    assert TimeLeft(jobs, device="cuda", clock=Clock()).seconds() == pytest.approx(
        8e12 / MULTIPLICATIONS_PER_SECOND["cuda"]
    )
    assert TimeLeft(jobs, device="mps", clock=Clock()).seconds() == pytest.approx(
        8e12 / MULTIPLICATIONS_PER_SECOND["cpu"]
    )
    assert TimeLeft([], device="cpu", clock=Clock()).seconds() == 0


def test_jobs_done_set_the_pace_of_their_kind_and_of_kinds_not_met_yet():
    clock = Clock()
    jobs = [("train", 10), ("pgd", 2), ("pgd", 3), ("cw", 4), ("train", 5)]
    left = TimeLeft(jobs, device="cpu", clock=clock)
    left.begin()
    clock.now += 20  # training: 2 s a unit
    left.end()
    left.begin()
    assert left.seconds() == pytest.approx(2 * (2 + 3 + 4 + 5))
    clock.now += 1
    assert left.seconds() == pytest.approx(2 * (2 + 3 + 4 + 5) - 1)  # what has passed of the job under way
    clock.now += 9  # PGD: 10 s for 2 units, longer than expected
    assert left.seconds() == pytest.approx(2 * (3 + 4 + 5))
    left.end()
    left.begin()
    # PGD at 5 s a unit, CW at the mean of all, 30 s for 12 units, training at its own.
    assert left.seconds() == pytest.approx(5 * 3 + 2.5 * 4 + 2 * 5)
    left.end(counts=False)  # skipped: nobody learns from it
    left.begin()
    assert left.seconds() == pytest.approx(2.5 * 4 + 2 * 5)
    assert left.seconds(current=7.0) == pytest.approx(7 + 2 * 5)


def test_the_work_of_jobs_is_in_a_sensible_order():
    def evaluation(attack: str, recipe: str = "cifar10-resnet18-lc", **changed: object) -> float:
        given = {"seed": 0, "attack": attack, "purifiers": (), "n": 10_000, **changed}
        return EvaluationJob(recipe=recipe, **given).work

    attacks = [evaluation(attack) for attack in ("none", "fgsm", "pgd", "df", "cw")]
    assert attacks == sorted(attacks)
    assert evaluation("pgd", purifiers=(("min-aux", None),)) > evaluation("pgd")
    assert evaluation("pgd", n=1_000) == pytest.approx(evaluation("pgd") / 10)
    sizes = ("mnist-fcn-dr", "mnist-cnn-dr", "cifar10-resnet18-rp", "cifar10-wide-resnet28-rp")
    assert [evaluation("pgd", recipe) for recipe in sizes] == sorted(evaluation("pgd", recipe) for recipe in sizes)
    methods = ("no-def", "fgsm-at", "pgd-at")
    lengths = [TrainingJob(recipe=f"cifar10-resnet18-{name}", seed=0, epochs=200).work for name in methods]
    assert lengths == sorted(lengths)
    assert TrainingJob(recipe="cifar10-resnet18-no-def", seed=0, epochs=20).work == pytest.approx(lengths[0] / 10)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than a minute"), (44, "less than a minute"), (60, "about a minute"), (89, "about a minute"),
        (91, "about 2 minutes"), (3600, "about 60 minutes"), (5401, "about 2 hours"), (36_000, "about 10 hours"),
    ],
)  # fmt: skip
def test_in_words(seconds, words):
    assert duration_text(seconds) == words
