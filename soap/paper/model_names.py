"""Display names of the paper's networks, methods and data sets, from recipe names."""

NETWORK_NAMES = {"fcn": "FCN", "cnn": "CNN", "resnet18": "ResNet-18", "wide-resnet28": "Wide-ResNet-28"}
METHOD_NAMES = {
    "no-def": "No Def",
    "fgsm-at": "FGSM AT",
    "pgd-at": "PGD AT",
    "dr": "SOAP-DR",
    "rp": "SOAP-RP",
    "lc": "SOAP-LC",
}


def network_of(model: str) -> str:
    """ "ResNet-18" from "cifar10-resnet18-lc"."""
    return NETWORK_NAMES[model.removeprefix(f"{model.split('-')[0]}-").removesuffix(f"-{_method(model)}")]


def method_of(model: str) -> str:
    """ "SOAP-LC" from "cifar10-resnet18-lc"."""
    return METHOD_NAMES[_method(model)]


def data_of(model: str) -> str:
    """ "CIFAR-10" from "cifar10-resnet18-lc"."""
    return "MNIST" if model.startswith("mnist") else "CIFAR-10"


def title_of(model: str) -> str:
    """ "SOAP-LC, ResNet-18" from "cifar10-resnet18-lc"."""
    return f"{method_of(model)}, {network_of(model)}"


def _method(model: str) -> str:
    return next(method for method in METHOD_NAMES if model.endswith(f"-{method}"))
