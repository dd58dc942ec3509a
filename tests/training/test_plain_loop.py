"""An epoch of `soap.training.train` has the losses of an eager loop as usually written in PyTorch."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import soap
from soap import recipes
from soap._runtime import seeding
from soap._runtime.isolation import preserved_random_state
from soap.attacks import FGSM, PGD
from soap.bench import reference


def plain_epoch(model, data, schedule, attack):
    """The joint loss of each step; random numbers depend on (seed, step) as in `soap.training`."""
    steps, losses, generator = len(data) // schedule.batch_size, [], torch.Generator()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seeding.seed_for(schedule.seed, 0, 0)))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
    )
    for step in range(steps):
        seed = seeding.seed_for(schedule.seed, 1, step)
        generator.manual_seed(seed)
        torch.manual_seed(seed)
        chosen = order[step * schedule.batch_size : (step + 1) * schedule.batch_size]
        x, y = data.x[chosen], data.y[chosen]
        if attack is not None:
            one_step = {"gamma": attack.eps, "T": 1}
            settings = {"gamma": attack.step_size, "T": attack.steps} if isinstance(attack, PGD) else one_step
            x = reference.pgd(model.eval(), x, y, eps=attack.eps, **settings)
        model.train()
        optimiser.param_groups[0]["lr"] = schedule.rate((step + 1) / steps - 1e-9)
        if model.purifiable:
            parts = model.auxiliary.losses(model, x, y, generator)
            loss = parts.classification + model.auxiliary.alpha * parts.auxiliary
        else:
            loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("attack", [None, FGSM(eps=0.1), PGD(eps=0.1, step_size=0.05, steps=3)])
def test_the_first_losses_are_those_of_a_plain_loop(tmp_path, attack):
    recipe = recipes.read("mnist-fcn-no-def" if attack else "mnist-fcn-dr")
    data = soap.data.load("mnist-mini", "train").take(96)
    schedule = replace(recipe.training, epochs=1, batch_size=32)
    with preserved_random_state():
        losses = plain_epoch(recipes.build(recipe), data, schedule, attack)
    model = recipes.build(recipe)
    done = soap.training.train(model, data, schedule, out=tmp_path, attack=attack)
    alpha = model.auxiliary.alpha if model.purifiable else 0
    ours = done.history[0]["classification"] + alpha * done.history[0]["auxiliary"]
    assert len(losses) == 3
    assert sum(losses) / 3 == pytest.approx(ours, rel=0.1)  # equal to the last bits while draws are the same
