"""The worker: same answers alone and together, batches of the same, nothing for those who left, bounds kept."""

import threading
import time

import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import soap
from soap.attacks import PGD
from soap.evaluation import PAPER
from soap.serve.batching import Job, OverdueError, Worker
from soap.serve.limits import Limits
from soap.serve.operations import Mislead, Predict, Purify, perform
from soap.serve.problems import RequestError

PATIENT = 3600.0


class Bench:
    """A worker whose thread starts when the test says so, and the batches that it ran."""

    def __init__(self, model, **limits):
        self.batches = []
        self.worker = Worker(model, Limits(**limits), lambda *batch: self.batches.append(batch))

    def submit(self, x, operation, label=None, seconds=PATIENT):
        job = Job(operation=operation, x=x, label=label, deadline=time.monotonic() + seconds)
        return self.worker.submit(job)

    def run(self):
        self.worker.start()
        self.worker.close()  # finishes what was accepted


@pytest.fixture(scope="module")
def attacked(model):
    data = soap.data.load("mnist-mini").take(32)
    return PAPER["mnist"]["pgd"](model, data.x, data.y)


@pytest.mark.parametrize("name", ["mnist-fcn-dr", "mnist-cnn-dr"])
def test_labels_and_radii_are_equal_alone_and_in_a_batch(name, attacked):
    model = soap.load(name)
    for operation in (Predict(), Purify.of(model), Mislead(attack=PGD(eps=0.3, step_size=0.05, steps=5))):
        together = perform(operation, model, list(attacked), [None] * 32)
        for row in range(0, 32, 3):
            (alone,) = perform(operation, model, [attacked[row]], [None])
            assert alone.eps == together[row].eps
            assert alone.label == together[row].label
            assert torch.equal(alone.probabilities.argmax(1), together[row].probabilities.argmax(1))
            assert torch.allclose(alone.probabilities, together[row].probabilities, atol=1e-2)
            assert torch.allclose(alone.losses, together[row].losses, rtol=1e-2)


def test_requests_for_the_same_share_a_batch_and_each_gets_its_own_answer(model, attacked):
    bench = Bench(model, batch=4)
    looks = [bench.submit(x, Predict()) for x in attacked[:6]]
    clean = [bench.submit(x, Purify.of(model)) for x in attacked[:2]]
    bench.run()
    assert [(type(operation), size) for operation, size in bench.batches] == [(Predict, 4), (Predict, 2), (Purify, 2)]
    with torch.no_grad():
        assert [future.result().label for future in looks] == model(attacked[:6]).argmax(1).tolist()
    for future, x in zip(clean, attacked, strict=False):
        assert torch.equal(future.result().points[0], x)


def test_other_settings_and_other_costs_make_other_batches(model, attacked):
    bench = Bench(model, batch=8, steps=100)
    short = PGD(eps=0.3, step_size=0.1, steps=2)
    long = PGD(eps=0.3, step_size=0.1, steps=100)
    for x in attacked[:4]:
        bench.submit(x, Mislead(attack=short))
        bench.submit(x, Mislead(attack=long))
    bench.run()
    assert [(operation.attack, size) for operation, size in bench.batches] == [(short, 4), (long, 3), (long, 1)]


def test_labels_of_batch_mates_do_not_mix(model, attacked):
    operation = Mislead(attack=PGD(eps=0.3, step_size=0.1, steps=3))
    walks = perform(operation, model, [attacked[0]] * 3, [1, None, 2])
    own = int(walks[1].probabilities[0].argmax())
    assert [walk.label for walk in walks] == [1, own, 2]
    assert not torch.equal(walks[0].points[-1], walks[2].points[-1])


def test_the_first_waits_for_others_but_not_for_long(model, attacked):
    bench = Bench(model, batch=3, gather=30.0)
    bench.worker.start()
    futures = [bench.submit(x, Predict()) for x in attacked[:3]]
    assert [future.result(20).label for future in futures]  # a full batch does not wait out its 30 s
    lonely = bench.submit(attacked[3], Predict())
    with pytest.raises(TimeoutError):
        lonely.result(0.2)
    bench.worker.close()
    assert [size for _, size in bench.batches] == [3, 1]
    assert lonely.done()


def test_who_went_away_costs_nothing(model, attacked):
    bench = Bench(model, batch=4)
    futures = [bench.submit(x, Predict()) for x in attacked[:4]]
    assert futures[1].cancel()
    assert futures[2].cancel()
    bench.run()
    assert [size for _, size in bench.batches] == [2]
    assert futures[0].done()
    assert futures[3].done()


