"""Images as tensors in [0, 1]: published, bundled and user data sets, downloads, and augmentation."""

from soap.data.augment import gaussian_noise, random_affine, random_crop, random_flip, random_rotation
from soap.data.dataset import Dataset
from soap.data.downloads import download, import_files
from soap.data.folder import save_folder
from soap.data.loading import Presence, load, status
from soap.data.loading import data_root as root

__all__ = [
    "Dataset",
    "Presence",
    "download",
    "gaussian_noise",
    "import_files",
    "load",
    "random_affine",
    "random_crop",
    "random_flip",
    "random_rotation",
    "root",
    "save_folder",
    "status",
]
