"""The published data sets and the bundled `mnist-mini`: files, sizes, SHA-256 checksums and download addresses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from soap.data.binary_files import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    DIGITS,
    Arrays,
    read_cifar10,
    read_cifar100,
    read_mnist,
)


@dataclass(frozen=True)
class DataFile:
    """A file as the readers take it: unpacked, under its published name."""

    name: str
    split: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Remote:
    """A file as mirrors serve it: one gzipped `DataFile`, or a tar archive of all of them."""

    name: str
    size: int
    sha256: str

    @property
    def is_archive(self) -> bool:
        """Whether it is a tar archive."""
        return self.name.endswith(".tar.gz")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One data set that has a name.

    `folder` is its folder under the data root and inside its archive. `read` turns the files of a split into pixels and
    labels. `counts` are examples per split; `content` is the `Dataset.sha256` of each split, where known. A bundled
    data set has no mirrors, and the absolute path of its folder.
    """

    folder: str
    files: tuple[DataFile, ...]
    read: Callable[[Sequence[Path]], Arrays]
    classes: tuple[str, ...]
    counts: dict[str, int]
    content: dict[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()

    @property
    def bundled(self) -> bool:
        """Whether the files are part of this package."""
        return not self.mirrors

    def names(self, split: str) -> list[str]:
        """The file names of a split, in their published order."""
        return [file.name for file in self.files if file.split == split]

    def inside(self, remote: Remote) -> tuple[DataFile, ...]:
        """The files that `remote` contains."""
        return tuple(file for file in self.files if remote.is_archive or remote.name == f"{file.name}.gz")


CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"

# Sizes and SHA-256 of the gzipped files are those of the original distribution, which both mirrors serve unchanged
# (the original host now refuses most requests). The SHA-256 of the unpacked files were computed from files with the MD5
# 6bbc9ace898e44ae57da46a324031adb, a25bea736e30d166cdddb491f175f624, 2646ac647ad5339dbf082846283269ea
# and 27ae3e4e09519cfbb04c329615203637.
MNIST = Source(
    folder="mnist",
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    remotes=tuple(
        Remote(f"{name}-ubyte.gz", size, sha256)
        for name, size, sha256 in (
            ("train-images-idx3", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            ("train-labels-idx1", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            ("t10k-images-idx3", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            ("t10k-labels-idx1", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        )
    ),
    files=tuple(
        DataFile(f"{name}-ubyte", split, size, sha256)
        for name, split, size, sha256 in (
            (
                "train-images-idx3",
                "train",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            ("train-labels-idx1", "train", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            ("t10k-images-idx3", "test", 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            ("t10k-labels-idx1", "test", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        )
    ),
    read=read_mnist,
    classes=DIGITS,
    counts={"train": 60_000, "test": 10_000},
    content={
        "train": "40cd96c5472a6824bde006b1e17c64486989a0dc3ac893b5edcf9d8890eccc37",
        "test": "2f9e4fb066196c2bb4ef310ae2dbdf9588b42e2492952fa4052fb2348ac29a68",
    },
)

CIFAR10 = Source(
    folder="cifar-10-batches-bin",
    mirrors=(CIFAR_HOME,),
    remotes=(
        Remote(
            "cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        ),
    ),
    files=tuple(
        DataFile(name, split, 30_730_000, sha256)
        for name, split, sha256 in (
            ("data_batch_1.bin", "train", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2.bin", "train", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3.bin", "train", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4.bin", "train", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5.bin", "train", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch.bin", "test", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
    read=read_cifar10,
    classes=CIFAR10_CLASSES,
    counts={"train": 50_000, "test": 10_000},
    content={
        "train": "b402b623169bb1ca92a2870e787804bd68aa231b96691e710562c94e6ad76dc1",
        "test": "e3fa3fd311f9e3042923524fc75c9c884e1904c46139a26844dd367b962a68df",
    },
)

# The archive's MD5 is 03b5dce01913d631647c71ecec9e9cb8. No checksum of the two files inside could be confirmed
# on the files themselves: an import checks their exact size and the range of their labels.
CIFAR100 = Source(
    folder="cifar-100-binary",
    mirrors=(CIFAR_HOME,),
    remotes=(
        Remote(
            "cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
        ),
    ),
    files=(
        DataFile("train.bin", "train", 153_700_000, None),
        DataFile("test.bin", "test", 30_740_000, None),
    ),
    read=read_cifar100,
    classes=CIFAR100_CLASSES,
    counts={"train": 50_000, "test": 10_000},
)

# The first 1,000 training and 200 test digits of each class; `mini/LICENSE.txt` has the copyright and the licence,
# `tools/build_mnist_mini.py` rebuilds the files.
MINI = Source(
    folder=str(files("soap.data") / "mini"),
    files=(
        DataFile("train-images-idx3-ubyte.gz", "train", 7_840_016, None),
        DataFile("train-labels-idx1-ubyte.gz", "train", 10_008, None),
        DataFile("test-images-idx3-ubyte.gz", "test", 1_568_016, None),
        DataFile("test-labels-idx1-ubyte.gz", "test", 2_008, None),
    ),
    read=read_mnist,
    classes=DIGITS,
    counts={"train": 10_000, "test": 2_000},
    content={
        "train": "a51b5edda6263cfcd4d4b4600fa13dce0f070db1a950c559f62105bd381751a1",
        "test": "d76d28da9fd1ac1121d1f8aa18730d2a615280047fdcf0cb90fc59211af82edd",
    },
)
MINI_NAME = "mnist-mini"

SOURCES: dict[str, Source] = {"mnist": MNIST, "cifar10": CIFAR10, "cifar100": CIFAR100}
"""Those that can be downloaded."""