def test_a_full_queue_refuses_and_makes_room_when_someone_leaves(model, attacked):
    bench = Bench(model, queue=2, crowded=2)
    first = bench.submit(attacked[0], Predict())
    bench.submit(attacked[1], Predict())
    with pytest.raises(RequestError, match="queue") as refusal:
        bench.submit(attacked[2], Predict())
    assert refusal.value.status == 503
    assert refusal.value.response().headers["Retry-After"] == "1"
    first.cancel()
    bench.submit(attacked[2], Predict())
    bench.run()
    assert [size for _, size in bench.batches] == [2]


def test_an_overflow_leaves_few_who_wait_and_a_calm_second_makes_room_again(model, attacked, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("soap.serve.batching.time.monotonic", lambda: clock[0])
    bench = Bench(model, queue=6, crowded=2)
    waiting = [bench.submit(x, Predict()) for x in attacked[:6]]
    with pytest.raises(RequestError, match="queue"):
        bench.submit(attacked[6], Predict())
    for future in waiting[:4]:  # those who came last stay
        assert future.exception(0).status == 503
    assert not any(future.done() for future in waiting[4:])
    clock[0] += 0.5
    with pytest.raises(RequestError, match="queue"):
        bench.submit(attacked[6], Predict())
    waiting[4].cancel()
    bench.submit(attacked[6], Predict())
    clock[0] += 1.01
    for x in attacked[:4]:
        bench.submit(x, Predict())
    with pytest.raises(RequestError, match="queue"):
        bench.submit(attacked[6], Predict())


def test_a_request_that_is_being_decoded_has_its_place(model, attacked):
    bench = Bench(model, queue=2, crowded=2)
    with bench.worker.place() as place:
        bench.submit(attacked[0], Predict())
        with pytest.raises(RequestError, match="queue"), bench.worker.place():
            pass
        place.leave()
        bench.submit(attacked[1], Predict())
    with pytest.raises(RequestError, match="queue"):  # a place is left once
        bench.submit(attacked[2], Predict())


def test_a_batch_that_nobody_waits_for_any_more_is_stopped(model, attacked):
    bench = Bench(model)
    late = bench.submit(attacked[0], Mislead(attack=PGD(eps=0.3, step_size=0.01, steps=100)), seconds=0)
    fine = bench.submit(attacked[0], Predict())
    bench.run()
    with pytest.raises(OverdueError):
        late.result()
    assert fine.result().label >= 0  # and the worker goes on
    assert len(model.encoder._forward_pre_hooks) == 0


def test_a_failure_reaches_its_own_requests_alone(model, attacked):
    bench = Bench(model)
    broken = Purify(eps=-1.0, steps=5, gradients=1)  # `Purify.of` would have refused it
    bad, good = bench.submit(attacked[0], broken), bench.submit(attacked[0], Predict())
    bench.run()
    with pytest.raises(soap.InputError, match="eps"):
        bad.result()
    assert good.done()


def test_a_closed_worker_takes_nothing_more(model, attacked):
    bench = Bench(model)
    bench.run()
    with pytest.raises(RequestError, match="stopping"):
        bench.submit(attacked[0], Predict())
    assert not bench.worker.alive


def test_many_threads_at_once_get_their_own_answers(model, attacked):
    bench = Bench(model, batch=8, queue=64, gather=0.002)
    bench.worker.start()
    with torch.no_grad():
        wanted = model(attacked).argmax(1).tolist()
    found = [None] * 32

    def ask(row):
        found[row] = bench.submit(attacked[row], Predict()).result(30).label

    threads = [threading.Thread(target=ask, args=(row,)) for row in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.worker.close()
    assert found == wanted
    assert sum(size for _, size in bench.batches) == 32
    assert max(size for _, size in bench.batches) <= 8


@pytest.mark.parametrize("bad", [{"queue": 0}, {"batch": -1}, {"seconds": 0.0}, {"gather": -1.0}, {"body": 0}])
def test_bad_limits_are_refused(bad):
    with pytest.raises(soap.InputError, match=next(iter(bad))):
        Limits(**bad)


@pytest.mark.gpu
def test_labels_and_radii_are_equal_alone_and_in_a_batch_on_a_gpu(attacked):
    model = soap.load("mnist-cnn-dr", device="cuda")
    together = perform(Purify.of(model), model, list(attacked), [None] * 32)
    alone = [perform(Purify.of(model), model, [x], [None])[0] for x in attacked]
    same = [a.eps == b.eps and a.probabilities[-1].argmax() == b.probabilities[-1].argmax()
            for a, b in zip(alone, together, strict=True)]  # fmt: skip
    assert sum(same) >= 31  # another batch size is another kernel, whose rounding may turn a sign
