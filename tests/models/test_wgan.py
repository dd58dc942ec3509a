"""Generator and critic: shapes, sizes, and results that do not depend on the rest of the batch."""

import pytest
import torch

import soap
from soap.models import Critic, Generator


@pytest.mark.parametrize("inputs", [(1, 28, 28), (3, 32, 32), (1, 8, 12), (2, 4, 20)])
def test_generated_images_have_the_requested_shape_and_are_in_unit_range(inputs):
    generator, critic = Generator(latent=5, width=2, inputs=inputs), Critic(width=2, inputs=inputs)
    images = generator(3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(0)))
    assert images.shape == (7, *inputs)
    assert images.min() >= 0
    assert images.max() <= 1
    assert critic(images).shape == (7,)
    assert generator.input_shape == critic.input_shape == inputs


def test_default_generator_is_smaller_than_4_mb():
    tensors = Generator().state_dict().values()
    assert 3_500_000 < sum(tensor.nbytes for tensor in tensors) < 4_000_000


def test_result_does_not_depend_on_the_rest_of_the_batch():
    generator, critic = Generator(latent=5, width=2).double().eval(), Critic(width=2).double()
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = generator(z)
    for k in range(6):
        assert torch.allclose(generator(z[k : k + 1]), images[k : k + 1], atol=1e-12)
        assert torch.allclose(critic(images[k : k + 1]), critic(images)[k], atol=1e-12)


BAD = [
    (lambda: Generator(latent=0), "latent is 0"),
    (lambda: Generator(latent=2.5), "latent is 2.5"),
    (lambda: Generator(width=0), "width is 0"),
    (lambda: Critic(width=-1), "width is -1"),
    (lambda: Generator(inputs=(1, 28)), r"inputs is \(1, 28\); expected channels, height and width"),
    (lambda: Generator(inputs=(1, 28, 30)), r"inputs is \[1, 28, 30\]; .* multiples of 4"),
    (lambda: Critic(inputs=(0, 28, 28)), r"inputs is \[0, 28, 28\]"),
    (lambda: Critic(inputs=28), "inputs is 28"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_option_raises_an_error_that_names_it(call, message):
    with pytest.raises(soap.InputError, match=message):
        call()
