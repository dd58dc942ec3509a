"""The page of a run: self-contained, well-formed, small, and nothing but a view of the run's files."""

import base64
import html
import io
import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image
from run_samples import LOSSES, RADII, sample_images, sample_run
from test_report_page import Walk

from soap.errors import FileError
from soap.evaluation.checks import FAIL
from soap.evaluation.summary_builder import broken_images
from soap.evaluation.verdict import INVALID, RobustnessVerdict
from soap.report.html import picture
from soap.report.run_figures import draw_bars, gallery, losses_figure, radii_figure
from soap.report.run_page import MEANING, render_run
from soap.report.run_text import accuracy_text, bare_accuracy_text, classifier_note, subject
from soap.results import wilson
from soap.specs import DefenceSpec


@pytest.fixture(scope="module")
def data():
    return sample_images()


@pytest.fixture(scope="module")
def report(data, tmp_path_factory):
    return sample_run(tmp_path_factory.mktemp("page") / "run", data)


@pytest.fixture(scope="module")
def text(report, data):
    return render_run(report, data, command="soap evaluate some-model --suite full")


@pytest.fixture(scope="module")
def walk(text):
    return Walk(text)


def addresses(walk):
    return [a[key] for _, a in walk.elements for key in ("src", "srcset", "href", "action", "data") if a.get(key)]


def test_it_is_well_formed(text, walk):
    assert text.lstrip().startswith("<!DOCTYPE html>")
    assert walk.faults == []
    assert [tag for tag, _ in walk.elements].count("h1") == 1
    assert all(attributes.get("alt") for tag, attributes in walk.elements if tag == "img")


def test_it_asks_nothing_of_the_network(text, walk):
    assert len(addresses(walk)) == 3 + 12 * 3
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", address) for address in addresses(walk))
    assert not re.search(r"https?:|url\(|@import|<script|<link", text)


def test_headline_and_verdict_come_first(report, walk):
    low, high = wilson(5, 20)
    wanted = f"25.0 % [{100 * low:.1f}, {100 * high:.1f}] of 20 images survive the worst case over all attacks"
    assert wanted in walk.text
    assert walk.text.index(report.verdict.name) < walk.text.index("Protocol by protocol")
    assert MEANING[report.verdict.name] in walk.text
    assert all(reason in walk.text for reason in report.verdict.reasons)


def test_every_figure_of_the_table_is_the_summary_s(report, walk):
    lines = (report.summary.clean, *report.summary.protocols, report.summary.worst)
    assert [line.correct for line in lines] == [20, 12, 5, 5]
    for line in lines:
        assert f"{line.protocol} {accuracy_text(line)} {bare_accuracy_text(line)} {line.seconds:.1f}" in walk.text
    assert "unrolled (not in this suite)" in walk.text
    assert classifier_note(report.summary) in walk.text


def test_every_check_is_there_with_its_words(report, walk):
    assert len(report.findings) == 22
    for one in report.findings:
        assert f"{one.number}. {one.name}: {one.measured}" in walk.text
        assert " ".join(one.meaning.split()) in walk.text


def test_the_pictures_are_those_of_the_run(report, walk):
    figures = draw_bars(report), radii_figure(report.folder).figure, losses_figure(report.folder).figure
    drawn = [a["src"] for tag, a in walk.elements if tag == "img" and "svg" in a["src"]]
    assert drawn == [picture(figure, "").split('"')[1] for figure in figures]
    spoken = " ".join(a["alt"] for tag, a in walk.elements if tag == "img")
    assert "0.05: 75.0 %" in spoken
    assert "Mean loss from 0.5 to 2 and images not broken from 100.0 % to 25.0 % in 2 steps" in spoken
    assert "At radius 1: 0.0 %" in walk.text


def decoded(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))))


def test_the_gallery_shows_what_broke_it(report, data, walk):
    assert "15 images were correctly classified when clean and were broken" in walk.text
    found = broken_images(report.folder, report.summary, data, 12)
    assert [one.row for one in found] == [*range(5, 17)]
    assert {one.row: one.attempt for one in found} == {
        row: "straight-through, apgd ce" if row < 12 else "transfer, apgd ce" for row in range(5, 17)
    }
    pictures = [a["src"] for tag, a in walk.elements if tag == "img" and "png" in a["src"]]
    for k, one in enumerate(found):
        clean, attacked, difference = map(decoded, pictures[3 * k : 3 * k + 3])
        assert np.array_equal(clean, (data.x[one.row] * 255).round().byte().permute(1, 2, 0).numpy())
        assert np.abs(attacked.astype(int) - clean - 0.05 * 255).max() <= 1
        assert (difference == 255).all()  # every value went up by the largest change
        assert f"Image {one.row}, cat , is classified as dog" in walk.text


def test_grey_images_and_others(data, tmp_path):
    grey = sample_images(channels=1)
    made = sample_run(tmp_path / "grey", grey)
    shown = gallery(broken_images(made.folder, made.summary, grey, 3), ("cat", "dog"))
    assert decoded(shown[0]["clean"]).shape == (6, 6)
    odd = sample_images(channels=2)
    report = sample_run(tmp_path / "odd", odd)
    assert "they are not images" in render_run(report, odd, command="")


