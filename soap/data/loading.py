"""One call for every data set: published, bundled, or the user's own."""

from pathlib import Path

from soap.data import mini
from soap.data.dataset import Dataset, check_split, dataset
from soap.data.folder import load_folder
from soap.data.location import locate
from soap.data.location import root as data_root
from soap.data.npz import load_npz
from soap.data.sources import SOURCES
from soap.errors import FileError, InputError, unknown


def load(name: str | Path, split: str = "test", *, root: Path | None = None) -> Dataset:
    """The data set `name`, as float32 in [0, 1] on the CPU.

    `name` is "mnist", "cifar10", "cifar100" (their files lie under the data root, see `soap.data.root`),
    "mnist-mini" (bundled), a folder of class folders, or an .npz file. A published set whose content is not
    what its authors published is refused.
    """
    check_split(split)
    if name == mini.NAME:
        return mini.load_mini(split)
    if isinstance(name, str) and name in SOURCES:
        return _published(name, split, data_root(root))
    path = Path(name)
    try:
        folder, exists = path.is_dir(), path.exists()
    except OSError as problem:
        raise FileError(f"cannot look at {path}: {problem.strerror or problem}.") from problem
    if folder:
        return load_folder(path, split)
    if path.suffix == ".npz":
        return load_npz(path, split)
    if exists:
        raise InputError(f"{path} is a file of another kind; wanted a folder of class folders, or an .npz file.")
    if isinstance(name, Path) or len(path.parts) > 1:
        raise FileError(f"{path}: no such file or folder; wanted a folder of class folders, or an .npz file.")
    raise unknown("data set", name, [mini.NAME, *SOURCES])


def _published(name: str, split: str, folder: Path) -> Dataset:
    source, paths = SOURCES[name], locate(name, split, folder)
    pixels, labels = source.read(paths)
    if len(pixels) != source.counts[split]:
        raise FileError(
            f"{name}/{split} in {paths[0].parent} holds {len(pixels)} images; wanted {source.counts[split]}. "
            f"A file is cut short or of another set; get it again with `soap data download {name}`."
        )
    data = dataset(name, split, pixels, labels, source.classes)
    wanted = source.content.get(split, data.sha256)
    if data.sha256 != wanted:
        raise FileError(
            f"{name}/{split} in {paths[0].parent} has fingerprint {data.sha256}; wanted {wanted}. "
            f"A file is damaged; get it again with `soap data download {name}`."
        )
    return data
