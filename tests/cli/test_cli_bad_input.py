"""Bad input through the command line: one clear line, the right exit code, nothing written, no traceback."""

import errno
import os

import numpy as np
import pytest
from PIL import Image

from soap import recipes, zoo
from soap._files import tensor_files

MODEL = "mnist-fcn-dr"


@pytest.fixture
def mess(tmp_path):
    """Invalid files in the folder where the commands run."""
    digit = np.zeros((28, 28), np.uint8)
    Image.fromarray(digit).save(tmp_path / "good.png")
    content = (tmp_path / "good.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.png").write_text("no image")
    Image.new("L", (20, 28)).save(tmp_path / "narrow.png")
    (tmp_path / "empty").mkdir()
    good = np.zeros((2, 1, 28, 28), np.float32)
    arrays = {
        "nan": {"x": np.full_like(good, np.nan)},
        "bytes": {"x": good + 255},
        "negative": {"x": good - 1},
        "shape": {"x": np.zeros((2, 3, 32, 32), np.float32)},
        "none": {"x": good[:0]},
        "whole": {"x": good.astype(np.int64)},
        "unlabelled": {"y": np.zeros(2, np.int64)},
        "labels": {"x": good, "y": np.array([0, 10])},
        "float-labels": {"x": good, "y": np.array([0.0, 1.0])},
        "short-labels": {"x": good, "y": np.array([0])},
        "objects": {"x": np.array([object()], dtype=object)},
        "fine": {"x": good, "y": np.array([0, 1])},
    }
    for name, content in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "fine.npz").read_bytes()[:100])
    weights = zoo.weights_path(MODEL).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(weights[:1000])
    (tmp_path / "text.safetensors").write_text("no weights")
    tensors, metadata = tensor_files.load_tensors(zoo.weights_path(MODEL))
    tensor_files.save_tensors(tmp_path / "bare.safetensors", tensors, {})
    tensor_files.save_tensors(
        tmp_path / "wrong.safetensors", tensors, {**metadata, "recipe": recipes.read("mnist-cnn-dr").text}
    )
    text = recipes.read(MODEL).text
    (tmp_path / "misspelt.toml").write_text(text.replace("epochs = 100", "epoch = 100"))
    (tmp_path / "broken.toml").write_text(text + "[")
    (tmp_path / "no-steps.toml").write_text(text.replace("steps = 5", "steps = 0"))
    (tmp_path / "dropout.toml").write_text(text.replace("dropout", "dropuot"))
    (tmp_path / "lines.jsonl").write_text("not json\n")
    return tmp_path


EVALUATE = f"evaluate {MODEL} --data mnist-mini --limit 4"
ATTACK = f"attack {MODEL} good.png"
PURIFY = f"purify {MODEL} good.png"
TRAIN = "train {} --data mnist-mini --limit 128 --epochs 1"

