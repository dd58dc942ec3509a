"""Micro-batching: results equal alone and in a batch, equal operations share a batch, cancelled jobs, full queues."""

import threading
import time

import pytest
import torch
from starlette.exceptions import HTTPException

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import soap
from soap.attacks import PGD
from soap.evaluation import PAPER
from soap.serve import Limits
from soap.serve.batching import BatchWorker
from soap.serve.errors import error_response
from soap.serve.trajectories import AttackClassifier, Predict, Purify, run_operation

FAR_DEADLINE_S = 3600.0


class WorkerBench:
    """A worker whose thread the test starts, and the batches that it ran."""

    def __init__(self, model, **limits):
        self.batches = []
        self.worker = BatchWorker(model, Limits(**limits))
        self.worker.on_batch = lambda *batch: self.batches.append(batch)

    def submit(self, x, operation, label=None, seconds=FAR_DEADLINE_S):
        return self.worker.submit(self.worker.admit(time.monotonic() + seconds), operation, [x], label)

    def run(self):
        self.worker.start()
        self.worker.close()  # runs the submitted jobs


@pytest.fixture(scope="module")
def attacked(model):
    data = soap.data.load("mnist-mini").take(32)
    return PAPER["mnist"]["pgd"](model, data.x, data.y)


@pytest.mark.parametrize("name", ["mnist-fcn-dr", "mnist-cnn-dr"])
def test_labels_and_radii_are_equal_alone_and_in_a_batch(name, attacked):
    model = soap.load(name)
    for operation in (Predict(), Purify.of(model), AttackClassifier(attack=PGD(eps=0.3, step_size=0.05, steps=5))):
        together = run_operation(operation, model, list(attacked), [None] * 32)
        for row in range(0, 32, 3):
            (alone,) = run_operation(operation, model, [attacked[row]], [None])
            assert alone.eps == together[row].eps
            assert alone.label == together[row].label
            assert torch.equal(alone.probabilities.argmax(1), together[row].probabilities.argmax(1))
            assert torch.allclose(alone.probabilities, together[row].probabilities, atol=1e-2)
            assert torch.allclose(alone.losses, together[row].losses, rtol=1e-2)


def test_equal_operations_share_a_batch_and_each_job_gets_its_own_result(model, attacked):
    bench = WorkerBench(model, batch_size=4)
    predictions = [bench.submit(x, Predict()) for x in attacked[:6]]
    clean = [bench.submit(x, Purify.of(model)) for x in attacked[:2]]
    bench.run()
    assert [(type(operation), size) for operation, size in bench.batches] == [(Predict, 4), (Predict, 2), (Purify, 2)]
    with torch.no_grad():
        assert [future.result()[0].label for future in predictions] == model(attacked[:6]).argmax(1).tolist()
    for future, x in zip(clean, attacked, strict=False):
        assert torch.equal(future.result()[0].points[0], x)


def test_other_settings_run_separately_and_costly_operations_in_smaller_batches(model, attacked):
    bench = WorkerBench(model, batch_size=8)
    short = PGD(eps=0.3, step_size=0.1, steps=2)
    long = PGD(eps=0.3, step_size=0.1, steps=100)
    for x in attacked[:4]:
        bench.submit(x, AttackClassifier(attack=short))
        bench.submit(x, AttackClassifier(attack=long))
    bench.run()
    assert [(operation.attack, size) for operation, size in bench.batches] == [(short, 4), (long, 3), (long, 1)]


def test_labels_of_one_batch_do_not_mix(model, attacked):
    operation = AttackClassifier(attack=PGD(eps=0.3, step_size=0.1, steps=3))
    trajectories = run_operation(operation, model, [attacked[0]] * 3, [1, None, 2])
    own = int(trajectories[1].probabilities[0].argmax())
    assert [t.label for t in trajectories] == [1, own, 2]
    assert not torch.equal(trajectories[0].points[-1], trajectories[2].points[-1])


def test_first_job_waits_for_others_until_the_batch_is_full_or_time_is_over(model, attacked):
    bench = WorkerBench(model, batch_size=3, gather_s=30.0)
    bench.worker.start()
    futures = [bench.submit(x, Predict()) for x in attacked[:3]]
    assert [future.result(20)[0].label for future in futures]  # a full batch does not wait out its 30 s
    alone = bench.submit(attacked[3], Predict())
    with pytest.raises(TimeoutError):
        alone.result(0.2)
    bench.worker.close()
    assert [size for _, size in bench.batches] == [3, 1]
    assert alone.done()


def test_cancelled_jobs_are_not_run(model, attacked):
    bench = WorkerBench(model, batch_size=4)
    futures = [bench.submit(x, Predict()) for x in attacked[:4]]
    assert futures[1].cancel()
    assert futures[2].cancel()
    bench.run()
    assert [size for _, size in bench.batches] == [2]
    assert futures[0].done()
    assert futures[3].done()


def refused(bench):
    with pytest.raises(HTTPException, match="queue") as refusal:
        bench.worker.admit(time.monotonic() + FAR_DEADLINE_S)
    return refusal.value


def test_full_queue_refuses_until_a_job_is_cancelled(model, attacked):
    bench = WorkerBench(model, queue=2)
    bench.worker.seconds_per_image = 0.001
    first = bench.submit(attacked[0], Predict())
    bench.submit(attacked[1], Predict())
    refusal = error_response(refused(bench))
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (503, "1")
    first.cancel()
    bench.submit(attacked[2], Predict())
    bench.run()
    assert [size for _, size in bench.batches] == [2]


