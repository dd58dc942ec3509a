"""`soap data`: list, download, import and export data sets."""

from pathlib import Path
from typing import Annotated

import typer

from soap import data as library
from soap.cli.console import EXIT_INTERRUPTED, Console, command, registered, table
from soap.cli.options import DataRoot, completion, data_names, option
from soap.data.sources import SOURCES
from soap.errors import InputError

group = typer.Typer(help="List, download, import or export data sets.", no_args_is_help=True)
registered.add_typer(group, name="data")

PublishedName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="mnist, cifar10 or cifar100.", autocompletion=completion(lambda: SOURCES)),
]


@command("data list", example="soap data list", app=group)
def list_sets(console: Console, data_root: DataRoot = None) -> None:
    """List the data sets: which are present, and where."""
    sets = library.status(data_root)
    view = table("name", "present", "train", "test", "folder", right=("train", "test"))
    for one in sets:
        state = "bundled" if one.bundled else "yes" if one.present else "no"
        counts = [f"{one.counts[split]:,}" for split in ("train", "test")]
        view.add_row(one.name, state, *counts, str(one.folder))
    fields = ("name", "present", "bundled", "folder", "missing", "counts")
    content = [{field: getattr(one, field) for field in fields} for one in sets]
    console.result({"root": library.root(data_root), "sets": content}, view)
    absent = [one.name for one in sets if not one.present]
    if absent:
        name = absent[0]
        console.info(f"Get one with `soap data download {name}`, or from local files: `soap data import {name} DIR`.")


@command("data download", example="soap data download cifar10", app=group)
def download(
    console: Console,
    name: PublishedName,
    mirror: Annotated[str | None, option("URL", "Folder to download from instead of the official ones.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Download a published data set, and verify its checksums.

    An interrupted download is resumed when the command is run again.
    """
    _check_not_bundled(name)
    try:
        with console.progress() as show:
            folder = library.download(name, root=data_root, mirror=mirror, progress=show)
    except KeyboardInterrupt:
        console.info("Stopped. The part received is kept: run the same command again to resume.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    console.result({"name": name, "folder": folder}, f"{name} is in {folder}")


@command("data import", example="soap data import mnist ~/Downloads/mnist", app=group)
def import_set(
    console: Console,
    name: PublishedName,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of its files: plain, gzipped, or in their archive.")
    ],
    data_root: DataRoot = None,
) -> None:
    """Copy a published data set from local files, after verifying their checksums."""
    _check_not_bundled(name)
    target = library.import_files(name, folder, root=data_root)
    console.result({"name": name, "folder": target}, f"{name} is in {target}")


@command("data export", example="soap data export mnist-mini --out digits --limit 10", app=group)
def export_set(
    console: Console,
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A data set.", autocompletion=completion(data_names, ".npz"))
    ],
    out: Annotated[Path, option("DIR", "New folder for the images.")],
    split: Annotated[str, option("NAME", "test or train.")] = "test",
    limit: Annotated[int | None, option("N", "Only the first N images.", default="all", min=1)] = None,
    data_root: DataRoot = None,
) -> None:
    """Write the images of a data set as PNG files in class folders, e.g. to try the other commands on them."""
    files = library.save_folder(library.load(name, split, root=data_root).take(limit), out)
    console.result({"name": name, "folder": out, "images": len(files)}, f"{len(files):,} images, e.g. {files[0]}")


def _check_not_bundled(name: str) -> None:
    if any(one.bundled and one.name == name for one in library.status()):
        raise InputError(f"{name} is bundled with soap and needs no download; use it by its name.")
