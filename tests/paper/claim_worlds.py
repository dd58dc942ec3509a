"""A made-up world in which every claim of the paper holds, and ways to spoil it."""

from dataclasses import replace
from functools import cache

import numpy as np
from paper_rows import row_for
from paper_samples import timing

from soap import recipes
from soap.attacks import PGD
from soap.evaluation import PAPER
from soap.paper import figure_records
from soap.paper.claims import CLAIMS, ClaimVerdict, table_parts
from soap.paper.comparison import ComparedCell
from soap.paper.figure_claims import figure_parts
from soap.paper.figure_data import TASKS, FigureData
from soap.paper.figure_records import Examples, RadiusCurve, record_path
from soap.paper.sweeps import AUXILIARY_AWARE, BETAS, CROSS_ENTROPY
from soap.paper.tables import TABLES, CellQuery, PaperTable
from soap.purifiers.soap import soap_spec
from soap.specs import AttackSpec, AttackStep

ACCURACY = {
    "no-def": {"none": 99.0, "fgsm": 2.0, "pgd": 1.0, "cw": 1.0, "df": 1.0},
    "fgsm-at": {"none": 60.0, "fgsm": 62.0, "pgd": 20.0, "cw": 5.0, "df": 5.0, "fcn": 50.0, "cnn": 50.0},
    "pgd-at": {"none": 85.0, "fgsm": 55.0, "pgd": 45.0, "cw": 5.0, "df": 5.0, "fcn": 60.0, "cnn": 60.0},
    "defense-gan": {"none": 90.0, "fgsm": 40.0, "pgd": 40.0, "cw": 40.0, "df": 40.0},
    "pixel-defend": {"none": 90.0, "fgsm": 40.0, "pgd": 40.0, "cw": 40.0, "df": 40.0},
    "0": {"none": 95.0, "fgsm": 10.0, "pgd": 10.0, "cw": 10.0, "df": 10.0, "fcn": 70.0, "cnn": 70.0},
    "purified": {"none": 95.0, "fgsm": 70.0, "pgd": 65.0, "cw": 80.0, "df": 80.0, "fcn": 90.0, "cnn": 90.0},
}
"""By method and column; those of Table 4 are substitutes."""


def _value(table, cell):
    if table.measure == "success":
        resists = cell.column == "pgd-at" or (cell.row, cell.column) == ("df-wide-resnet28", "lc")
        return 20.0 if resists else 99.0
    if (table.name, cell.row, cell.group) == ("table-1", "pgd-at", "cnn") and cell.column in ("cw", "df"):
        return 60.0
    method = cell.row if cell.row in ACCURACY else "0" if cell.row.endswith("-0") else "purified"
    return ACCURACY[method].get(cell.column)


def world():
    """Numbers by (table, row, group, column)."""
    filled = (table for table in TABLES.values() if isinstance(table, PaperTable))
    return {(table.name, *cell.place): _value(table, cell) for table in filled for cell in table.cells.values()}


def as_tables(numbers):
    """What checks of tables take."""
    tables = {}
    for (table, *place), value in numbers.items():
        tables.setdefault(table, {})[tuple(place)] = ComparedCell(cell=TABLES[table].cells[tuple(place)], ours=value)
    return tables


def as_rows(numbers):
    """Result rows that fill those cells which ours is wanted for."""
    rows = {}
    for (table, *place), value in numbers.items():
        wanted = TABLES[table].cells[tuple(place)].query
        if wanted is None or value is None:
            continue
        if wanted.measure == "accuracy":
            rows.setdefault(wanted, row_for(wanted, round(value * wanted.n / 100)))
        else:  # the same row tells how often the attack succeeded
            plain = replace(wanted, measure="accuracy")
            rows[plain] = replace(rows.get(plain, row_for(plain, 0)), measures={"success": value / 100})
    return list(rows.values())


# --- Beyond the tables --------------------------------------------------------------------------------------------

SECONDS = {
    f"{network}-{method}": seconds
    for network, tasks in {
        "mnist-fcn": "dr", "mnist-cnn": "dr", "cifar10-resnet18": "rp lc", "cifar10-wide-resnet28": "rp lc",
    }.items()
    for method, seconds in {
        "no-def": 1.0, "fgsm-at": 1.2, "pgd-at": 5.0, **dict.fromkeys(tasks.split(), 1.4),
    }.items()
}  # fmt: skip