def test_overflow_bounds_the_queue_by_waiting_time_for_one_second(model, attacked, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("soap.serve.batching.time.monotonic", lambda: clock[0])
    bench = WorkerBench(model, queue=6, overload_wait_s=0.02)
    bench.worker.seconds_per_image = 0.011  # two images take about 0.02 s
    waiting = [bench.submit(x, Predict()) for x in attacked[:6]]
    refused(bench)
    for future in waiting[:4]:  # the newest jobs stay
        assert future.exception(0).status_code == 503
    assert not any(future.done() for future in waiting[4:])
    clock[0] += 0.5
    refused(bench)
    waiting[4].cancel()
    bench.submit(attacked[6], Predict())
    clock[0] += 1.01
    for x in attacked[:4]:
        bench.submit(x, Predict())
    refused(bench)


@pytest.mark.parametrize(("seconds_per_image", "expected"), [(0.5, 1), (0.02, 1), (0.006, 4), (1e-6, 8)])
def test_batches_of_an_overload_take_the_allowed_waiting_time(model, attacked, seconds_per_image, expected):
    bench = WorkerBench(model, queue=16, batch_size=8, overload_wait_s=0.02)
    bench.worker.seconds_per_image = seconds_per_image
    waiting = [bench.submit(x, Predict()) for x in attacked[:16]]
    refused(bench)
    assert sum(not future.done() for future in waiting) == expected


def test_estimate_approaches_the_seconds_per_image_of_batches(model, attacked, monkeypatch):
    clock = [100.0]

    def slow(*arguments):
        clock[0] += 0.03
        return run_operation(*arguments)

    bench = WorkerBench(model, batch_size=2, queue=100, overload_wait_s=1.0)
    for x in [*attacked, *attacked]:
        bench.submit(x, Predict())
    monkeypatch.setattr("soap.serve.batching.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("soap.serve.batching.run_operation", slow)
    bench.run()
    assert bench.worker.seconds_per_image == pytest.approx(0.015, rel=0.1)


def test_batches_of_a_burst_begin_small_and_double(model, attacked):
    bench = WorkerBench(model, batch_size=16)
    for x in attacked:
        bench.submit(x, Predict())
    bench.run()
    assert [size for _, size in bench.batches] == [4, 8, 16, 4]


def test_job_without_an_image_yet_holds_its_place_but_does_not_run(model, attacked):
    bench = WorkerBench(model, queue=2)
    bench.worker.seconds_per_image = 0.001
    decoding = bench.worker.admit(time.monotonic() + FAR_DEADLINE_S)
    first = bench.submit(attacked[0], Predict())
    refused(bench)
    bench.worker.start()
    assert first.result(30)[0].label >= 0  # the older job does not hold it up
    assert bench.worker.submit(decoding, Predict(), [attacked[1]]).result(30)[0].label >= 0
    bench.worker.close()
    assert [size for _, size in bench.batches] == [1, 1]


def test_batch_past_all_deadlines_is_stopped(model, attacked):
    bench = WorkerBench(model)
    late = bench.submit(attacked[0], AttackClassifier(attack=PGD(eps=0.3, step_size=0.01, steps=100)), seconds=0)
    fine = bench.submit(attacked[0], Predict())
    bench.run()
    with pytest.raises(HTTPException, match="longer than"):
        late.result()
    assert fine.result()[0].label >= 0  # the worker goes on
    assert len(model.encoder._forward_pre_hooks) == 0


def test_exception_reaches_only_the_jobs_of_its_batch(model, attacked):
    bench = WorkerBench(model)
    broken = Purify(eps=-1.0, steps=5, gradients=1)  # `Purify.of` refuses it
    bad, good = bench.submit(attacked[0], broken), bench.submit(attacked[0], Predict())
    bench.run()
    with pytest.raises(soap.InputError, match="eps"):
        bad.result()
    assert good.done()


def test_closed_worker_refuses_jobs(model, attacked):
    bench = WorkerBench(model)
    bench.run()
    with pytest.raises(HTTPException, match="stopping"):
        bench.submit(attacked[0], Predict())
    assert not bench.worker.is_alive()


def test_many_threads_get_their_own_results(model, attacked):
    bench = WorkerBench(model, batch_size=8, queue=64, gather_s=0.002)
    bench.worker.start()
    with torch.no_grad():
        wanted = model(attacked).argmax(1).tolist()
    found = [None] * 32

    def ask(row):
        found[row] = bench.submit(attacked[row], Predict()).result(30)[0].label

    threads = [threading.Thread(target=ask, args=(row,)) for row in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.worker.close()
    assert found == wanted
    assert sum(size for _, size in bench.batches) == 32
    assert max(size for _, size in bench.batches) <= 8


@pytest.mark.parametrize(
    "bad",
    [{"queue": 0}, {"batch_size": -1}, {"timeout_s": 0.0}, {"gather_s": -1.0}, {"overload_wait_s": 0.0}, {"body": 0}],
)
def test_bad_limits_are_refused(bad):
    with pytest.raises(soap.InputError, match=next(iter(bad))):
        Limits(**bad)


@pytest.mark.gpu
def test_labels_and_radii_are_equal_alone_and_in_a_batch_on_a_gpu(attacked):
    model = soap.load("mnist-cnn-dr", device="cuda")
    together = run_operation(Purify.of(model), model, list(attacked), [None] * 32)
    alone = [run_operation(Purify.of(model), model, [x], [None])[0] for x in attacked]
    same = [a.eps == b.eps and a.probabilities[-1].argmax() == b.probabilities[-1].argmax()
            for a, b in zip(alone, together, strict=True)]  # fmt: skip
    assert sum(same) >= 31  # another batch size uses another kernel, whose rounding may change a sign
