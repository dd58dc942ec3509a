"""`soap predict`, `soap attack` and `soap purify` on files: printed results match the files, which stay in the ball."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import soap
from soap.attacks import PGD
from soap.data.picture_files import COMPARISON_NAME, PictureFile, as_written, read_files

MODEL = "mnist-fcn-dr"


def levels(path):
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def labels(paths):
    """The model's predictions for files, read without soap."""
    x = torch.stack([torch.from_numpy(levels(path)).float()[None] / 255 for path in paths])
    return soap.load(MODEL)(x).argmax(1).tolist()


def test_predict_prints_the_results_of_model_and_purifier(run, digits, some):
    done = run("predict", MODEL, digits, "--json")
    model = soap.load(MODEL)
    purified = soap.SOAP(model)(some.x[:3])
    logits = model(some.x[:3]).detach()
    for k, image in enumerate(done.json["images"]):
        assert image["file"] == str(digits / str(k) / "digit.png")
        assert image["label"] == int(logits[k].argmax())
        assert image["confidence"] == pytest.approx(float(logits[k].softmax(0).max()), abs=1e-5)
        assert image["purified"]["label"] == int(model(purified.x)[k].argmax())
        assert image["purified"]["eps"] == pytest.approx(float(purified.eps[k]))
        assert image["purified"]["loss_after"] == pytest.approx(float(purified.loss_after[k]), rel=1e-4)
    assert "purified" not in run("predict", MODEL, digits, "--no-purify", "--json").json["images"][0]
    assert run("predict", MODEL, digits, "--batch-size", "2", "--json").json["images"][2]["label"] == image["label"]
    table = run("predict", MODEL, digits).out
    assert len([line for line in table.splitlines() if "digit.png" in line]) == 3


@pytest.mark.parametrize("attack", ["cw", "df"])
def test_rounding_to_8_bits_does_not_undo_a_minimal_attack(run, digits, tmp_path, attack):
    """Rounding towards the input would make all of them fail."""
    done = run("attack", MODEL, digits, "--attack", attack, "--out", "adv", "--json")
    assert all(image["fooled"] for image in done.json["images"])
    written = [tmp_path / "adv" / str(k) / "digit.png" for k in range(3)]
    assert labels(written) == [image["after"]["label"] for image in done.json["images"]]


def test_attack_writes_8_bit_pictures_inside_the_ball(run, digits, tmp_path):
    done = run("attack", MODEL, digits, "--out", "adv", "--json")
    assert done.code == 0
    written = [tmp_path / "adv" / str(k) / "digit.png" for k in range(3)]
    clean = [digits / str(k) / "digit.png" for k in range(3)]
    images = done.json["images"]
    assert [image["output"] for image in images] == [f"adv/{k}/digit.png" for k in range(3)]
    assert [image["label"] for image in images] == [0, 1, 2]
    assert {image["label_from"] for image in images} == {"its folder"}
    for before, after in zip(clean, written, strict=True):
        assert np.abs(levels(after) - levels(before)).max() == 76  # 0.3 of 255 is 76.5
    assert [image["after"]["label"] for image in images] == labels(written)
    assert sum(image["fooled"] for image in images) >= 2
    assert levels(tmp_path / "adv" / COMPARISON_NAME).shape[1] > 3 * 28
    # The output folder can be read again: the side-by-side image in it is skipped.
    again = run("purify", MODEL, "adv", "--out", "pure", "--json")
    assert again.code == 0
    assert [image["before"]["label"] for image in again.json["images"]] == labels(written)


def test_purify_writes_pictures_inside_the_radius_with_their_losses(run, digits, tmp_path):
    run("attack", MODEL, digits, "--out", "adv")
    done = run("purify", MODEL, "adv", "--out", "pure", "--eps-pfy", "51/255", "--step-size", "0.1", "--json")
    assert done.code == 0
    model = soap.load(MODEL)
    for k, image in enumerate(done.json["images"]):
        path = tmp_path / "pure" / str(k) / "digit.png"
        assert np.abs(levels(path) - levels(tmp_path / "adv" / str(k) / "digit.png")).max() == 51
        x = torch.from_numpy(levels(path)).float()[None, None] / 255
        assert image["eps"] == pytest.approx(0.2)
        assert image["after"]["label"] == int(model(x).argmax())
        assert image["loss_after"] == pytest.approx(model.auxiliary.loss(model, x).item(), rel=1e-4)
        assert image["loss_after"] < image["loss_before"]
    assert "steps=5" in done.json["purifier"]


def test_an_npz_file_stays_an_npz_file_of_floats(run, archive, some, tmp_path):
    done = run("attack", MODEL, archive, "--out", "adv", "--eps", "0.1", "--steps", "3", "--json")
    assert {image["label_from"] for image in done.json["images"]} == {"the file's y"}
    made = np.load(tmp_path / "adv" / "four.npz")
    expected = PGD(eps=0.1, step_size=0.01, steps=3)(soap.load(MODEL), some.x[:4], some.y[:4])
    assert np.allclose(made["x"], expected.numpy(), atol=1e-6)
    assert np.array_equal(made["y"], some.y[:4].numpy())
    assert run("purify", MODEL, "adv/four.npz", "--out", "pure").code == 0
    purified = soap.SOAP(soap.load(MODEL))(expected).x
    assert np.allclose(np.load(tmp_path / "pure" / "four.npz")["x"], purified.numpy(), atol=1e-6)
    assert np.array_equal(np.load(tmp_path / "pure" / "four.npz")["y"], made["y"])


