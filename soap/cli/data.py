"""`soap data`: which data sets are there, and how to get the others."""

from pathlib import Path
from typing import Annotated

import typer

from soap import data as library
from soap.cli.options import DataRoot, PublishedName
from soap.cli.shell import INTERRUPTED, Shell, command
from soap.cli.tables import table
from soap.errors import InputError


def list_sets(shell: Shell, data_root: DataRoot = None) -> None:
    """Say which data sets are present, and where."""
    sets = library.status(data_root)
    view = table("name", "present", "train", "test", "folder", right=("train", "test"))
    for one in sets:
        state = "bundled" if one.bundled else "yes" if one.present else "no"
        counts = [f"{one.counts[split]:,}" for split in ("train", "test")]
        view.add_row(one.name, state, *counts, str(one.folder))
    content = [
        {
            "name": one.name,
            "present": one.present,
            "bundled": one.bundled,
            "folder": one.folder,
            "missing": one.missing,
            "counts": one.counts,
        }
        for one in sets
    ]
    shell.result({"root": library.root(data_root), "sets": content}, view)
    absent = [one.name for one in sets if not one.present]
    if absent:
        shell.say(f"Get one with `soap data download {absent[0]}`, or from files: `soap data import {absent[0]} DIR`.")


def download(
    shell: Shell,
    name: PublishedName,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", metavar="URL", help="Folder to fetch from instead of the official ones."),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Download a published data set, and check it against its pinned checksums.

    A download that was cut goes on where it stopped when the command is run again.
    """
    _refuse_bundled(name)
    try:
        with shell.progress() as show:
            folder = library.download(name, root=data_root, mirror=mirror, progress=show)
    except KeyboardInterrupt:
        shell.say("Stopped. What has arrived is kept: run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None
    shell.result({"name": name, "folder": folder}, f"{name} is in {folder}")


def import_set(
    shell: Shell,
    name: PublishedName,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where its files are: plain, gzipped, or in their archive.")
    ],
    data_root: DataRoot = None,
) -> None:
    """Copy a published data set from files already on this machine, once they have passed the checks."""
    _refuse_bundled(name)
    place = library.import_files(name, folder, root=data_root)
    shell.result({"name": name, "folder": place}, f"{name} is in {place}")


def _refuse_bundled(name: str) -> None:
    if any(one.bundled and one.name == name for one in library.status()):
        raise InputError(f"{name} is bundled with soap, so there is nothing to fetch; use it by its name.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="List, download or import data sets.", no_args_is_help=True)
    command(group, "data list", example="soap data list")(list_sets)
    command(group, "data download", example="soap data download cifar10")(download)
    command(group, "data import", example="soap data import mnist ~/Downloads/mnist")(import_set)
    app.add_typer(group, name="data")
