"""Golden tests: the only file here that imports `soap`.

Every function takes names and arrays and returns plain arrays, numbers and dicts. After a change of names in the
package adapt this file alone; the recorded data and the tests stay as they are.
"""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import soap
from soap import attacks, gradient_rules, recipes
from soap.attacks import (
    APGD,
    FGSM,
    PGD,
    Attack,
    CarliniWagner,
    DecayingPGD,
    DeepFool,
    HopSkipJump,
    Noise,
    RayS,
    Square,
    Substitute,
)
from soap.cli import main
from soap.data import Dataset
from soap.evaluation import read_report
from soap.models.pixelcnn import PixelCNN
from soap.purifiers import SOAP
from soap.recipes import generative
from soap.recipes.purifiers import by_prior

Arrays = dict[str, np.ndarray]

RESNET = "cifar10-resnet18"
LINF = {"mnist": 0.3, "cifar10": 8 / 255}
L2 = {"mnist": 2.0, "cifar10": 0.5}

VERDICTS = {"CHECKS PASSED": 0, "CHECKS WARNED": 1, "INVALID": 2}
STATES = {"PASS": "P", "WARN": "W", "FAIL": "F", "NOT RUN": "-"}
SKIPPED_FACTS = ("asked",)
"""Facts that hold no measurement: what the caller asked for."""


def tensor(array: np.ndarray) -> torch.Tensor:
    """Float32 images in [0, 1] from bytes, or labels from whole numbers."""
    if array.dtype == np.uint8:
        return torch.from_numpy(array.copy()).float().div(255)
    return torch.from_numpy(array.astype(np.int64))


def family(model: str) -> str:
    """The data set that a bundled model is for: mnist or cifar10."""
    return model.partition("-")[0]


def models() -> list[str]:
    """The bundled classifiers of MNIST and CIFAR-10; those of CIFAR-100 came after the recording."""
    return [name for name in soap.zoo.names() if not name.startswith("cifar100-")]


def priors() -> list[str]:
    """The bundled generative models."""
    return soap.zoo.prior_names()


@cache
def load(model: str, gradient: str | None = None) -> soap.JointModel:
    """A bundled classifier, loaded once a process."""
    return soap.load(model, gradient=gradient)


def cpu() -> str:
    """The instructions by which torch computes here, and its version: what rounding depends on."""
    return f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


@cache
def digits(n: int, split: str = "test") -> tuple[np.ndarray, np.ndarray]:
    """The first bundled digits as bytes, and their labels."""
    data = soap.data.load("mnist-mini", split).take(n)
    return (data.x * 255).round().byte().numpy(), data.y.numpy()


def classify(model: str, x: np.ndarray) -> np.ndarray:
    """Logits of the classifier alone."""
    with torch.no_grad():
        return load(model)(tensor(x)).numpy()


# Purifiers.


def purifiers(model: str) -> list[str]:
    """The purifiers that are recorded for a model."""
    network, names = load(model), ["hedge", "anti-adversary"]
    if network.purifiable:
        names += ["soap", "soap fixed"]
    if network.purifiable and model != f"{RESNET}-rp":  # the slowest; the choice of a radius is the same code
        names += ["soap batch", "soap oracle"]
    if model == f"{RESNET}-lc":
        names += ["soap stop", "soap exact"]
    return names