CASES = [
    # pictures
    (f"predict {MODEL} missing.png", 1, "missing.png: no such file"),
    (f"predict {MODEL} cut.png", 1, "cut.png: the image is damaged or incomplete"),
    (f"predict {MODEL} text.png", 1, "text.png: not an image in one of the formats PNG"),
    (f"predict {MODEL} narrow.png", 2, "narrow.png is 20 x 28 pixels, expected 28 x 28"),
    (f"predict {MODEL} empty", 2, "empty contains no image"),
    (f"predict {MODEL} nan.npz", 2, "nan.npz: the input has 1568 NaN or infinite values"),
    (f"predict {MODEL} bytes.npz", 2, "it looks like 0..255, divide by 255"),
    (f"predict {MODEL} negative.npz", 2, "span [-1, -1], expected [0, 1]"),
    (f"predict {MODEL} shape.npz", 2, "shape.npz: got a batch of shape [2, 3, 32, 32]"),
    (f"predict {MODEL} none.npz", 2, "empty batch"),
    (f"predict {MODEL} whole.npz", 2, "x is int64, expected uint8"),
    (f"predict {MODEL} unlabelled.npz", 2, "unlabelled.npz contains y; expected the images as 'x'"),
    (f"predict {MODEL} labels.npz", 2, "labels span 0..10"),
    (f"predict {MODEL} float-labels.npz", 2, "y is float64"),
    (f"predict {MODEL} short-labels.npz", 2, "shape [2], one class per sample"),
    (f"predict {MODEL} objects.npz", 1, "objects.npz: not a complete .npz of plain numbers"),
    (f"predict {MODEL} cut.npz", 1, "cut.npz: not a complete .npz"),
    (f"predict {MODEL} good.png missing.png", 1, "missing.png"),
    (f"{ATTACK} cut.png --out out", 1, "cut.png"),
    (f"{PURIFY} narrow.png --out out", 2, "--resize"),
    # models
    ("predict mnist-cnn good.png", 2, "unknown model 'mnist-cnn'; did you mean mnist-cnn-dr"),
    ("predict cifar10-wide-resnet28-lc good.png", 2, "train them with `soap train cifar10-wide-resnet28-lc`"),
    ("predict missing.safetensors good.png", 1, "missing.safetensors: no such file"),
    ("predict cut.safetensors good.png", 1, "cut.safetensors: not a complete safetensors file"),
    ("predict text.safetensors good.png", 1, "text.safetensors: not a complete safetensors file"),
    ("predict bare.safetensors good.png", 1, "contains no recipe"),
    ("predict wrong.safetensors good.png", 1, "weights and recipe do not belong together"),
    ("models mnist-fcn", 2, "did you mean mnist-fcn-dr"),
    ("models cut.safetensors", 1, "not a complete safetensors file"),
    # attacks and purifiers
    (f"{ATTACK} --attack pdg --out out", 2, "unknown attack 'pdg'; did you mean pgd or df?"),
    (f"{ATTACK} --eps -0.1 --out out", 2, "eps is -0.1, expected a number of at least 0"),
    (f"{ATTACK} --eps nan --out out", 2, "eps is nan"),
    (f"{ATTACK} --steps 0 --out out", 2, "steps is 0"),
    (f"{ATTACK} --attack fgsm --steps 3 --out out", 2, "steps is a setting of pgd only"),
    (f"{PURIFY} --steps 0 --out out", 2, "steps (T) is 0"),
    (f"{PURIFY} --eps-pfy -1 --out out", 2, "eps is -1.0"),
    (f"{PURIFY} --eps-pfy min-axu --out out", 2, "eps_pfy is 'min-axu', expected min-aux"),
    (f"{PURIFY} --eps-pfy oracle --out out", 2, "needs the true labels"),
    (f"{PURIFY} --step-size 0 --out out", 2, "step_size is 0.0"),
    (f"{PURIFY} --out good.png", 1, "good.png is a file, expected a folder"),
    (f"{ATTACK} --out good.png/sub", 1, "good.png"),
    # evaluation
    (f"{EVALUATE} --attack pgdd", 2, "unknown attack 'pgdd'; did you mean pgd?"),
    (f"{EVALUATE} --eps-pfy 1/x", 2, "eps_pfy is '1/x'"),
    (f"{EVALUATE} --split tset", 2, "unknown split 'tset'; did you mean test"),
    (f"{EVALUATE} --results good.png/rows.jsonl", 1, "good.png is a file, expected a folder"),
    (f"{EVALUATE} --results empty", 1, "empty: it is a folder, expected a file"),
    (f"{EVALUATE} --results lines.jsonl", 1, "lines.jsonl, line 1"),
    (f"{EVALUATE} --save-adversarial good.png", 1, "good.png is a file, expected a folder"),
    (f"evaluate {MODEL} --data mnist-mni", 2, "unknown data set 'mnist-mni'; did you mean mnist-mini"),
    (f"evaluate {MODEL} --data mnist", 1, "soap data download mnist"),
    (f"evaluate {MODEL} --data mnist-mini --limit 99999", 2, "expected 1 to 2000"),
    (f"evaluate {MODEL} --data shape.npz", 2, "shape.npz"),
    (f"evaluate {MODEL} --data cut.npz", 1, "cut.npz"),
    # training
    ("train mnist-fcn", 2, "unknown recipe 'mnist-fcn'; did you mean mnist-fcn-"),
    (TRAIN.format("missing.toml"), 1, "missing.toml: no such file"),
    (TRAIN.format("misspelt.toml"), 2, "unknown key in [training] 'epoch'; did you mean epochs"),
    (TRAIN.format("broken.toml"), 2, "broken.toml: not valid TOML"),
    (TRAIN.format("dropout.toml"), 2, "dropuot"),
    (TRAIN.format(MODEL) + " --precision fp16", 2, "precision is 'fp16', expected one of 'fp32', 'bf16'"),
    (TRAIN.format(MODEL) + " --precision bf16 --device cpu", 2, "precision 'bf16' is for GPUs"),
    (TRAIN.format(MODEL) + " --out good.png", 1, "good.png is a file, expected a folder"),
    (TRAIN.format(MODEL) + " --epochs 0", 2, "--epochs"),
    (f"train {MODEL} --data cifar10", 1, "soap data download cifar10"),
    (f"train {MODEL} --data shape.npz", 2, "shape.npz"),
    ("train cifar10-resnet18-lc --data mnist-mini --limit 128", 2, "this model takes [batch, 3, 32, 32]"),
]


@pytest.mark.parametrize(("line", "code", "said"), CASES, ids=[case[0] for case in CASES])
def test_bad_input_is_one_line_and_leaves_nothing(run, mess, line, code, said):
    before = {path: path.stat().st_mtime_ns for path in mess.rglob("*")}
    done = run(*line.split())
    assert said in done.err
    assert done.code == code
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in mess.rglob("*")} == before


def test_debug_prints_the_traceback(run, mess):
    done = run("predict", MODEL, "missing.png", "--debug")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err
    assert done.err.endswith("error: missing.png: no such file or folder; check the path.\n")


def test_a_folder_without_permission_is_an_error_before_the_work(run, mess, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    for line in (f"{PURIFY} --out out", f"{ATTACK} --out out", EVALUATE, TRAIN.format(MODEL)):
        done = run(*line.split())
        assert done.code == 1, line
        assert "no permission" in done.err
    assert not (mess / "out").exists()


def test_a_full_disk_is_an_error_and_leaves_no_partial_file(run, mess, monkeypatch):
    def full(self, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    done = run(*f"{PURIFY} --out out".split())
    assert done.code == 1
    assert "out/good.png: the disk is full" in done.err
    assert list((mess / "out").iterdir()) == []
