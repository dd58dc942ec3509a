"""A full, read-only or forbidden disk gives one clear error, and existing files stay intact."""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from counting import LONG, amount, count
from killable_runs import suite_images
from tiny import tiny_model
from torch import nn

import soap
from soap._files import tensor_files
from soap.errors import FileError
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.evaluation.transfer import evaluate_transfer
from soap.results import Row, Store
from soap.training import checkpoint

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform != "linux", reason="needs mounts and limits of Linux")]

PAGE = 4096
SHARES = range(1, 121) if LONG else (1, 10, 25, 50, 75, 90, 99, 120)
"""Free space for a checkpoint, in per cent of its size."""


@contextlib.contextmanager
def mounted(size: int) -> Iterator[Path]:
    """Mount a file system of `size` bytes in memory; skip the test if that is not permitted."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "soap-chaos", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("needs root and the right to mount a file system")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def network(value: float) -> nn.Module:
    """Return about 300 kB of weights, all equal to `value`."""
    model = nn.Linear(280, 280)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def save(folder: Path, value: float) -> None:
    checkpoint.save(folder, network(value), extra={}, state={"step": int(value)}, identity={})


def values(folder: Path) -> dict[str, float]:
    """Return the value of all weights for each checkpoint in the folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        tensors, _ = tensor_files.load_tensors(path)
        (value,) = {float(number) for tensor in tensors.values() for number in (tensor.min(), tensor.max())}
        found[path.name] = value
    return found