def test_nothing_broken_and_no_curves(data, tmp_path):
    report = sample_run(tmp_path / "run", data, facts={}, standing={"transfer": 20})
    walk = Walk(render_run(report, data, command=""))
    assert walk.faults == []
    assert "no image that was correctly classified when clean was broken" in walk.text
    assert "Along the attack" not in walk.text
    assert "Command" not in walk.text


def test_a_probe_that_could_not_be_made_draws_nothing(data, tmp_path):
    problem = {"problem": "no", "impossible": True}
    report = sample_run(tmp_path / "run", data, facts={"radii": problem, "loss-curve": problem})
    assert (radii_figure(report.folder), losses_figure(report.folder)) == (None, None)


def test_a_network_alone_has_no_classifier_beside_it(data, tmp_path):
    report = sample_run(tmp_path / "run", data, purifies=False)
    walk = Walk(render_run(report, data, command=""))
    assert walk.faults == []
    assert "classifier alone" not in walk.text


def test_a_void_run_shows_no_accuracy_under_attack(report, data):
    failed = replace(report.findings[-1], state=FAIL, measured="3 of 20")
    findings = [*report.findings[:-1], failed]
    void = replace(report, verdict=RobustnessVerdict(name=INVALID, reasons=("check 16",)), findings=findings)
    page = render_run(void, data, command="")
    walk = Walk(page)
    assert walk.faults == []
    assert "No accuracy is shown" in walk.text
    assert void.verdict.note in walk.text
    for line in (*report.summary.protocols, report.summary.worst):
        assert accuracy_text(line) not in page
        assert f"{line.protocol} - - {line.seconds:.1f}" in walk.text
    assert f"clean {accuracy_text(report.summary.clean)}" in walk.text
    for finding in report.findings[:-1]:
        assert f"{finding.number}. {finding.name}: -" in walk.text
    assert f"{failed.number}. {failed.name}: 3 of 20" in walk.text
    spoken = " ".join(a["alt"] for tag, a in walk.elements if tag == "img")
    assert "in per cent: clean 100.0" in spoken
    assert "transfer" not in spoken
    assert "worst" not in spoken
    labels = [text.get_text() for text in draw_bars(void).axes[0].get_yticklabels()]
    assert labels == ["clean"]
    assert "Along the attack" not in walk.text  # the curves have accuracies under attack
    assert "15 images" not in walk.text
    assert "These images were correctly classified when clean and were broken: the first 12" in walk.text


def test_a_void_run_does_not_show_that_nothing_was_broken(data, tmp_path):
    report = sample_run(tmp_path / "run", data, standing={"transfer": 20})
    void = replace(report, verdict=RobustnessVerdict(name=INVALID, reasons=("check 16",)))
    assert "No image is shown." in Walk(render_run(void, data, command="")).text


def test_the_title_names_what_was_attacked(report, data, tmp_path):
    assert subject(report.summary) == "some-model behind purifier of some-model"
    defence = DefenceSpec(name="SOAP", settings={"task": {"gradient": "stop"}}, eps="min-aux")
    plan = {**report.summary.plan, "target": {"name": "net", "defence": asdict(defence)}}
    assert subject(replace(report.summary, plan=plan)) == "net behind SOAP, gradient stop"
    assert subject(sample_run(tmp_path / "run", data, purifies=False).summary) == "some-model"


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=http://x onerror=y>', "a&b", "{{ 7 * 7 }}"]
)
def test_hostile_names_are_text(tmp_path, hostile):
    data = sample_images(classes=(hostile, "dog"))
    page = render_run(sample_run(tmp_path / "run", data, name=hostile), data, command=f"soap evaluate {hostile}")
    walk = Walk(page)
    assert walk.faults == []
    assert len([tag for tag, _ in walk.elements if tag == "script"]) == 0
    assert len([tag for tag, _ in walk.elements if tag == "img"]) == 3 + 36
    assert html.escape(hostile) in page.replace("&#34;", "&quot;")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("radii", {"eps": []}),
        ("radii", {"eps": [0.0]}),
        ("radii", {"accuracy": "all"}),
        ("radii", {"images": 0}),
        ("loss-curve", {"loss": [1.0, None, 2.0]}),
        ("loss-curve", {"standing": [True, False, True]}),
    ],
)
def test_facts_that_no_probe_wrote_are_refused(data, tmp_path, name, change):
    report = sample_run(tmp_path / "run", data)
    good = {"radii": RADII, "loss-curve": LOSSES}[name]
    (report.folder.path / "facts" / f"{name}.json").write_text(json.dumps({**good, **change}))
    with pytest.raises(FileError, match=f"{name}.json"):
        render_run(report, data, command="")


def test_images_of_noise_stay_a_small_page(tmp_path):
    data = sample_images(side=32, n=100)  # noise is what PNG packs worst; of more images no more are shown
    page = render_run(sample_run(tmp_path / "run", data), data, command="")
    assert len(page.encode()) < 1.5e6


def test_the_same_run_gives_the_same_page(report, data, text):
    assert render_run(report, data, command="soap evaluate some-model --suite full") == text
