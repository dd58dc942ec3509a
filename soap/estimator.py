"""A purified classifier for scikit-learn, which must be installed: `fit`, `predict`, `predict_proba`, `score`."""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary import JointModel, Purification, wrap
from soap.errors import InputError
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
class PurifiedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
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
        check_is_fitted(self)
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

    def _plain(self, name: str) -> Any:
        """Return an argument as a Python value; parameter searches pass numpy scalars."""
        value = getattr(self, name)
        return value.item() if isinstance(value, np.generic) else value

    def __sklearn_tags__(self) -> Any:
        """Return the estimator tags that scikit-learn needs."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


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