def beta_row(model, beta, purified, percent):
    wanted = CellQuery(recipe=model, attack="pgd", eps_pfy="min-aux" if purified else "none")
    step = AttackStep(name="AuxiliaryAwarePGD", settings={"beta": beta})
    fields = {"protocol": AUXILIARY_AWARE, "attack": AttackSpec(name=f"beta={beta:g}", steps=(step,))}
    return row_for(wanted, round(10 * percent), n=1000, **fields)


def purified_row(model, percent, *, eps="min-aux", gamma=1.0, steps=5, task=None, **others):
    """Under PGD; gamma and a number as eps are in units of the model's own gamma."""
    own = recipes.read(model).purifier
    wanted = CellQuery(recipe=model, attack="pgd", eps_pfy="min-aux")
    grid = tuple(own.grid) if eps == "min-aux" else ()
    eps = eps if eps == "min-aux" else eps * own.step_size
    defence = soap_spec(eps, grid, own.step_size * gamma, steps, **(task or {}))
    return row_for(wanted, round(10 * percent), n=1000, defence=defence, **others)


def attack_steps(model):
    """The attack's radius in units of the model's gamma."""
    attack = PAPER[recipes.read(model).data]["pgd"]
    assert isinstance(attack, PGD)
    return attack.eps / recipes.read(model).purifier.step_size


@cache
def sweep_rows():
    """By a name that tells what each measured; not to be changed."""
    rows = {}
    for model in TASKS:
        steady = model.endswith("-rp")
        for beta in BETAS:
            up = BETAS.index(beta) - BETAS.index(0.0)
            rows[model, "beta", beta, False] = beta_row(model, beta, False, 5.0 + 10 * abs(up))
            after = 50.0 + (0 if steady and beta > 0 else 5 * abs(up))
            rows[model, "beta", beta, True] = beta_row(model, beta, True, after)
        for factor, percent in ((1, 60.0), (2, 50.0), (4, 40.0)):
            rows[model, "steps", factor] = purified_row(model, percent, gamma=1 / factor, steps=5 * factor)
        at = attack_steps(model)
        for radius, percent in ((at - 0.5, 40.0), (at, 55.0), (at + 0.5, 58.0), (at + 3, 90.0)):
            rows[model, "radius", radius] = purified_row(model, percent, eps=radius)
    rotation = TASKS[1]
    rows[rotation, "cross entropy"] = purified_row(
        rotation, 30.0, task={"loss": CROSS_ENTROPY}, measures={"mean_eps_pfy": 4 / 255}
    )
    return rows


def curve(model, **changes):
    gamma = recipes.read(model).purifier.step_size
    eps_adv = attack_steps(model) * gamma
    radii = tuple(k * gamma for k in range(11))
    purified = tuple(max(0.2, 1.0 - 0.8 * radius / eps_adv) for radius in radii)
    fields = {
        "model": model, "data": "d", "attack": "PGD", "n": 1000, "eps_adv": eps_adv, "clean": 0.2, "adversarial": 1.0,
        "radii": radii, "purified": purified, "provenance": {},
    }  # fmt: skip
    return RadiusCurve(**(fields | changes))


def digits(back=range(10)):
    """Ten digits, of which the decoder sees those in `back` as before once they are purified."""
    images = np.zeros((3, 10, 2, 2, 1), np.uint8)
    images[1] = 200
    images[2] = [[[[10]] * 2] * 2 if digit in back else [[[250]] * 2] * 2 for digit in range(10)]
    truth = tuple(range(10))
    return Examples(
        model=TASKS[0], data="d", classes=tuple("0123456789"), places=truth, truth=truth,
        columns=("clean", "pgd", "pgd, purified"), predictions=(truth, (9,) * 10, truth), images=images, decoded=images,
        provenance={},
    )  # fmt: skip


def findings(folder, *, rows=None, seconds=SECONDS, curves_of=None, pictures=None):
    """What figures of the made-up world are drawn from, or what is given in its place."""
    for made in [curve(model) for model in TASKS] if curves_of is None else curves_of:
        figure_records.save(record_path(folder, "curve", made.model), made)
    for made in [digits()] if pictures is None else pictures:
        figure_records.save(record_path(folder, "examples", made.model), made)
    rows = sweep_rows() if rows is None else rows
    timings = [timing(model, value) for model, value in seconds.items()]
    return FigureData(folder=folder, rows=list(rows.values()), timings=timings)


TABLE_CLAIMS = [name for name, claim in CLAIMS.items() if claim.numbers]


def table_verdict(name, tables):
    """The verdict on a claim by these numbers."""
    return ClaimVerdict(tuple(table_parts(CLAIMS[name], tables)))


def figure_verdict(name, data):
    """The verdict on a claim by what figures are drawn from."""
    return ClaimVerdict(tuple(figure_parts(name, data)))
