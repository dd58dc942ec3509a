"""Installation: the lock file, the Makefile, the wheel in an empty environment, the core without extras."""

import functools
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
NOT_LOCKED = {"ray"}
"""Too large for the development environment; its tests are skipped there."""
PINS = dict(line.split("==") for line in LOCK.read_text().splitlines() if line and not line.startswith("#"))
# The environment of a user's shell: without this clone on the path and without the variables of make.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
}


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Run a command that must exit with `code`; return its stdout, or its stderr for a non-zero code."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == code, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


# --- The lock ---------------------------------------------------------------------------------------------------


def test_lock_pins_exact_public_versions() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)] == []
    assert len({canonicalize_name(name) for name in PINS}) == len(lines)
    assert PINS["torch"] == "2.13.0"


def test_lock_satisfies_every_direct_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    direct = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    direct += [requirement for extra in extras.values() for requirement in extra]
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    for requirement in map(Requirement, direct):
        if requirement.name == project["project"]["name"]:  # an extra that includes others
            assert requirement.extras <= extras.keys()
            continue
        if requirement.name in NOT_LOCKED:
            assert canonicalize_name(requirement.name) not in pins
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


# --- The Makefile -----------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in a folder with a space in its name, with an installed `.venv`."""
    folder = tmp_path / "my clone"
    (folder / ".venv").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
        os.utime(folder / name, (1000, 1000))
    (folder / ".venv" / ".installed").touch()
    return folder


@pytest.mark.parametrize("target", ["test", "demo"])
def test_make_installs_only_after_a_change_of_the_lock(clone: Path, target: str) -> None:
    assert "pip install" not in run("make", "--dry-run", target, cwd=clone)
    os.utime(clone / ".venv" / ".installed", (500, 500))
    planned = run("make", "--dry-run", target, cwd=clone)
    installs = [line for line in planned.splitlines() if "pip install" in line]
    assert "torch==2.13.0" in installs[0]
    assert installs[1].endswith("--no-deps -r requirements.lock")


def test_make_without_a_suitable_python_names_the_required_version(clone: Path) -> None:
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
    """The bin folder of an environment outside the clone with the wheel and what it requires, and nothing else.

    The requirements are links to the packages of this environment: to install torch again takes 40 s.
    """
    folder = tmp_path_factory.mktemp("empty environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", wheel, cwd=folder)
    (made,) = metadata.distributions(path=[str(packages)])
    for name in requirements_of(made.requires or []):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():  # of several distributions with one folder, e.g. a namespace
                (packages / top).symlink_to(distribution.locate_file(top))
    run(*pip, "check", cwd=folder)
    return folder / "bin"


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
def test_wheel_contains(wheel: Path, pattern: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if re.fullmatch(pattern, name)], names


