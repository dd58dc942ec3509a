"""Write the golden data anew: `OMP_NUM_THREADS=1 python tests/golden/record.py [inputs|purifiers|attacks|runs|files]`.

Record only to pin a result that was changed on purpose; a refactoring must pass with the data as it is.
"""

import json
import sys
import tempfile
import time
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
        if adapter.family(model) == "mnist":
            found[model] = {"digits": _unsure(model)}
        else:
            labels[model] = adapter.classify(model, cases.synthetic()).argmax(1)
            found[model] = {"y": labels[model]}
    turn = np.arange(N)
    for group in ("mnist-fcn", "mnist-cnn"):
        x, y = adapter.digits(N)
        found[group] = {"x": _attacked(f"{group}-dr", x, y, turn)}
    networks = [f"{adapter.RESNET}-{task}" for task in ("lc", "rp")]
    parts = [_attacked(model, cases.synthetic(), labels[model], turn) for model in networks]
    found["cifar10"] = {"x": np.where((turn % 2 == 0)[:, None, None, None], *parts)}
    write("inputs.npz", found)


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


def purifiers() -> None:
    """Every purifier of every model."""
    found = {f"{model}/{purifier}": cases.purified(model, purifier) for model, purifier in cases.purifier_cases()}
    found |= {f"defense-gan/{case}": cases.defense_gan(case) for case in cases.GAN}
    write("purified.npz", {**found, "pixeldefend": cases.pixel_defend()})


def attacks() -> None:
    """Every attack."""
    found = {}
    for model, name in cases.attack_cases():
        began = time.monotonic()
        found[f"{model}/{name}"] = cases.under_attack(model, name)
        if time.monotonic() - began > 1:
            print(f"{model}, {name}: {time.monotonic() - began:.1f} s")
    write("attacked.npz", found)


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
    parts = {"inputs": inputs, "purifiers": purifiers, "attacks": attacks, "runs": runs, "files": files}
    for name in sys.argv[1:] or parts:
        began = time.monotonic()
        parts[name]()
        print(f"{name}: {time.monotonic() - began:.1f} s")
    print({path.name: path.stat().st_size for path in sorted(HERE.iterdir()) if path.suffix in (".npz", ".json")})
