"""What a user installs: the lock, the Makefile, the wheel in an empty environment, the core on its own."""

import importlib
import importlib.metadata as metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import jaxtyping
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import soap

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PINS = dict(line.split("==") for line in LOCK.read_text().splitlines() if line and not line.startswith("#"))
# A user's shell: nothing of this clone on the path, and no make around it.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
}


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """The standard output of a command that must end with `code`; both streams are shown when it does not."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == code, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


# --- The lock ---------------------------------------------------------------------------------------------------


def test_every_line_of_the_lock_is_one_exact_public_version() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)] == []
    assert len({canonicalize_name(name) for name in PINS}) == len(lines)
    assert PINS["torch"] == "2.13.0"


def test_the_lock_satisfies_every_direct_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    direct = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    direct += [requirement for extra in extras.values() for requirement in extra]
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    for requirement in map(Requirement, direct):
        if requirement.name == project["project"]["name"]:  # an extra that takes in others
            assert requirement.extras <= extras.keys()
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


# --- The Makefile -----------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone, in a folder with a space, whose `.venv` has been installed."""
    folder = tmp_path / "my clone"
    (folder / ".venv").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
        os.utime(folder / name, (1000, 1000))
    (folder / ".venv" / ".installed").touch()
    return folder


@pytest.mark.parametrize("target", ["test", "demo"])
def test_make_installs_when_the_lock_changed_and_only_then(clone: Path, target: str) -> None:
    assert "pip install" not in run("make", "--dry-run", target, cwd=clone)
    os.utime(clone / ".venv" / ".installed", (500, 500))
    planned = run("make", "--dry-run", target, cwd=clone)
    installs = [line for line in planned.splitlines() if "pip install" in line]
    assert "torch==2.13.0" in installs[0]
    assert installs[1].endswith("--no-deps -r requirements.lock")


def test_make_without_a_suitable_python_says_what_it_wants(clone: Path) -> None:
    (clone / ".venv" / ".installed").unlink()
    message = run("make", "test", "PYTHON=no-such-python", cwd=clone, code=2)
    assert "no-such-python" in message
    assert "Python 3.11 or newer" in message
    assert not (clone / ".venv" / ".installed").exists()


# --- The wheel --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an empty environment outside the clone into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("empty environment")
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", f"torch=={PINS['torch']}", cwd=folder)
    run(*pip, "install", "--quiet", wheel, "--constraint", LOCK, cwd=folder)
    run(*pip, "check", cwd=folder)
    return programs


@pytest.mark.parametrize(
    "pattern",
    [
        r"soap/py\.typed",
        r"soap/recipes/.+\.toml",
        r"soap/zoo/.+\.safetensors",
        r"soap/data/mini/.+\.gz",
        r"soap/data/mini/LICENSE.*",
        r"soap_defense-[^/]+\.dist-info/licenses/LICENSE",
    ],
)
def test_the_wheel_holds(wheel: Path, pattern: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if re.fullmatch(pattern, name)], names


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = {file.relative_to(ROOT).as_posix() for file in (ROOT / "soap").rglob("*") if file.is_file()}
    tree = {path for path in tree if not path.startswith("soap/serve/static/vendor/")}  # fetched by `make browser`
    assert inside == {name for name in tree if "__pycache__" not in name}


def test_the_command_runs_from_the_wheel(installed: Path) -> None:
    assert soap.__version__ in run(installed / "soap", "--version", cwd=installed)
    assert soap.__version__ in run(installed / "python", "-m", "soap", "--version", cwd=installed)
    models = run(installed / "soap", "models", "--json", cwd=installed)
    assert json.loads(models)
    assert "mnist-fcn-dr" in models
    assert "mnist-cnn-dr" in models


PURIFY = """
import json, soap, soap.data
x = soap.data.load("mnist-mini", "test").take(1).x
model = soap.load("mnist-cnn-dr")
out = soap.SOAP(model, eps="min-aux")(x)
print(json.dumps({
    "file": soap.__file__, "shape": list(out.x.shape), "low": float(out.x.min()), "high": float(out.x.max()),
    "moved": float((out.x - x).abs().max()), "eps": float(out.eps[0]), "logits": list(model(out.x).shape),
}))
"""


def test_a_digit_is_purified_from_the_wheel(installed: Path) -> None:
    got = json.loads(run(installed / "python", "-c", PURIFY, cwd=installed))
    assert Path(got["file"]).is_relative_to(installed.parent)
    assert (got["shape"], got["logits"]) == ([1, 1, 28, 28], [1, 10])
    assert 0 <= got["low"] <= got["high"] <= 1
    assert got["moved"] <= got["eps"] + 1e-6


# --- The core on its own ----------------------------------------------------------------------------------------

CORE = ("soap", "soap.training", "soap.purifiers", "soap.evaluation", "soap.attacks", "soap.zoo", "soap.data")
IMPORT_WITHOUT = """
import importlib, sys
blocked = set(sys.argv[1].split(","))
class Blocker:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker)
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def needed_by(roots: Iterable[str]) -> set[str]:
    """The canonical names of the distributions that `roots` need, themselves included; extras left out."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += map(Requirement, metadata.requires(name) or [])
    return found


def foreign() -> str:
    """The installed modules that torch, numpy and safetensors do not bring; jinja2, which torch brings, too."""
    core = needed_by(["torch", "numpy", "safetensors"]) - {"jinja2", "markupsafe"}
    return ",".join(
        module
        for module, owners in metadata.packages_distributions().items()
        if module != "soap" and not core & {canonicalize_name(owner) for owner in owners}
    )


def test_the_core_imports_with_torch_numpy_and_safetensors_alone() -> None:
    run(sys.executable, "-c", IMPORT_WITHOUT, foreign(), *CORE, cwd=ROOT)


@pytest.mark.parametrize("name", ["typer", "rich", "PIL", "matplotlib.pyplot", "jinja2", "jaxtyping", "scipy"])
def test_what_the_core_must_not_need_is_really_blocked(name: str) -> None:
    assert f"{name.partition('.')[0]} is blocked" in run(
        sys.executable, "-c", IMPORT_WITHOUT, foreign(), name, cwd=ROOT, code=1
    )


# --- The shape checks of this very run --------------------------------------------------------------------------

PROBE = """
from soap.shapes import Float, Tensor

def double(x: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch 3"]:
    return 2 * x
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module `soap.probe` that lasts for one test."""
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setattr(soap, "__path__", [*soap.__path__, str(tmp_path)])
    yield importlib.import_module("soap.probe")
    del sys.modules["soap.probe"], vars(soap)["probe"]


def test_a_wrong_shape_is_caught_in_tests(probe: ModuleType) -> None:
    assert probe.double(torch.ones(2, 3)).sum() == 12
    with pytest.raises(jaxtyping.TypeCheckError, match="batch 3"):
        probe.double(torch.ones(2, 4))


def test_the_check_can_be_left_out(probe: ModuleType, unchecked_shapes: None) -> None:
    assert probe.double(torch.ones(2, 4)).sum() == 16
