"""The loop of the model process, here in a thread: results, errors, its memory limit, its end."""

import multiprocessing
import sys
import threading
import time

import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
if sys.platform != "linux":
    pytest.skip("the service has a model process on Linux only", allow_module_level=True)

import soap
from soap.serve import model_process
from soap.serve.model_process import Work
from soap.serve.trajectories import Predict, Purify, run_operation

MODEL = "mnist-fcn-dr"
FAR_DEADLINE_S = 3600.0


class Loop:
    """The loop in a thread, at the other end of a connection."""

    def __init__(self, max_memory_mib=None, models=(MODEL,)):
        self.connection, theirs = multiprocessing.Pipe()
        unused, _ = multiprocessing.Pipe()
        arguments = (theirs, unused, models, None, max_memory_mib)
        self.thread = threading.Thread(target=model_process._serve, args=arguments, daemon=True)
        self.thread.start()

    def run(self, operation, x, seconds=FAR_DEADLINE_S):
        deadline, images = time.monotonic() + seconds, [one.numpy() for one in x]
        self.connection.send(
            Work(operation=operation, model=MODEL, images=images, labels=[None] * len(x), deadline=deadline)
        )
        return self.connection.recv()

    def ends(self):
        self.thread.join(30)
        return not self.thread.is_alive()


@pytest.fixture(scope="module")
def x():
    return soap.data.load("mnist-mini").x[:3]


def test_trajectories_equal_those_of_the_library(x):
    model, loop = soap.load(MODEL).requires_grad_(False), Loop()
    for operation in (Predict(), Purify.of(model)):
        found, expected = loop.run(operation, x), run_operation(operation, model, list(x), [None] * 3)
        for one, other in zip(found, expected, strict=True):
            assert (one["label"], one["eps"]) == (other.label, other.eps)
            for name in ("points", "logits", "losses"):
                assert torch.equal(torch.from_numpy(one[name]), getattr(other, name))
    loop.connection.close()
    assert loop.ends()


def test_an_error_is_sent_with_its_place_and_the_loop_goes_on(x):
    loop = Loop()
    bad = loop.run(Purify(eps=-1.0, steps=5, gradients=1), x)
    assert isinstance(bad, soap.InputError)
    assert bad.place.endswith(tuple("0123456789"))
    late = loop.run(Predict(), x, seconds=-1)
    assert late.status_code == 503
    assert len(loop.run(Predict(), x)) == 3


def test_a_process_that_used_too_much_memory_ends_after_its_batch(x):
    loop = Loop(max_memory_mib=1)
    assert len(loop.run(Predict(), x)) == 3
    assert loop.ends()


def test_models_that_cannot_be_loaded_are_left_to_the_parent_to_report():
    loop = Loop(models=("no-such-model",))
    assert not loop.connection.poll(0.5)
    loop.connection.close()
    assert loop.ends()
