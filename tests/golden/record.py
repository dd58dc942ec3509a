"""Write the golden data anew: `OMP_NUM_THREADS=1 python tests/golden/record.py [PART ...]`.

The parts are inputs, purifiers, attacks, runs and files; without a part, all of these. `new` adds the inputs, purifiers
and attacks that are not recorded yet, and keeps every other array. Record the rest only to pin a result that was
changed on purpose; a refactoring must pass with the data as it is.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import adapter
import cases
import numpy as np
import torch
from cases import HERE, Arrays, N


def write(name: str, found: dict[str, Arrays]) -> None:
    """An .npz file, a group of arrays a case; double precision is cut to single."""
    flat = {
        f"{case}/{field}": value.astype(np.float32) if value.dtype == np.float64 else value
        for case, fields in found.items()
        for field, value in fields.items()
    }
    flat = {key: value.astype(np.int16) if value.dtype == np.int64 else value for key, value in flat.items()}
    np.savez_compressed(HERE / name, **flat)
    cases.recorded.cache_clear()


def inputs() -> None:
    """The purifiers' inputs: of five images three are attacked by PGD, one by an auxiliary-aware attack, one is clean.

    The networks of SOAP are attacked; of CIFAR-10 there are two, which take turns.
    """
    found: dict[str, Arrays] = {}
    labels = {}
    for model in adapter.models():
        found[model] = _own_inputs(model)
        labels[model] = found[model].get("y")
    turn = np.arange(N)
    for group in ("mnist-fcn", "mnist-cnn"):
        x, y = adapter.digits(N)
        found[group] = {"x": _attacked(f"{group}-dr", x, y, turn)}
    networks = [f"{adapter.RESNET}-{task}" for task in ("lc", "rp")]
    parts = [_attacked(model, cases.synthetic(), labels[model], turn) for model in networks]
    found["cifar10"] = {"x": np.where((turn % 2 == 0)[:, None, None, None], *parts)}
    write("inputs.npz", found)


def _own_inputs(model: str) -> Arrays:
    """Which digits are attacked, or the labels of the synthetic images."""
    if adapter.family(model) == "mnist":
        return {"digits": _unsure(model)}
    return {"y": adapter.classify(model, cases.synthetic()).argmax(1)}


def _unsure(model: str) -> np.ndarray:
    """Places of the digits whose two largest logits are the closest."""
    logits = np.sort(adapter.classify(model, adapter.digits(cases.CANDIDATES)[0]), 1)
    return np.sort(np.argsort(logits[:, -1] - logits[:, -2])[:N])


def _attacked(model: str, x: np.ndarray, y: np.ndarray, turn: np.ndarray) -> np.ndarray:
    bytes_ = {
        name: (adapter.attack(model, name, x, y)["x"] * 255).round().astype(np.uint8) for name in ("pgd", "aware +1")
    }
    place = (turn // 2 % 5)[:, None, None, None]
    return np.where(place < 3, bytes_["pgd"], np.where(place == 3, bytes_["aware +1"], x))


def purifiers(known: Collection[str] = ()) -> dict[str, Arrays]:
    """Every purifier of every model, but those of known cases."""
    wanted: dict[str, Callable[[], Arrays]] = {
        f"{model}/{name}": partial(cases.purified, model, name) for model, name in cases.purifier_cases()
    }
    wanted |= {f"defense-gan/{case}": partial(cases.defense_gan, case) for case in cases.GAN}
    wanted |= {name: partial(cases.denoised, name) for name in cases.DENOISERS}
    wanted["pixeldefend"] = cases.pixel_defend
    return _computed(wanted, known)


def attacks(known: Collection[str] = ()) -> dict[str, Arrays]:
    """Every attack, but those of known cases."""
    wanted = {f"{model}/{name}": partial(cases.under_attack, model, name) for model, name in cases.attack_cases()}
    return _computed(wanted, known)


def _computed(wanted: Mapping[str, Callable[[], Arrays]], known: Collection[str]) -> dict[str, Arrays]:
    found = {}
    for case, compute in wanted.items():
        if case not in known:
            began = time.monotonic()
            found[case] = compute()
            print(f"{case}: {time.monotonic() - began:.1f} s")
    return found


def new() -> None:
    """What is not recorded yet."""
    before = cases.recorded("inputs.npz")
    write("inputs.npz", before | {model: _own_inputs(model) for model in adapter.models() if model not in before})
    for name, part in {"purified.npz": purifiers, "attacked.npz": attacks}.items():
        before = cases.recorded(name)
        write(name, before | part(before))


def runs() -> None:
    """Suites and rows."""
    with tempfile.TemporaryDirectory() as place:
        content = {
            "cpu": adapter.cpu(),
            "evaluations": {case: cases.evaluated(case, _folder(place, case)) for case in cases.EVALUATIONS},
            "suites": {case: cases.suite(case, _folder(place, case)) for case in cases.SUITES},
        }
    (HERE / "runs.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def files() -> None:
    """Trainings and ONNX files."""
    tasks = (*adapter.TRAININGS, *adapter.GENERATIVE)
    with tempfile.TemporaryDirectory() as place:
        found = {f"train/{task}": cases.trained(task, _folder(place, task)) for task in tasks}
        write("files.npz", {**found, "onnx": cases.exported(_folder(place, "onnx"))})


def _folder(place: str, name: str) -> Path:
    folder = Path(place) / name
    folder.mkdir()
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], None]] = {
        "inputs": inputs,
        "purifiers": lambda: write("purified.npz", purifiers()),
        "attacks": lambda: write("attacked.npz", attacks()),
        "runs": runs,
        "files": files,
        "new": new,
    }
    for name in sys.argv[1:] or [part for part in parts if part != "new"]:
        began = time.monotonic()
        parts[name]()
        print(f"{name}: {time.monotonic() - began:.1f} s")
    print({path.name: path.stat().st_size for path in sorted(HERE.iterdir()) if path.suffix in (".npz", ".json")})
