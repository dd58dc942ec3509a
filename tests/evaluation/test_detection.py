"""Detection: metrics against closed forms and scikit-learn, rejection of a defence, and a whole evaluation."""

import numpy as np
import pytest
import torch
from tiny import noise_images, state_of, tiny_model

import soap
from soap.data.dataset import make_dataset
from soap.detection_scores import SCORES, Rejection, score_function
from soap.errors import InputError
from soap.evaluation import evaluate_detection
from soap.evaluation.detection import Observed, auroc, correct_with_rejection, threshold_at
from soap.results import Store, from_json

YES, NO = True, False


def tensor(*values):
    return torch.tensor(values, dtype=torch.float32)


def small_data(model, n=12):
    x = noise_images(n)
    return make_dataset("noise", "test", x.numpy(), model(x).argmax(1).numpy(), ["a", "b", "c", "d"])


def test_auroc_closed_forms():
    assert auroc(tensor(1, 2), tensor(3, 4)) == 1
    assert auroc(tensor(3, 4), tensor(1, 2)) == 0
    assert auroc(tensor(1, 1), tensor(1, 1, 1)) == 0.5
    assert auroc(tensor(1, 2), tensor(2)) == 0.75


@pytest.mark.parametrize("levels", [4, 1000])
def test_auroc_equals_scikit_learn(levels):
    metrics = pytest.importorskip("sklearn.metrics")
    drawn = np.random.default_rng(0).integers(levels, size=150)
    clean, adversarial = drawn[:100], drawn[100:] + levels // 4
    wanted = metrics.roc_auc_score([0] * 100 + [1] * 50, np.concatenate([clean, adversarial]))
    assert auroc(torch.from_numpy(clean).float(), torch.from_numpy(adversarial).float()) == pytest.approx(wanted)


@pytest.mark.parametrize("n", [3, 20, 100, 137])
@pytest.mark.parametrize("fpr", [0.0, 0.01, 0.05, 0.3])
def test_threshold_is_the_lowest_that_keeps_the_false_positive_rate(n, fpr):
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(n)).float()
    threshold = threshold_at(scores, fpr)
    assert (scores > threshold).sum() <= fpr * n + 1e-6
    assert (scores > threshold - 1).sum() > fpr * n


def test_threshold_with_ties_rejects_none_too_many():
    assert threshold_at(tensor(1, 1, 1, 1), 0.5) == 1


def test_correct_with_rejection_by_hand():
    clean = Observed(tensor(0, 0, 0, 9, 0), torch.tensor([YES, YES, YES, YES, NO]))
    attacked = Observed(tensor(9, 0, 0, 9, 9), torch.tensor([NO, NO, YES, NO, NO]))
    # rejected attack; accepted error; correct; rejected clean; wrong when clean
    assert correct_with_rejection(clean, attacked, 5.0).tolist() == [YES, NO, YES, NO, NO]


def test_a_detector_that_rejects_everything_is_worthless():
    clean = Observed(torch.ones(5), torch.ones(5, dtype=torch.bool))
    attacked = Observed(torch.ones(5), torch.zeros(5, dtype=torch.bool))
    assert not correct_with_rejection(clean, attacked, 0.0).any()


def test_scores_are_those_of_the_purifier():
    model, x = tiny_model(), noise_images(6)
    purify = soap.SOAP(model)
    made = purify(x)
    values = {name: score_function(name, model, purify)(x).detach() for name in SCORES}
    torch.testing.assert_close(values["loss"], made.loss_before)
    assert torch.equal(values["eps"], made.eps)
    assert torch.equal(values["loss-drop"], made.loss_before - made.loss_after)
    changed = model(x).argmax(1) != model(made.x).argmax(1)
    assert torch.equal(values["label-change"] > 0.5, changed)


def test_defence_rejects_above_the_threshold():
    model, x = tiny_model(), noise_images(6)
    plain = soap.Defence(model, soap.SOAP(model))
    assert not plain.rejects(x).any()
    with pytest.raises(InputError, match="no score"):
        plain.score(x)
    scores = soap.SOAP(model).loss(x).detach()
    defence = soap.Defence(model, soap.SOAP(model), reject=Rejection("loss", float(scores.median())))
    assert torch.equal(defence.score(x), scores)
    assert torch.equal(defence.rejects(x), scores > scores.median())
    assert torch.equal(defence(x), plain(x))
    assert defence.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(
    ("score", "purified", "message"),
    [
        ("los", True, "did you mean loss"),
        ("eps", False, "needs a purifier"),
        (lambda x: x, True, "one value a sample"),
    ],
)
def test_bad_scores(score, purified, message):
    model = tiny_model()
    with pytest.raises(InputError, match=message):
        score_function(score, model, soap.SOAP(model) if purified else None)(noise_images(2))


@pytest.mark.parametrize("score", [*SCORES, lambda x: x.flatten(1).std(1), lambda x: x.detach().flatten(1).amax(1)])
def test_every_score_is_evaluated_and_the_model_does_not_change(score, tmp_path):
    model = tiny_model()
    data, before = small_data(model), state_of(model)
    defence = soap.Defence(model, soap.SOAP(model))
    report = evaluate_detection(defence, data, eps=0.3, score=score, steps=3, batch_size=5)
    assert state_of(model) == before
    assert [(one.attack, one.adaptive, one.fpr) for one in report.results] == [
        (name, name != "transfer", fpr)
        for name in ("transfer", "lagrangian", "selective", "orthogonal")
        for fpr in (0.01, 0.05)
    ]
    for one, row in zip(report.results, report.rows, strict=True):
        assert one.robust_accuracy <= one.clean_accuracy
        assert one.auroc is None or 0 <= one.auroc <= 1
        assert (row.accuracy, row.interval, row.n) == (one.robust_accuracy, one.interval, 12)
        assert from_json(row.as_json()) == row
        Store(tmp_path / "rows.jsonl").append(row)
    assert len({row.key for row in Store(tmp_path / "rows.jsonl").read()}) == len(report.rows)


def test_batches_do_not_change_the_result():
    model = tiny_model(dtype=torch.float32)
    data, defence = small_data(model), soap.Defence(model, soap.SOAP(model))
    one, other = (evaluate_detection(defence, data, eps=0.2, steps=3, batch_size=size) for size in (12, 5))
    assert [r.correct for r in one.results] == [r.correct for r in other.results]


def test_a_bare_classifier_is_evaluated_by_its_auxiliary_loss():
    model = tiny_model()
    report = evaluate_detection(soap.Defence(model), small_data(model), eps=0.3, steps=3)
    assert len(report.results) == 8


def test_bad_input():
    model = tiny_model()
    defence, data = soap.Defence(model, soap.SOAP(model)), small_data(model)
    for settings, message in (
        ({"eps": 0.0}, "eps is 0"),
        ({"fpr": (1.5,)}, "fpr is 1.5"),
        ({"attacks": ("orthogonl",)}, "did you mean orthogonal"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate_detection(defence, data, **{"eps": 0.3, "steps": 1, **settings})