def fill_disk(folder: Path, left: int) -> None:
    """Fill the file system except for `left` bytes."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / ".filling").write_bytes(bytes(max(0, free - left)))


def save_with_limited_space(save_again: Callable[[], None], folder: Path, fits: bool, advice: str) -> str:
    """Save a third checkpoint with limited space; return what went wrong, or an empty text."""
    try:
        save_again()
        message = None
    except FileError as error:
        message = str(error)
    (folder / ".filling").unlink(missing_ok=True)
    last = 3.0 if fits else 2.0
    expected = {checkpoint.NAME: last, checkpoint.PREVIOUS: last - 1}
    if (message is None) != fits or (message is not None and advice not in message):
        return f"raised {message!r}"
    return "" if values(folder) == expected else f"contains {values(folder)}"


def test_full_disk_keeps_the_last_two_checkpoints():
    failures = []
    with mounted(PAGE * 1000) as folder:
        for share in SHARES:
            for path in folder.iterdir():
                path.unlink()
            save(folder, 1.0)
            save(folder, 2.0)
            size = -(-(folder / checkpoint.NAME).stat().st_size // PAGE) * PAGE
            fill_disk(folder, size * share // 100)
            problem = save_with_limited_space(
                lambda: save(folder, 3.0), folder, share >= 100, "the disk is full; free some space"
            )
            failures += [f"space for {share} %: {problem}"] if problem else []
    promise = "a full disk (space for 1 % to 120 % of a checkpoint): one clear error, the last two checkpoints intact"
    count(promise, len(SHARES), failures)


def test_file_size_limit_keeps_the_last_two_checkpoints(tmp_path):
    failures = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for share in SHARES:
        save(tmp_path, 1.0)
        save(tmp_path, 2.0)
        size = (tmp_path / checkpoint.NAME).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * share // 100, before[1]))
        try:
            problem = save_with_limited_space(
                lambda: save(tmp_path, 3.0), tmp_path, share >= 100, "larger than this system allows"
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        failures += [f"{share} %: {problem}"] if problem else []
        for path in tmp_path.iterdir():
            path.unlink()
    count(
        "a file size limit of 1 % to 120 % of a checkpoint: one clear error, the last two checkpoints intact",
        len(SHARES),
        failures,
    )


def a_row() -> Row:
    return evaluate_transfer(tiny_model(), suite_images(5), {"fgsm": soap.attacks.FGSM(eps=0.1)}, [])[0]


def test_full_disk_keeps_earlier_rows_and_writes_no_partial_row():
    row, failures = a_row(), []
    with mounted(PAGE * 100) as folder:
        trials = amount(4, 40)
        for number in range(trials):
            store = Store(folder / "rows.jsonl")
            store.path.unlink(missing_ok=True)
            for _ in range(1 + number):
                store.append(row)
            before = store.path.read_bytes()
            fill_disk(folder, 0)
            while True:  # the last page of the store may have space for a row or two
                try:
                    store.append(row)
                    before = store.path.read_bytes()
                except FileError as error:
                    if "the disk is full" not in str(error) or store.path.read_bytes() != before:
                        failures.append(f"{number + 1} rows: {error}")
                    break
            (folder / ".filling").unlink()
            store.append(row)
    count("a full disk: earlier rows are kept, no partial row is written", trials, failures)


def test_full_disk_leaves_a_suite_run_unchanged():
    none = np.empty(0, np.int64)
    noise = np.random.default_rng(0).random((50, 1, 28, 28), np.float32)
    batch = AttackedBatch(rows=none, x=noise, defended=none, bare=none, seconds=0.0)
    with mounted(PAGE * 100) as folder:
        run = RunFolder(folder)
        run.write_batch(0, 0, batch)
        fill_disk(folder, PAGE * 4)
        with pytest.raises(FileError, match=r"0001\.npz: the disk is full"):
            run.write_batch(0, 1, batch)
        assert run.read_batch(0, 1) is None
        assert np.array_equal(run.read_batch(0, 0).x, noise)
        assert [path.name for path in (folder / "attempts" / "00").iterdir()] == ["0000.npz"]


def forbidden_writes(folder: Path, row: Row, advice: str) -> list[str]:
    """Try three writers on a folder without write access; return those that succeed or raise another error."""
    none = np.empty(0, np.int64)
    batch = AttackedBatch(rows=none, x=np.empty(0, np.float32), defended=none, bare=none, seconds=0.0)
    found = []
    for write in (
        lambda: save(folder, 2.0),
        lambda: Store(folder / "rows.jsonl").append(row),
        lambda: RunFolder(folder).write_batch(None, 0, batch),
    ):
        try:
            write()
            found.append("written")
        except FileError as error:
            found += [] if advice in str(error) else [str(error)]
    return found


def test_read_only_disk_is_one_clear_error():
    row = a_row()
    with mounted(PAGE * 1000) as folder:
        save(folder, 1.0)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        failures = forbidden_writes(folder, row, "the file system is read-only; choose another folder")
        assert values(folder) == {checkpoint.NAME: 1.0}
    count("a read-only disk: one clear error, old files intact", 3, failures)


def test_folder_of_another_user_is_one_clear_error():
    row = a_row()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, 1.0)
        root = os.geteuid() == 0
        folder.chmod(0o555)
        if root:
            os.seteuid(65534)  # nobody: root ignores permissions
        try:
            failures = forbidden_writes(folder, row, "no permission; choose a folder you may write to")
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)
        assert values(folder) == {checkpoint.NAME: 1.0}
    count("a folder of another user: one clear error, old files intact", 3, failures)


COMMANDS = {
    "train": "train mnist-fcn-no-def --data mnist-mini --limit 200 --epochs 1 --device cpu --out",
    "evaluate": "evaluate mnist-fcn-dr --data mnist-mini --limit 10 --attack fgsm --device cpu --results",
}


@pytest.mark.parametrize("command", COMMANDS if LONG else ["train"])
def test_commands_on_a_full_disk_end_with_one_line_and_exit_code_1(command):
    with mounted(PAGE * 40) as folder:
        old = folder / "old"
        old.write_text("mine")
        fill_disk(folder, PAGE * 20 if command == "train" else 0)  # space for the recipe, not for the weights
        done = subprocess.run(
            [sys.executable, "-m", "soap", *COMMANDS[command].split(), str(folder / "new")],
            capture_output=True,
            text=True,
            check=False,
        )
        message = done.stderr
        explained = done.returncode == 1 and "the disk is full; free some space and run the command again" in message
        half = [path for path in folder.rglob("*") if path.suffix in (".safetensors", ".unfinished")]
        failures = (
            [] if explained and not half and old.read_text() == "mine" and "Traceback" not in message else [message]
        )
    count(f"`soap {command}` on a full disk: one line, exit code 1, old files intact", 1, failures)