def purify_images(model: str, purifier: str, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Images, labels, radii and losses of a purifier before a classifier; `y` is for the oracle alone."""
    images, network = tensor(x), load(model)
    if purifier in ("soap stop", "soap exact"):
        network = load(model, purifier.removeprefix("soap "))
        found = SOAP(network)(images)
    elif purifier == "soap oracle":
        found = SOAP(network, "oracle")(images, tensor(y))
    else:
        makers: dict[str, Callable[[], Any]] = {
            "soap": lambda: SOAP(network),
            "soap fixed": lambda: SOAP(network, LINF[family(model)]),
            "soap batch": lambda: SOAP(network, "min-aux-batch"),
            "hedge": lambda: soap.purifiers.Hedge(network),
            "anti-adversary": lambda: soap.purifiers.AntiAdversary(network),
        }
        found = makers[purifier]()(images)
    return {**_purified(found), "label": _labels(network, found.x)}


def defense_gan(x: np.ndarray, **settings: int) -> Arrays:
    """Images, largest changes and errors of Defense-GAN with the bundled generator."""
    return _purified(by_prior("defense-gan", settings)[1](tensor(x)))


def denoise(purifier: str, x: np.ndarray) -> Arrays:
    """The same of a purifier with a bundled denoiser: "autoencoder" or "diffusion"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # diffusion draws from the global generator
        return _purified(by_prior(purifier, {})[1](tensor(x)))


def pixel_defend(x: np.ndarray) -> Arrays:
    """The same of PixelDefend by a small untrained model: no weights are bundled."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        prior = PixelCNN(inputs=tuple(x.shape[1:]), channels=8, blocks=2, mixtures=3).eval()
    return _purified(soap.purifiers.PixelDefend(prior, 16 / 255)(tensor(x)))


def _purified(found: soap.Purified) -> Arrays:
    parts = {"x": found.x, "eps": found.eps, "loss_before": found.loss_before, "loss_after": found.loss_after}
    return {name: part.detach().numpy() for name, part in parts.items()}


def _labels(network: torch.nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return network(x).argmax(1).numpy()


# Attacks.


def _plain_attacks(kind: str) -> dict[str, Attack]:
    eps, l2 = LINF[kind], L2[kind]
    made: dict[str, Attack] = {
        "fgsm": FGSM(eps=eps),
        "pgd": PGD(eps=eps, step_size=eps / 4, steps=10),
        "pgd l2": PGD(eps=l2, step_size=l2 / 4, steps=10, norm="l2"),
        "pgd best": PGD(eps=eps, step_size=eps / 4, steps=5, start="random", restarts=3, keep="best", loss="margin"),
        "pgd dlr l2 random": PGD(eps=l2, step_size=l2 / 4, steps=5, norm="l2", start="random", loss="dlr", seed=3),
        "apgd ce": APGD(eps=eps, steps=10),
        "apgd margin zero": APGD(eps=eps / 2, steps=10, loss="margin", start="zero", restarts=2),
        "apgd dlr l2": APGD(eps=l2, steps=10, loss="dlr", norm="l2"),
        "apgd targeted dlr": APGD(eps=eps / 2, steps=10, loss="targeted-dlr", targets=3, leave_when_fooled=True),
        "apgd targeted margin": APGD(eps=eps / 2, steps=10, loss="targeted-margin", targets=2),
        "noise": Noise(eps=eps, draws=10),
        "noise l2": Noise(eps=2 * l2, norm="l2", draws=10),
        "square": Square(eps=eps / 2, queries=60),
        "deepfool": DeepFool(steps=10, radius=2 * l2),
        "cw": CarliniWagner(search_steps=3, steps=20, lr=0.05, initial_c=1.0),
        "aware +1": attacks.AuxiliaryAwarePGD(eps=eps, step_size=eps / 5, steps=10, beta=1.0),
        "aware -1 best": attacks.AuxiliaryAwarePGD(eps=eps, step_size=eps / 5, steps=10, beta=-1.0, keep="best"),
        "stolen copy": attacks.StolenCopy(eps=eps, queries=100, steps=5),
    }
    if kind == "mnist":
        made |= {
            "apgd l1": APGD(eps=5 * l2, steps=10, norm="l1"),
            "decaying pgd": DecayingPGD(eps=eps, steps=10),
            "square l2": Square(eps=l2, norm="l2", queries=60),
            "hop-skip-jump": HopSkipJump(eps=eps / 2, queries=300),
            "rays": RayS(eps=eps / 2, queries=300),
        }
    else:  # the copies are the same code for every image size, and training them is slow
        del made["stolen copy"]
    return made


ADAPTIVE: dict[str, Callable[[soap.JointModel, SOAP], torch.nn.Module]] = {
    "defended": soap.Defence,
    "bpda": gradient_rules.StraightThrough,
    "bpda start": gradient_rules.StartPoint,
    "bpda trajectory": gradient_rules.MeanOverIterates,
    "unrolled": gradient_rules.Unrolled,
    "unrolled wide": lambda model, own: gradient_rules.Unrolled(model, own, scale=3.0),
    "unrolled smooth": lambda model, own: gradient_rules.Unrolled(model, own, smooth=True),
    "bpda hedge": lambda model, own: gradient_rules.StraightThrough(model, soap.purifiers.Hedge(model)),
    "unrolled anti-adversary": lambda model, own: gradient_rules.Unrolled(model, soap.purifiers.AntiAdversary(model)),
}
"""What an attack that knows the purifier is given; each is attacked by a short APGD."""


def attack_names(model: str) -> list[str]:
    """The attacks that are recorded for a model."""
    names = [*_plain_attacks(family(model)), *ADAPTIVE]
    return [*names, "substitute", "autoattack"] if family(model) == "mnist" else names


def attack(model: str, name: str, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Attacked images, and the labels that the attacked model gives them: the whole defence where there is one."""
    network, images, labels, eps = load(model), tensor(x), tensor(y), LINF[family(model)]
    seen: torch.nn.Module = network
    if name in ADAPTIVE:
        seen = ADAPTIVE[name](network, SOAP(network))
        made: Attack = APGD(eps=eps, steps=5, loss="margin", leave_when_fooled=name == "bpda")
    elif name == "substitute":
        copying = Substitute(network="fcn", attack=FGSM(eps=eps), seeds=25, rounds=2, epochs=3)
        made = copying.fit(network, images)
    elif name == "autoattack":
        made = attacks.AutoAttack(eps=eps)
    else:
        made = _plain_attacks(family(model))[name]
    found = made(seen, images, labels)
    return {"x": found.numpy(), "label": _labels(seen, found)}


# The command line: evaluation, suites and ONNX files.


def evaluate_rows(model: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Rows of `soap evaluate --json` on 50 bundled digits, without provenance, times and labels of objects."""
    where = ["--data", "mnist-mini", "--limit", "50", "--results", str(folder / "rows.jsonl")]
    content = _command("evaluate", model, *where, *options)
    return [
        {
            "attack": row["attack"]["name"],
            "eps_pfy": "none" if row["defence"]["eps"] is None else str(row["defence"]["eps"]),
            "purifier": row["defence"]["name"].lower(),
            "n": row["n"],
            "correct": row["correct"],
            "accuracy": row["accuracy"],
            "interval": row["interval"],
            "measures": row["measures"],
        }
        for row in content["rows"]
    ]


def suite_run(suite: str, folder: Path, *, steps: int, queries: int, eps: float) -> dict[str, Any]:
    """A suite on `mnist-fcn-dr` and 50 bundled digits: which images stay correctly classified, checks and verdict.

    A bit of a protocol is 1 where the defence still classifies the image correctly. Verdict: 0 for a trusted bound, 1
    for an upper bound only, 2 for no robustness number. Checks: P, W, F or - (not run), by number.
    """
    place, data = folder / suite, soap.data.load("mnist-mini").take(50)
    options = ["--suite", suite, "--data", "mnist-mini", "--limit", "50", "--out", str(place)]
    options += ["--steps", str(steps), "--queries", str(queries), "--eps", str(eps)]
    content = _command("evaluate", "mnist-fcn-dr", *options)
    report = read_report(place, data)
    lines = (report.summary.clean, *report.summary.protocols, report.summary.worst)
    printed = {line["protocol"]: line["correct"] for line in (content["clean"], *content["protocols"])}
    facts = {path.stem: _numbers(json.loads(path.read_text())) for path in sorted((place / "facts").glob("*.json"))}
    return {
        "defended": {line.protocol: _bits(line.defended) for line in lines},
        "bare": {line.protocol: _bits(line.bare) for line in lines},
        "printed": printed,
        "worst": report.summary.worst.correct,
        "checks": {str(one.number): STATES[one.state] for one in report.findings},
        "verdict": VERDICTS[report.verdict.name],
        "facts": {name: found for name, found in facts.items() if name not in SKIPPED_FACTS},
    }


def export_output(model: str, x: np.ndarray, folder: Path) -> Arrays:
    """The outputs of all ONNX files that `soap export` writes for a model, by onnxruntime on one thread."""
    import onnxruntime  # an extra

    content = _command("export", model, "--out", str(folder / "onnx"), device=False)
    images = tensor(x).numpy()
    inputs = {
        "x": images,
        "x0": images,
        "step_size": np.array(0.1, np.float32),
        "eps": np.linspace(0.05, 0.3, len(images), dtype=np.float32),
    }
    options, found = onnxruntime.SessionOptions(), {}
    options.intra_op_num_threads = 1
    for part, written in content["parts"].items():
        session = onnxruntime.InferenceSession(written["file"], options, providers=["CPUExecutionProvider"])
        given = {one.name: inputs[one.name] for one in session.get_inputs()}
        names = [one.name for one in session.get_outputs()]
        found |= {f"{part}.{name}": out for name, out in zip(names, session.run(names, given), strict=True)}
    return found


def _command(name: str, *arguments: str, device: bool = True) -> dict[str, Any]:
    """What a command prints with --json."""
    out = io.StringIO()
    with _environment(SOAP_COMMIT="golden"), contextlib.redirect_stdout(out):
        code = main([name, *arguments, "--json", "-q", *(["--device", "cpu"] if device else [])])
    assert code == 0, out.getvalue()
    return json.loads(out.getvalue())


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _bits(mask: np.ndarray) -> str:
    return "".join("1" if one else "0" for one in mask)


def _numbers(content: Any, name: str = "") -> dict[str, list[float]]:
    """All numbers of a fact, sorted, whatever their keys are called; times are left out."""
    if isinstance(content, dict | list):
        parts = content.items() if isinstance(content, dict) else ((name, one) for one in content)
        found = [_numbers(one, key) for key, one in parts]
        return {kind: sorted(number for one in found for number in one[kind]) for kind in ("whole", "real", "truth")}
    kinds: dict[str, list[float]] = {"whole": [], "real": [], "truth": []}
    if name != "seconds" and isinstance(content, int | float):
        kinds["truth" if isinstance(content, bool) else "whole" if isinstance(content, int) else "real"] = [content]
    return kinds


# Training.

TRAININGS = {
    "reconstruction": "mnist-fcn-dr",
    "reconstruction cnn": "mnist-cnn-dr",
    "consistency": f"{RESNET}-lc",
    "rotation": f"{RESNET}-rp",
    "fgsm": f"{RESNET}-fgsm-at",
    "pgd": "mnist-fcn-pgd-at",
}
GENERATIVE = {
    "wgan": ("defense-gan-mnist", {"latent": 16, "width": 8}, 10),
    "pixelcnn": ("pixeldefend-cifar10", {"channels": 8, "blocks": 2, "mixtures": 3}, 4),
}
"""Recipes of label-free models, made small, and their batch sizes."""


def train20(task: str, x: np.ndarray, y: np.ndarray, folder: Path) -> Arrays:
    """Mean losses and accuracy of ten epochs of two steps each, and sum and norm of every trained tensor.

    A ResNet's own rate is for larger batches; a tenth of it keeps rounding from growing over the steps.
    """
    images = tensor(x)
    data = Dataset(name="golden", split="train", x=images, y=tensor(y), classes=tuple("0123456789"), sha256="0" * 64)
    if task in GENERATIVE:
        name, sizes, batch = GENERATIVE[task]
        label_free = generative.read(name)
        schedule = replace(label_free.training, epochs=10, batch_size=batch, warmup_steps=2)
        plan = replace(label_free, model={**label_free.model, **sizes}, training=schedule)
        done = recipes.make(plan, _first(data, 2 * batch), out=folder, device=torch.device("cpu"))
    else:
        recipe = recipes.read(TRAININGS[task])
        schedule = replace(recipe.training, epochs=10, batch_size=8, lr=min(recipe.training.lr, 0.01))
        plan = replace(recipe, training=schedule)
        done = recipes.make(plan, _first(data, 16), out=folder, device=torch.device("cpu"))
    assert done.step == 20
    kept = ("classification", "auxiliary", "accuracy", "distance", "penalty", "bits_per_dim")
    history = {key: np.array([row[key] for row in done.history]) for key in kept if key in done.history[0]}
    weights = {
        key: value.double() for key, value in _tensors(folder / "last.safetensors").items() if value.is_floating_point()
    }
    return {
        **history,
        "weight_sum": np.array([float(value.sum()) for _, value in sorted(weights.items())]),
        "weight_norm": np.array([float(value.norm()) for _, value in sorted(weights.items())]),
    }


def _first(data: Dataset, n: int) -> Dataset:
    return replace(data, x=data.x[:n], y=data.y[:n])


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)
