"""Data sets and loaders of torch.utils.data, read into memory once."""

import pytest
import torch
from torch.utils import data as torch_data

from soap import InputError
from soap.data.torch_data import read_torch_data

X = torch.rand(10, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 3
PAIRS = torch_data.TensorDataset(X, Y)


class Named(torch_data.Dataset):
    classes = ["cat", "dog", "eel"]  # noqa: RUF012

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], int(Y[index])


class Endless(torch_data.IterableDataset):
    def __iter__(self):
        yield X[0], 0


class Item(Named):
    def __init__(self, item):
        self.item = item

    def __getitem__(self, index):
        return self.item(index)


@pytest.mark.parametrize(
    "source",
    [
        PAIRS,
        Named(),
        torch_data.DataLoader(PAIRS, batch_size=4, shuffle=True, drop_last=True),
        torch_data.DataLoader(PAIRS, batch_size=None),
    ],
)
def test_all_samples_are_read_in_the_order_of_the_data_set(source):
    data = read_torch_data(source, classes=3)
    assert torch.equal(data.x, X)
    assert torch.equal(data.y, Y)


def test_classes_are_named_by_the_data_set_also_by_a_part_of_it():
    part = read_torch_data(torch_data.Subset(Named(), [1, 4]), classes=3)
    assert part.classes == ("cat", "dog", "eel")
    assert part.y.tolist() == [1, 1]
    assert read_torch_data(PAIRS, classes=3).classes == ("0", "1", "2")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Endless(), "has no length, expected a map-style data set"),
        (torch_data.DataLoader(PAIRS, sampler=torch_data.SubsetRandomSampler([1])), r"torch\.utils\.data\.Subset"),
        (Item(lambda index: {"image": X[index], "label": 0}), "got a dict of image, label.*expected pairs"),
        (Item(lambda index: (object(), 0)), "Convert images to tensors"),
        (Item(lambda index: (torch.zeros(1, 4, 4 + index), 0)), "all inputs of one shape"),
        (Item(lambda index: (X[index], 1 + index % 3)), "Do your labels count from 1"),
        (Item(lambda index: (X[index], 0.5)), "expected integers"),
        (Item(lambda index: (255 * X[index], 0)), "divide by 255"),
        (Item(lambda index: (2 * X[index] - 1, 0)), r"mean= and std= to soap\.wrap"),
        (Item(lambda index: (X[index], torch.eye(3)[0].long())), "expected int64 .10., one label for each example"),
    ],
)
def test_wrong_data_is_named(source, words):
    with pytest.raises(InputError, match=words):
        read_torch_data(source, classes=3)
