"""Bad input to a purifier raises one clear error, and nothing changes."""

import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap.auxiliary import Consistency, JointModel
from soap.models import Network

BAD = [
    (lambda m, x: soap.SOAP(m)(x * float("nan")), "NaN or infinite"),
    (lambda m, x: soap.SOAP(m)(x * float("inf")), "NaN or infinite"),
    (lambda m, x: soap.SOAP(m)(x * 255), r"it looks like 0\.\.255, divide by 255"),
    (lambda m, x: soap.SOAP(m)(x - 1), r"expected \[0, 1\]"),
    (lambda m, x: soap.SOAP(m)(x[0, 0, 0]), "add a batch dimension"),
    (lambda m, x: soap.SOAP(m)(x[:, :, :5]), r"this model takes \[batch, 1, 8, 8\]"),
    (lambda m, x: soap.SOAP(m)(x.repeat(1, 3, 1, 1)), r"got a batch of shape \[2, 3, 8, 8\]"),
    (lambda m, x: soap.SOAP(m)((x * 255).byte()), "divide 8-bit images by 255"),
    (lambda m, x: soap.SOAP(m)(x.double()), "float64 but the model's parameters are torch.float32"),
    (lambda m, x: soap.SOAP(m)(x.to("meta")), "input is on meta but the model is on cpu"),
    (lambda m, x: soap.SOAP(m)(x[:0]), "empty batch"),
    (lambda m, x: soap.SOAP(m)([0.5]), "got list"),
    (lambda m, x: soap.SOAP(m)(x, torch.tensor([0, 1])), "takes no labels"),
    (lambda m, x: soap.SOAP(m, eps="oracle")(x), "needs the labels"),
    (lambda m, x: soap.SOAP(m, eps="oracle").path(x), "no defence and has no path; use eps='min-aux'"),
    (lambda m, x: soap.SOAP(m).path(x - 2), r"expected \[0, 1\]\."),
    (lambda m, x: soap.SOAP(m, eps="oracle")(x, torch.tensor([0, 4])), r"labels span 0\.\.4"),
    (lambda m, x: soap.SOAP(m, eps="oracle")(x, torch.tensor([0, -1])), r"labels span -1\.\.0"),
    (lambda m, x: soap.SOAP(m, eps="oracle")(x, torch.tensor([0.0, 1.0])), "expected an int64 tensor"),
    (lambda m, x: soap.SOAP(m, eps="oracle")(x, torch.tensor([0])), r"shape \[2\]"),
    (lambda m, x: soap.SOAP(m, eps="min_aux"), "'min-aux', 'min-aux-batch', 'oracle'"),
    (lambda m, x: soap.SOAP(m, eps=-0.1), "eps is -0.1"),
    (lambda m, x: soap.SOAP(m, eps=float("nan")), "eps is nan"),
    (lambda m, x: soap.SOAP(m, eps=8), r"eps is 8, expected at most 1; images are in \[0, 1\]: did you mean 8/255\?"),
    (lambda m, x: soap.purifiers.Hedge(m, eps=8), r"eps is 8, expected at most 1.*did you mean 8/255\?"),
    (lambda m, x: soap.purifiers.Hedge(m, step_size=4), r"step_size is 4, .*did you mean 4/255\?"),
    (lambda m, x: soap.purifiers.AntiAdversary(m, step_size=2), r"step_size is 2, .*did you mean 2/255\?"),
    (lambda m, x: soap.purifiers.EnergyDescent(m, eps=16), r"eps is 16, .*did you mean 16/255\?"),
    (lambda m, x: soap.purifiers.EnergyDescent(m, eps="8/255"), "eps is '8/255', expected a number"),
    (lambda m, x: soap.SOAP(m)(2 * x - 1), r"mean= and std= to soap\.wrap"),
    (lambda m, x: soap.SOAP(m, grid=()), "grid is empty"),
    (lambda m, x: soap.SOAP(m, grid=(0.1, -0.2)), "eps is -0.2"),
    (lambda m, x: soap.SOAP(m, steps=0), r"steps \(T\) is 0"),
    (lambda m, x: soap.SOAP(m, steps=2.5), r"steps \(T\) is 2.5"),
    (lambda m, x: soap.SOAP(m, step_size=0.0), "step_size is 0.0"),
    (lambda m, x: soap.SOAP(m, step_size="8/255"), "step_size is '8/255', expected a number above 0"),
    (lambda m, x: soap.SOAP(nn.Flatten()), "got a Flatten, expected a network with an auxiliary task.*Hedge and Anti"),
    (lambda m, x: soap.SOAP(m, precision="fp16"), "'fp32', 'bf16'"),
    (lambda m, x: soap.SOAP(m, precision="bf16")(x), "'bf16' is for GPUs"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_raises(call, message):
    model, x = tiny_model(), noise_images(2)
    before = state_of(model)
    with pytest.raises(soap.InputError, match=message):
        call(model, x)
    assert state_of(model) == before


def test_a_model_without_task_or_settings_raises():
    plain = JointModel(tiny_model_network())
    with pytest.raises(soap.InputError, match="without an auxiliary task"):
        soap.SOAP(plain)
    unset = JointModel(tiny_model_network(), Consistency())
    with pytest.raises(soap.InputError, match="no purifier settings"):
        soap.SOAP(unset)


def tiny_model_network() -> Network:
    return Network(encoder=nn.Identity(), classifier=nn.Identity(), inputs=(2,), features=(2,), classes=2)
