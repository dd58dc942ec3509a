"""A purified classifier with the interface of scikit-learn: `fit`, `predict`, `predict_proba`, `score`.

It works with `clone`, `Pipeline` and `cross_val_score`, but does not need scikit-learn itself.
"""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary import JointModel, Purification, wrap
from soap.errors import InputError, unknown
from soap.purifiers import SOAP
from soap.shapes import Tensor
from soap.training import as_dataset
from soap.training import fit as fit_jointly

Array = npt.NDArray[Any]
Maker = Callable[[tuple[int, ...], int], nn.Module]
"""(shape of one input, number of classes) -> network."""


def small_network(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network with two hidden layers of 64 units, for small tabular data."""
    width = torch.Size(shape).numel()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes)
    )


@dataclass(eq=False, repr=False)
class PurifiedClassifier:
    """A scikit-learn classifier: a network trained jointly with an auxiliary task, which purifies inputs to predict.

    Inputs are arrays [n, ...] in [0, 1]; use a `MinMaxScaler(clip=True)` before it in a pipeline. Labels may have any
    type.

    - `module`: an nn.Module from inputs to logits, copied before training, or a function that makes one from the shape
      of an input and the number of classes.
    - `task`, `alpha`, `noise`, `purification`: see `soap.auxiliary.wrap`.
    - `epochs`, `lr`, `batch_size`, `warmup_epochs`, `seed`: see `soap.training.Schedule`. `epochs=0` trains
      nothing, for the task "consistency" with a trained module.
    - `eps`: the radius of purification: "min-aux" to select one for every input, a number, or 0 for none.

    Set by `fit`: `classes_`, the labels in sorted order; `n_features_in_`; `model_`, the joint model.
    """

    module: nn.Module | Maker = small_network
    _: KW_ONLY
    task: str = "reconstruction"
    alpha: float | None = None
    noise: float | None = 0.1
    purification: Purification | None = None
    eps: float | str = "min-aux"
    epochs: int = 100
    lr: float = 0.05
    batch_size: int = 32
    warmup_epochs: float = 1.0
    seed: int = 0

    def fit(self, X: Array, y: Array) -> "PurifiedClassifier":
        """Train on inputs [n, ...] and labels [n]; return self."""
        x, labels = _inputs(X), np.asarray(y)
        if labels.shape != (len(x),):
            raise InputError(f"got labels of shape {labels.shape}, expected ({len(x)},), one for each input.")
        validate.at_least("epochs", self._plain("epochs"), 0)
        if np.issubdtype(labels.dtype, np.floating) and (labels != np.round(labels)).any():
            raise InputError("Unknown label type: continuous. Expected one class for each input, not a real number.")
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"got labels of {len(classes)} class, expected at least two classes.")
        model = self._joint(tuple(x.shape[1:]), len(classes))
        if self.epochs:
            data = as_dataset(x, numbers, classes=model.classes)
            with tempfile.TemporaryDirectory() as folder:
                fit_jointly(
                    model,
                    data,
                    out=Path(folder),
                    progress=False,
                    **{name: self._plain(name) for name in ("epochs", "lr", "batch_size", "warmup_epochs", "seed")},
                )
        self.classes_, self.n_features_in_, self.model_ = classes, x.shape[1], model.eval()
        return self

    def _joint(self, shape: tuple[int, ...], classes: int) -> JointModel:
        with preserved_random_state():
            torch.manual_seed(self._plain("seed"))
            made = copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(shape, classes)
        model = wrap(
            made,
            self.task,
            shape=shape,
            alpha=self._plain("alpha"),
            noise=self._plain("noise"),
            purification=self.purification,
            name=type(made).__name__,
            seed=self._plain("seed"),
        )
        if model.classes != classes:
            raise InputError(f"the module returns {model.classes} logits, but the labels have {classes} classes.")
        return model

    def predict_proba(self, X: Array) -> Array:
        """Return class probabilities [n, classes] of the purified inputs, columns in the order of `classes_`."""
        if not self.__sklearn_is_fitted__():
            raise InputError("this PurifiedClassifier is not fitted yet; call fit(X, y) first.")
        x = torch.from_numpy(_inputs(X)).to(next(self.model_.parameters()).device)
        validate.inputs(x, self.model_)
        eps = self._plain("eps")
        if eps != 0:
            x = SOAP(self.model_, eps)(x, progress=False).x
        with isolated(self.model_), torch.no_grad():
            parts: list[Tensor] = [self.model_(part).softmax(1) for part in torch.split(x, 1000)]
        probabilities: Array = torch.cat(parts).cpu().numpy()
        return probabilities

    def predict(self, X: Array) -> Array:
        """Return the most probable label of every purified input."""
        probabilities = self.predict_proba(X)
        labels: Array = self.classes_[probabilities.argmax(1)]
        return labels

    def score(self, X: Array, y: Array) -> float:
        """Return the accuracy: the share of inputs that are classified correctly."""
        labels, expected = self.predict(X), np.asarray(y)
        if expected.shape != labels.shape:
            raise InputError(f"got labels of shape {expected.shape}, expected {labels.shape}, one for each input.")
        return float((labels == expected).mean())

    def _plain(self, name: str) -> Any:
        """Return an argument as a Python value; parameter searches pass numpy scalars."""
        value = getattr(self, name)
        return value.item() if isinstance(value, np.generic) else value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor arguments; `deep` has no effect, because there is no nested estimator."""
        return {name: getattr(self, name) for name in _names()}

    def set_params(self, **params: Any) -> "PurifiedClassifier":
        """Set constructor arguments; return self."""
        for name, value in params.items():
            if name not in _names():
                raise unknown("parameter of PurifiedClassifier", name, _names())
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        """Return the estimator tags that scikit-learn needs."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(three_d_array=True),
        )

    def __repr__(self) -> str:
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        changed = [f"{name}={value!r}" for name, (value, default) in values.items() if value is not default]
        return f"PurifiedClassifier({', '.join(changed)})"


def _names() -> list[str]:
    return [one.name for one in fields(PurifiedClassifier)]


def _inputs(X: Array) -> npt.NDArray[np.float32]:
    """Return float32 [n, ...]; uint8 images are divided by 255."""
    x = np.asarray(X)
    number = np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_
    if x.ndim < 2 or x.size == 0 or not number:
        raise InputError(
            f"got {x.dtype} inputs of shape {x.shape}, expected numbers in [0, 1] or uint8, [n, features]."
        )
    values: npt.NDArray[np.float32] = np.ascontiguousarray(x, np.float32)
    return values / np.float32(255) if x.dtype == np.uint8 else values
