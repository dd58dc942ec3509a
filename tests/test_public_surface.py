"""Public names of `import soap`, and names that must not hide a module."""

import ast
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import soap

PUBLIC = {
    "Defence", "FileError", "InputError", "JointModel", "Purified", "SOAP", "SoapError", "attacks", "auxiliary", "data",
    "evaluate", "evaluation", "export", "fit", "gradient_rules", "load", "load_prior", "models", "purifiers", "recipes",
    "training", "tune", "wrap", "zoo",
}  # fmt: skip
PACKAGES = [
    "attacks",
    "auxiliary",
    "data",
    "evaluation",
    "gradient_rules",
    "models",
    "purifiers",
    "recipes",
    "training",
]


def test_top_level_names():
    assert set(soap.__all__) == PUBLIC
    assert all(getattr(soap, name) is not None for name in PUBLIC)


def test_an_unknown_top_level_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        soap.no_such_name  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_of_a_package_have_docstrings(package):
    module = getattr(soap, package)
    assert module.__doc__
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing) and getattr(thing, "__module__", "").startswith("soap"):
            assert thing.__doc__, f"soap.{package}.{name} has no docstring"


def sources() -> list[Path]:
    return sorted(Path(soap.__file__).parent.rglob("*.py"))


def test_no_function_or_class_has_the_name_of_its_module():
    found = [
        f"{path.relative_to(Path(soap.__file__).parent)}: {node.name}"
        for path in sources()
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == path.stem
    ]
    assert found == []


def test_no_name_of_a_package_hides_a_submodule():
    found = []
    for package in (soap, *(getattr(soap, name) for name in PACKAGES)):
        for module in pkgutil.iter_modules(package.__path__):
            value = vars(package).get(module.name)
            if value is not None and not isinstance(value, ModuleType):
                found.append(f"{package.__name__}.{module.name}")
    assert found == []


def test_class_names_are_unique():
    seen: dict[str, str] = {}
    twice = []
    for path in sources():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in seen:
                    twice.append(f"{node.name}: {seen[node.name]} and {path}")
                seen[node.name] = str(path)
    assert twice == []


def test_export_is_a_function_that_writes_onnx_files():
    from soap.onnx_export import onnx_files

    assert soap.export is onnx_files.export


@pytest.mark.parametrize("name", ["paper", "report", "serve", "bench", "onnx_export", "cli"])
def test_packages_outside_the_top_level_import_alone(name):
    importlib.import_module(f"soap.{name}")
