import builtins
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from soap.data import load, save_folder
from soap.errors import FileError, InputError

RANDOM = np.random.default_rng(0)


def picture(path: Path, pixels: np.ndarray | None = None, mode: str | None = None) -> np.ndarray:
    """Save pixels [height, width(, 3)], random if none are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(0, 256, (5, 7, 3), np.uint8) if pixels is None else pixels
    image = Image.fromarray(pixels)
    image.convert(mode or image.mode).save(path)
    return pixels


def test_classes_are_sorted_and_files_shuffled(tmp_path: Path) -> None:
    made = [picture(tmp_path / name) for name in ("cat/2.png", "cat/10.bmp", "dog/1.PNG")]
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "dog" / "._1.png").write_bytes(b"what macOS leaves behind")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("nor this")
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert sorted(data.y.tolist()) == [0, 0, 1]
    assert (data.name, data.split) == (tmp_path.name, "test")
    dog = torch.tensor(made[2].transpose(2, 0, 1)).float() / 255
    assert torch.equal(data.x[data.y == 1], dog[None])


def test_the_first_and_the_last_files_contain_all_classes(tmp_path: Path) -> None:
    """In class order a limit would test one class only, and a holdout would remove a class from training."""
    for name in ("cat", "dog", "emu"):
        for number in range(30):
            picture(tmp_path / name / f"{number}.png")
    data = load(tmp_path)
    assert set(data.y[:20].tolist()) == set(data.y[-20:].tolist()) == {0, 1, 2}
    assert load(tmp_path).sha256 == data.sha256


@pytest.mark.parametrize(("suffix", "tolerance"), [("png", 0), ("bmp", 0), ("jpg", 0.1), ("jpeg", 0.1), ("webp", 0.1)])
def test_formats(tmp_path: Path, suffix: str, tolerance: float) -> None:
    smooth = np.linspace(0, 255, 16 * 16).reshape(16, 16).astype(np.uint8)
    picture(tmp_path / "a" / f"1.{suffix}", np.dstack([smooth, smooth.T, smooth]))
    got = load(tmp_path).x[0]
    assert got.shape == (3, 16, 16)
    assert (got[1] - torch.tensor(smooth.T) / 255).abs().max() <= tolerance


def test_images_are_grey_unless_one_has_colour(tmp_path: Path) -> None:
    grey = RANDOM.integers(0, 256, (5, 7), np.uint8)
    picture(tmp_path / "a" / "1.png", grey)
    picture(tmp_path / "a" / "2.png", grey, mode="LA")
    assert torch.equal(load(tmp_path).x, (torch.tensor(grey) / 255).expand(2, 1, 5, 7))
    picture(tmp_path / "b" / "1.png", mode="RGBA")
    data = load(tmp_path)
    assert data.x.shape == (3, 3, 5, 7)
    assert torch.equal(data.x[data.y == 0], (torch.tensor(grey) / 255).expand(2, 3, 5, 7))


def test_palette_and_black_and_white(tmp_path: Path) -> None:
    bits = RANDOM.integers(0, 2, (5, 7)).astype(bool)
    picture(tmp_path / "a" / "1.png", bits)
    assert torch.equal(load(tmp_path).x[0, 0], torch.tensor(bits).float())
    picture(tmp_path / "a" / "1.png", (bits * 255).astype(np.uint8), mode="P")
    assert torch.equal(load(tmp_path).x[0], torch.tensor(bits).float().expand(3, 5, 7))


def test_files_are_decoded_like_single_pictures(tmp_path: Path) -> None:
    """EXIF orientation, transparency and 16 bits are handled by the one picture reader."""
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    Image.new("L", (7, 5)).save(tmp_path / "a" / "1.png", exif=exif)
    Image.fromarray(np.full((7, 5), 40000, np.uint16)).save(tmp_path / "a" / "2.png")
    Image.new("LA", (5, 7)).save(tmp_path / "a" / "3.png")
    data = load(tmp_path)
    assert data.x.shape == (3, 1, 7, 5)
    assert sorted((data.x[:, 0, 0, 0] * 255).round().int().tolist()) == [0, 40000 >> 8, 255]


def test_same_content_as_the_bundled_digits(tmp_path: Path) -> None:
    """Digits saved as PNG files are read unchanged, in another order."""
    few = load("mnist-mini", "test").take(10)
    for place, (image, label) in enumerate(zip(few.x, few.y.tolist(), strict=True)):
        picture(tmp_path / str(label) / f"{place}.png", (image[0] * 255).round().byte().numpy())
    digits = load(tmp_path)
    order, wanted = digits.y.argsort(), few.y.argsort()
    assert torch.equal(digits.x[order], few.x[wanted])
    assert digits.classes == few.classes


def test_without_splits_both_names_return_all_images(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "train" / "1.png")  # a class of trains
    assert load(tmp_path, "train").sha256 == load(tmp_path, "test").sha256
    assert load(tmp_path, "train").classes == ("a", "train")


def test_splits_share_their_classes(tmp_path: Path) -> None:
    for name in "train/ant/1.png", "train/bee/1.png", "train/cow/1.png", "test/cow/9.png":
        picture(tmp_path / name)
    train, test = load(tmp_path, "train"), load(tmp_path, "test")
    assert train.classes == test.classes == ("ant", "bee", "cow")
    assert sorted(train.y.tolist()) == [0, 1, 2]
    assert test.y.tolist() == [2]


def no_classes(folder: Path) -> None:
    picture(folder / "1.png")


def empty_class(folder: Path) -> None:
    picture(folder / "a" / "1.png")
    (folder / "b").mkdir()


def two_sizes(folder: Path) -> None:
    picture(folder / "a" / "1.png")
    picture(folder / "a" / "2.png", np.zeros((7, 5, 3), np.uint8))


def no_test_split(folder: Path) -> None:
    picture(folder / "train" / "a" / "1.png")


WRONG = {
    "nothing": (lambda folder: None, "contains no class folders"),
    "no classes": (no_classes, "contains no class folders; expected one folder of images per class"),
    "empty class": (empty_class, "b contains no image"),
    "two sizes": (two_sizes, r"\.png is [57] x [57] and .*\.png [57] x [57] .*expected images of one size"),
    "no test split": (no_test_split, "contains train/ only; expected test/ beside it"),
}


@pytest.mark.parametrize(("make", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_folders(tmp_path: Path, make, says: str) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match=says):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.7])
def test_a_damaged_image_is_named_in_the_error(tmp_path: Path, suffix: str, kept: float) -> None:
    picture(tmp_path / "a" / f"0.{suffix}", RANDOM.integers(0, 256, (32, 32, 3), np.uint8))
    broken = tmp_path / "a" / f"1.{suffix}"
    picture(broken, RANDOM.integers(0, 256, (32, 32, 3), np.uint8))
    content = broken.read_bytes()
    broken.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(FileError, match=r"not an image|damaged or incomplete") as caught:
        load(tmp_path)
    assert str(broken) in str(caught.value)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a" / "1.png")
    real = builtins.__import__

    def absent(name: str, *args: object) -> object:
        if name == "PIL":
            raise ImportError("No module named 'PIL'")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match="needs Pillow"):
        load(tmp_path)


def test_a_saved_folder_is_read_back(tmp_path: Path) -> None:
    for split in ("test", "train"):
        some = load("mnist-mini", split).take(12)
        files = save_folder(some, tmp_path / "digits" / split)
        assert [file.parent.name for file in files] == [some.classes[label] for label in some.y.tolist()]
        again = load(tmp_path / "digits", split)
        order = [int(torch.cdist(x.flatten()[None], some.x.flatten(1)).argmin()) for x in again.x]
        assert sorted(order) == [*range(12)]
        assert torch.equal(again.x, some.x[order])
        assert torch.equal(again.y, some.y[order])
    with pytest.raises(InputError, match="not empty"):
        save_folder(some, tmp_path / "digits")
