"""The Triton model repository, parsed with Triton's own schema and compared with the ONNX files."""

import importlib.util
from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format

from soap.onnx_export import PARTS, write_triton_repository

ONNX_TYPES = {"TYPE_FP32": onnx.TensorProto.FLOAT}


def parsed(path):
    """A config.pbtxt by the schema of tritonclient, which is loaded without its gRPC client."""
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        pytest.skip("tritonclient, which contains Triton's schema, is not installed")
    file = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return text_format.Parse(path.read_text(), module.ModelConfig())


@pytest.fixture(scope="module")
def repository(fcn_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    assert [path.name for path in write_triton_repository(fcn_files, folder)] == [f"mnist-fcn-dr-{p}" for p in PARTS]
    return folder


def model_shape(tensor, *, batched):
    """The shape that the ONNX file gets, -1 for the batch; a scalar is [1] to a client."""
    sizes = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
    return [-1, *sizes] if batched else sizes


@pytest.mark.parametrize("part", PARTS)
def test_the_configuration_describes_the_file(repository, fcn_files, part):
    folder = repository / f"mnist-fcn-dr-{part}"
    config, model = parsed(folder / "config.pbtxt"), onnx.load(folder / "1" / "model.onnx")
    assert (folder / "1" / "model.onnx").read_bytes() == fcn_files.paths[part].read_bytes()
    assert (config.name, config.backend) == (folder.name, "onnxruntime")
    batched = part != "step"  # its step size has no batch dimension
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (32 * batched, batched)
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 64 * batched
    for described, tensors in ((config.input, model.graph.input), (config.output, model.graph.output)):
        assert [one.name for one in described] == [one.name for one in tensors]
        for one, tensor in zip(described, tensors, strict=True):
            dims = [dim.dim_value or -1 for dim in tensor.type.tensor_type.shape.dim]
            assert model_shape(one, batched=batched) == (dims or [1])
            assert one.dims  # Triton refuses an empty list
            kinds = type(one).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
            assert ONNX_TYPES[kinds[one.data_type].name] == tensor.type.tensor_type.elem_type


def test_a_second_export_adds_a_version(fcn_files, tmp_path):
    for _ in range(2):
        (folder, *_) = write_triton_repository(fcn_files, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "config.pbtxt"]