def test_file_names_are_printed_without_markup(run, digits, tmp_path):
    odd = tmp_path / "[bold]a[b] :smile: é.png"
    odd.write_bytes((digits / "1" / "digit.png").read_bytes())
    assert odd.name in run("predict", MODEL, odd.name).out
    attacked = run("attack", MODEL, odd.name, "--out", "[red]adv")
    assert f"[red]adv/{odd.name}" in attacked.out
    assert f"[red]adv/{COMPARISON_NAME}" in attacked.err


def test_the_true_class_is_given_or_predicted(run, digits, tmp_path):
    one = digits / "1" / "digit.png"
    shown = run("attack", MODEL, one, "--label", "7", "--out", "a", "--json").json["images"][0]
    assert (shown["label"], shown["label_from"], shown["fooled"]) == (7, "--label", True)
    guessed = run("attack", MODEL, one, "--out", "b", "--json").json["images"][0]
    assert (guessed["label"], guessed["label_from"]) == (guessed["before"]["label"], "the model")
    assert "(from the model)" in run("attack", MODEL, one, "--out", "c").out
    wrong = run("attack", MODEL, one, "--label", "10", "--out", "d")
    assert wrong.code == 2
    assert "from 0 to 9" in wrong.err
    assert not (tmp_path / "d").exists()


def test_colour_is_converted_and_size_only_with_resize(run, digits, tmp_path):
    model = soap.load(MODEL)
    grey = Image.fromarray(levels(digits / "2" / "digit.png").astype(np.uint8))
    grey.convert("RGBA").save(tmp_path / "colour.png")
    grey.resize((56, 56), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    same = read_files([tmp_path / "colour.png", digits / "2" / "digit.png"], model, resize=False)
    assert torch.equal(same[0].x, same[1].x)
    refused = run("predict", MODEL, "large.png")
    assert refused.code == 2
    assert "large.png is 56 x 56 pixels, expected 28 x 28" in refused.err
    assert "--resize" in refused.err
    assert run("predict", MODEL, "large.png", "--resize", "--json").json["images"][0]["label"] == 2


def test_npz_layouts(tmp_path, some):
    model = soap.load(MODEL)
    pixels = (some.x[:2] * 255).round().byte().numpy()
    layouts = {"plain": pixels[:, 0], "first": pixels, "last": pixels.transpose(0, 2, 3, 1)}
    for name, x in {**layouts, "floats": some.x[:2].numpy()}.items():
        np.savez(tmp_path / f"{name}.npz", x=x)
        (got,) = read_files([tmp_path / f"{name}.npz"], model, resize=False)
        assert torch.equal(got.x, some.x[:2]), name
        assert got.y is None


def test_images_are_rounded_to_8_bits_and_npz_files_are_not():
    x = torch.tensor([10.0, 10.0]).reshape(1, 1, 1, 2) / 255
    changed = torch.tensor([12.9, 7.1]).reshape(1, 1, 1, 2) / 255
    image = PictureFile(path=Path("a.png"), output=Path("a.png"), x=x)
    floats = PictureFile(path=Path("a.npz"), output=Path("a.npz"), x=x)
    written = as_written([image, floats], torch.cat([changed, changed]))
    assert torch.equal(written[0].flatten(), torch.tensor([12.0, 8.0]) / 255)
    assert torch.equal(written[1:], changed)


def test_outputs_are_overwritten_only_with_force_and_inputs_never(run, digits, tmp_path):
    one = digits / "1" / "digit.png"
    before = one.read_bytes()
    assert run("attack", MODEL, one, "--out", "adv").code == 0
    made = (tmp_path / "adv" / "digit.png").read_bytes()
    refused = run("attack", MODEL, one, "--out", "adv", "--eps", "0.1")
    assert refused.code == 2
    assert "already exists" in refused.err
    assert (tmp_path / "adv" / "digit.png").read_bytes() == made
    assert run("attack", MODEL, one, "--out", "adv", "--eps", "0.1", "--force").code == 0
    assert (tmp_path / "adv" / "digit.png").read_bytes() != made
    for force in ((), ("--force",)):
        own = run("purify", MODEL, one, "--out", digits / "1", *force)
        assert own.code == 2
        assert "input file" in own.err
    assert one.read_bytes() == before
    clash = run("purify", MODEL, one, digits / "2" / "digit.png", "--out", "both")
    assert clash.code == 2
    assert "would both become" in clash.err
    assert not (tmp_path / "both").exists()


def test_dark_digits_on_white_are_named_and_inverted(run, digits, archive, some, tmp_path):
    for k in range(3):
        Image.fromarray((255 - levels(digits / str(k) / "digit.png")).astype(np.uint8)).save(tmp_path / f"{k}.png")
    np.savez(tmp_path / "dark.npz", x=1 - some.x[:4].numpy())
    dark, light = ("0.png", "1.png", "2.png", "dark.npz"), (*(digits / str(k) for k in range(3)), archive)
    expected, given = run("predict", MODEL, *light), run("predict", MODEL, *dark)
    assert "7 of 7 pictures are dark on light" in given.err
    assert "add --invert" in given.err
    assert "dark on light" not in expected.err
    inverted = run("predict", MODEL, *dark, "--invert", "--json")
    assert inverted.err == ""
    wanted = run("predict", MODEL, *light, "--json").json["images"]
    for got, one in zip(inverted.json["images"], wanted, strict=True):
        assert got["label"] == one["label"]
        assert got["confidence"] == pytest.approx(one["confidence"], abs=1e-4)
    assert "omit it" in run("predict", MODEL, *light, "--invert").err
    # What is written is as the model sees it.
    assert run("purify", MODEL, *dark, "--invert", "--out", "pure").code == 0
    assert "dark on light" not in run("predict", MODEL, "pure").err