def test_wheel_contains_exactly_the_files_of_the_package(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = {file.relative_to(ROOT).as_posix() for file in (ROOT / "soap").rglob("*") if file.is_file()}
    tree = {path for path in tree if not path.startswith("soap/serve/static/vendor/")}  # fetched by `make browser`
    assert inside == {name for name in tree if "__pycache__" not in name}


def test_command_runs_from_the_wheel(installed: Path) -> None:
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


def test_installed_wheel_purifies_a_digit(installed: Path) -> None:
    got = json.loads(run(installed / "python", "-c", PURIFY, cwd=installed))
    assert Path(got["file"]).is_relative_to(installed.parent)
    assert (got["shape"], got["logits"]) == ([1, 1, 28, 28], [1, 10])
    assert 0 <= got["low"] <= got["high"] <= 1
    assert got["moved"] <= got["eps"] + 1e-6


# --- The core without extras ------------------------------------------------------------------------------------

CORE = (
    "soap.attacks", "soap.auxiliary", "soap.data", "soap.defence", "soap.evaluation", "soap.gradient_rules",
    "soap.models", "soap.purifiers", "soap.recipes", "soap.training", "soap.zoo",
)  # fmt: skip
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
IMPORT_EACH = IMPORT_WITHOUT.replace(
    "    importlib.import_module(name)",
    """    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error)
""",
)


def requirements_of(roots: Iterable[str]) -> set[str]:
    """Return the canonical names of `roots` and of all distributions they require, without extras."""
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


@functools.cache
def outside_core() -> str:
    """Return the installed modules outside the requirements of torch, numpy and safetensors, and jinja2."""
    core = requirements_of(["torch", "numpy", "safetensors"]) - {"jinja2", "markupsafe"}
    return ",".join(
        module
        for module, owners in metadata.packages_distributions().items()
        if module != "soap" and not core & {canonicalize_name(owner) for owner in owners}
    )


def test_core_imports_with_torch_numpy_and_safetensors_only() -> None:
    run(sys.executable, "-c", IMPORT_WITHOUT, outside_core(), *CORE, cwd=ROOT)


def test_import_blocker_blocks_other_packages() -> None:
    names = ("typer", "rich", "PIL", "matplotlib.pyplot", "jinja2", "jaxtyping", "scipy")
    errors = run(sys.executable, "-c", IMPORT_EACH, outside_core(), *names, cwd=ROOT).splitlines()
    assert errors == [f"{name.partition('.')[0]} is blocked" for name in names]


# --- The shape checks of this test run -------------------------------------------------------------------------

PROBE = """
from dataclasses import dataclass

import torch
from soap.shapes import Float, Tensor

def double(x: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch 3"]:
    return 2 * x


def joined(x: Float[Tensor, "batch 3"], y: Float[Tensor, "batch 3"], twice: bool) -> Float[Tensor, "batch 3"]:
    return torch.cat([x, y]) if twice else x + y


def times(factor: int):
    def scaled(x: Float[Tensor, "batch 3"], twice: bool = False) -> Float[Tensor, "batch 3"]:
        return factor * (scaled(x).sum(0) if twice else x)

    return scaled


@dataclass
class Pair:
    x: Float[Tensor, "batch 3"]
    y: Float[Tensor, "batch"]

    @property
    def total(self) -> float:
        return self.x.sum()
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module `soap.probe` that exists for one test."""
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setattr(soap, "__path__", [*soap.__path__, str(tmp_path)])
    yield importlib.import_module("soap.probe")
    del sys.modules["soap.probe"], vars(soap)["probe"]


def test_wrong_shape_is_caught_in_tests(probe: ModuleType) -> None:
    assert probe.double(torch.ones(2, 3)).sum() == 12
    with pytest.raises(jaxtyping.TypeCheckError, match="batch 3"):
        probe.double(torch.ones(2, 4))


def test_axis_names_are_compared_between_arguments_and_with_the_result(probe: ModuleType) -> None:
    x = torch.ones(2, 3)
    assert probe.joined(x, x, False).shape == (2, 3)
    for wrong in ((x, x[:1]), (x[:1], x)):
        with pytest.raises(jaxtyping.TypeCheckError, match="parameter y"):
            probe.joined(*wrong, False)
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        probe.joined(x, x, True)
    assert probe.Pair(x, x[:, 0]).x is x
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter y"):
        probe.Pair(x, x[:1, 0])
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        probe.Pair(x, x[:, 0]).total  # noqa: B018


def test_functions_inside_a_function_share_checks_but_nothing_else(probe: ModuleType) -> None:
    two, three = probe.times(2), probe.times(3)
    x = torch.ones(2, 3)
    assert [scaled(x).sum() for scaled in (two, three, two)] == [12, 18, 12]
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter x"):
        three(torch.ones(2, 4))
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):  # also after a call of itself
        three(x, twice=True)


def test_shape_check_can_be_disabled(probe: ModuleType, unchecked_shapes: None) -> None:
    assert probe.double(torch.ones(2, 4)).sum() == 16
