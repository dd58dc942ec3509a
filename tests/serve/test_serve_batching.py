"""Micro-batching: results equal alone and in a batch, equal operations share a batch, cancelled jobs, full queues."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from service_process import wait_until
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

    def __init__(self, model, run=None, **limits):
        self.batches = []
        self.worker = BatchWorker(model, Limits(**limits), run)
        self.worker.on_batch = lambda *batch: self.batches.append(batch)

    def submit(self, x, operation, label=None, seconds=FAR_DEADLINE_S):
        self.worker.check_room()
        return self.worker.submit(self.worker.admit(time.monotonic() + seconds), operation, [x], label)

    def run(self):
        self.worker.start()
        self.worker.close()  # runs the submitted jobs

    def run_until(self, holds):
        self.worker.start()
        wait_until(holds)
        self.worker.close()


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
        bench.worker.check_room()
    return refusal.value


def test_full_queue_refuses_until_a_job_is_cancelled(model, attacked):
    bench = WorkerBench(model, queue=2)
    first = bench.submit(attacked[0], Predict())
    bench.submit(attacked[1], Predict())
    refusal = error_response(refused(bench))
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (503, "1")
    first.cancel()
    bench.submit(attacked[2], Predict())
    bench.run()
    assert [size for _, size in bench.batches] == [2]


def test_overflow_shortens_the_queue_for_one_second(model, attacked, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("soap.serve.batching.time.monotonic", lambda: clock[0])
    bench = WorkerBench(model, queue=6)
    waiting = [bench.submit(x, Predict()) for x in attacked[:6]]
    refused(bench)
    for future in waiting[:2]:  # the newest four jobs stay
        assert future.exception(0).status_code == 503
    assert not any(future.done() for future in waiting[2:])
    clock[0] += 0.5
    refused(bench)
    waiting[4].cancel()
    bench.submit(attacked[6], Predict())
    clock[0] += 1.01
    for x in attacked[:2]:
        bench.submit(x, Predict())
    refused(bench)


class SlowRun:
    """Runs batches that take as long as the test wants, by a clock of its own."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, self.arrive = 100.0, seconds, lambda: None
        monkeypatch.setattr("soap.serve.batching.time", SimpleNamespace(monotonic=lambda: self.now))

    def __call__(self, operation, model, images, labels, deadline):
        self.now += self.seconds(len(images))
        self.arrive()
        return run_operation(operation, model, images, labels)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(lambda n: 0.5, 1), (lambda n: 0.01 * n, 5), (lambda n: 0.02 + 0.005 * n, 6), (lambda n: 1e-6, 8)],
)
def test_batches_of_an_overload_take_the_allowed_time(model, attacked, monkeypatch, seconds, expected):
    run = SlowRun(monkeypatch, seconds)
    bench = WorkerBench(model, run=run, queue=40, batch_size=8, gather_s=0.0, overload_batch_s=0.0501)
    for _ in range(40):
        bench.submit(attacked[0], Predict())
    refused(bench)

    def arrive():
        for _ in range(50 if len(bench.batches) < 30 else 0):
            with contextlib.suppress(HTTPException):
                bench.submit(attacked[0], Predict())

    run.arrive = arrive
    bench.run_until(lambda: len(bench.batches) >= 30)
    assert {size for _, size in bench.batches[20:30]} in ({expected}, {expected, expected + 1})


def test_only_the_last_requests_before_a_batch_ends_are_admitted_during_an_overload(model, attacked, monkeypatch):
    """100 requests arrive during every batch; those that are admitted wait less than a tenth of a batch."""
    run = SlowRun(monkeypatch, lambda n: 0.05)
    bench = WorkerBench(model, run=run, queue=8, batch_size=4, gather_s=0.0, overload_batch_s=0.04)
    admitted = []

    def arrive():
        admitted.append([])
        for number in range(100 if len(admitted) < 6 else 0):
            with contextlib.suppress(HTTPException):
                bench.submit(attacked[0], Predict())
                admitted[-1].append(number)

    run.arrive = arrive
    bench.submit(attacked[0], Predict())
    bench.run_until(lambda: len(admitted) == 6)
    late = [number for numbers in admitted[2:] for number in numbers]
    assert late
    assert min(late) >= 90


def test_batches_of_a_burst_begin_small_and_double(model, attacked):
    bench = WorkerBench(model, batch_size=16)
    for x in attacked:
        bench.submit(x, Predict())
    bench.run()
    assert [size for _, size in bench.batches] == [4, 8, 16, 4]


def test_job_without_an_image_yet_holds_its_place_but_does_not_run(model, attacked):
    bench = WorkerBench(model, queue=2)
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
    [{"queue": 0}, {"batch_size": -1}, {"timeout_s": 0.0}, {"gather_s": -1.0}, {"overload_batch_s": 0.0}, {"body": 0}],
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
