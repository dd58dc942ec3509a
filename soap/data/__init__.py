"""Images as tensors in [0, 1]: published data sets, the bundled digits, the user's own, and augmentation."""

from soap.data.acquire import download, import_files
from soap.data.augment import gaussian_noise, random_crop, random_flip, random_rotation
from soap.data.dataset import Dataset
from soap.data.loading import load
from soap.data.location import Presence, root, status

__all__ = [
    "Dataset",
    "Presence",
    "download",
    "gaussian_noise",
    "import_files",
    "load",
    "random_crop",
    "random_flip",
    "random_rotation",
    "root",
    "status",
]
