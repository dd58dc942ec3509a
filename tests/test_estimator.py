"""The estimator follows scikit-learn's conventions and purifies inputs before it predicts."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

import soap
from soap import InputError
from soap._runtime.isolation import preserved_random_state
from soap.auxiliary import Purification
from soap.estimator import PurifiedClassifier, small_network

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # run-time shape checks would slow hundreds of training steps

SETTINGS = Purification(step_size=0.05, steps=3, grid=(0.0, 0.05, 0.1))


def table(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Samples of six numbers in [0, 1]; the class is the largest third."""
    x = np.random.default_rng(0).random((n, 6))
    return x, np.array(["one", "two", "three"])[x.reshape(n, 3, 2).mean(2).argmax(1)]


def quick(**changes: object) -> PurifiedClassifier:
    return PurifiedClassifier(**{"epochs": 15, "purification": SETTINGS, **changes})


def test_fit_accepts_any_labels_and_predict_uses_their_order():
    x, y = table(200)
    before = torch.get_rng_state()
    fitted = quick(epochs=30, alpha=1.0).fit(x, y)
    assert torch.equal(torch.get_rng_state(), before)
    assert fitted.classes_.tolist() == ["one", "three", "two"]
    assert fitted.n_features_in_ == 6
    chances = fitted.predict_proba(x)
    assert chances.shape == (200, 3)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-5)
    assert (fitted.predict(x) == fitted.classes_[chances.argmax(1)]).all()
    assert fitted.score(x, y) == (fitted.predict(x) == y).mean() > 0.7


def test_predict_uses_the_purified_input():
    x, y = table()
    fitted = quick().fit(x, y)
    inputs = torch.from_numpy(x.astype(np.float32))
    bare = fitted.model_(inputs).softmax(1).detach().numpy()
    purified = fitted.model_(soap.SOAP(fitted.model_)(inputs).x).softmax(1).detach().numpy()
    np.testing.assert_allclose(fitted.predict_proba(x), purified, rtol=1e-5)
    assert not np.allclose(bare, purified)
    np.testing.assert_allclose(fitted.set_params(eps=0).predict_proba(x), bare, rtol=1e-5)


def test_same_seed_gives_same_predictions_and_the_module_is_not_changed():
    x, y = table()
    with preserved_random_state():
        torch.manual_seed(0)
        module = small_network((6,), 3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    one, two = (quick(module=module).fit(x, y).predict_proba(x) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_epochs_zero_uses_a_trained_network_on_images():
    data = soap.data.load("mnist-mini").take(40)
    network = soap.load("mnist-cnn-no-def")
    pixels = (data.x * 255).round().byte().numpy()
    module = nn.Sequential(network.encoder, network.classifier)
    ready = PurifiedClassifier(module, task="consistency", epochs=0, eps=0.05).fit(pixels, data.y.numpy())
    assert ready.score(pixels, data.y.numpy()) > 0.5
    assert ready.set_params(eps=0).score(pixels, data.y.numpy()) > 0.9


def test_parameters():
    one = quick()
    assert one.get_params()["epochs"] == 15
    assert one.set_params(epochs=3, eps=0.1) is one
    assert (one.epochs, one.eps) == (3, 0.1)
    assert repr(PurifiedClassifier(epochs=3)) == "PurifiedClassifier(epochs=3)"
    with pytest.raises(ValueError, match="epohcs"):
        one.set_params(epohcs=3)


def test_estimator_can_be_pickled():
    x, y = table()
    fitted = quick().fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(x), fitted.predict_proba(x))


X, Y = table(12)
BAD = [
    ((X * 9, Y), {}, r"expected \[0, 1\]"),
    ((np.where(X > 0.9, np.nan, X), Y), {}, "NaN"),
    ((X.astype(str), Y), {}, "expected numbers"),
    ((X[:, 0], Y), {}, "expected numbers"),
    ((X[:0], Y[:0]), {}, "expected numbers"),
    ((X, Y[:5]), {}, "one for each input"),
    ((X, np.full(12, "one")), {}, "at least two classes"),
    ((X, np.linspace(0, 1, 12)), {}, "Unknown label type: continuous"),
    ((X, Y), {"epochs": -1}, "epochs is -1"),
    ((X, Y), {"task": "rotation"}, "use task='reconstruction'"),
    ((X, Y), {"module": small_network((6,), 5)}, "returns 5 logits, but the labels have 3"),
]


@pytest.mark.parametrize(("given", "changes", "words"), BAD, ids=[words for *_, words in BAD])
def test_bad_input(given, changes, words):
    with pytest.raises(InputError, match=words):
        quick(**changes).fit(*given)


def test_predict_before_fit_or_on_other_shapes_raises():
    with pytest.raises(NotFittedError, match="not fitted yet"):
        quick().predict(X)
    fitted = quick(epochs=1).fit(X, Y)
    with pytest.raises(InputError, match="this model takes"):
        fitted.predict(X[:, :4])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.score(X, Y[:5])


def test_parameters_may_be_numpy_scalars():
    plain = quick(epochs=2, eps=0.05, noise=0.5, batch_size=6, seed=3).fit(X, Y)
    given = {"epochs": np.int64(2), "eps": np.float64(0.05), "noise": np.float32(0.5), "batch_size": np.int32(6)}
    assert np.array_equal(quick(**given, seed=np.int64(3)).fit(X, Y).predict_proba(X), plain.predict_proba(X))


CHECKS = (
    "classifiers_one_label", "do_not_raise_errors_in_init_or_set_params", "estimator_cloneable", "estimator_repr",
    "estimator_tags_renamed", "estimators_nan_inf", "fit1d", "fit2d_1sample", "fit_score_takes_y",
    "get_params_invariance", "mixin_order", "no_attributes_set_in_init", "parameters_default_constructible",
    "set_params", "supervised_y_no_nan", "valid_tag_types",
)  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_scikit_learn_estimator_checks_inside_the_unit_interval(name):
    getattr(estimator_checks, f"check_{name}")("PurifiedClassifier", PurifiedClassifier(epochs=1))


def test_pipelines_cross_validation_and_search():
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    x, y = table(150)
    pipeline = make_pipeline(MinMaxScaler(clip=True), quick(epochs=30, alpha=1.0))
    assert is_classifier(pipeline)
    assert clone(pipeline[-1]).get_params() == pipeline[-1].get_params()
    assert cross_val_score(pipeline, 20 * x - 5, y, cv=2).mean() > 0.55
    search = GridSearchCV(pipeline, {"purifiedclassifier__eps": [0, 0.05]}, cv=2).fit(x, y)
    assert search.predict(x).shape == (150,)
