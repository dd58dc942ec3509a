"""Result rows as text: accuracies, settings, and Markdown tables; nothing reads these texts back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from soap.errors import InputError
from soap.results import Row
from soap.specs import AttackSpec, AttackStep, DefenceSpec, TrainingSpec, call_text

WORST = "Worst"
"""Name of the attack step of a suite's worst case; its settings name the protocols and the threat."""

UPPER_BOUND = (
    "The attacker did not know the purifier (protocol: transfer), so purified accuracies are upper bounds: "
    "an attacker who knows it can lower them."
)

ATTACK_TITLES = {"none": "no attack", "fgsm": "FGSM", "pgd": "PGD", "cw": "Carlini-Wagner", "df": "DeepFool"}


@dataclass(frozen=True, kw_only=True)
class AttackLine:
    """The rows of one attack: bare classifier and purified."""

    bare: Row
    purified: Row

    @property
    def title(self) -> str:
        """Display name of the attack."""
        return ATTACK_TITLES.get(self.bare.attack.name, self.bare.attack.name)

    @property
    def seconds(self) -> str:
        """Seconds of the attack and of the purifier."""
        return f"{self.bare.seconds:.1f} + {self.purified.seconds:.1f}"


def under_attack(rows: Sequence[Row]) -> list[AttackLine]:
    """One line an attack. rows: of one purifier, as `evaluate_transfer` returns them: bare, purified, bare, ..."""
    return [AttackLine(bare=bare, purified=purified) for bare, purified in zip(rows[::2], rows[1::2], strict=True)]


def percent(row: Row) -> str:
    """Accuracy and its 95 % interval in per cent: '80.7 [78.1, 83.0]'."""
    return with_interval(row.accuracy, row.interval)


def with_interval(share: float, interval: tuple[float, float]) -> str:
    """A share and its interval in per cent: '80.7 [78.1, 83.0]'."""
    return f"{100 * share:.1f} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


# --- Settings ---------------------------------------------------------------------------------------------------------


def attack_text(attack: AttackSpec) -> str:
    """The attack's short name: "pgd", or "suite full: transfer" for a protocol of a suite."""
    return attack.name if attack.suite is None else f"suite {attack.suite}: {attack.name}"


def settings_text(attack: AttackSpec) -> str:
    """The attacks with their settings, and the defence they were aimed at where the row measures a different one."""
    aimed = "" if attack.against is None else f"; against {defence_text(attack.against)}"
    return "; ".join(step_text(step) for step in attack.steps) + aimed


def step_text(step: AttackStep) -> str:
    """One attack with its settings: "PGD(eps=0.3, steps=40) on bare"."""
    own = dict(step.settings)
    if step.name == WORST:
        where = f"; eps={own['eps']:g}, {own['norm']}, attempts {own['attempts']}" if "eps" in own else ""
        return f"the worst of {', '.join(own['protocols'])}{where}"
    task = own.pop("task", {})
    parts = [call_text(AttackStep(name=step.name, settings=own)), *(f"{name}={of!r}" for name, of in task.items())]
    scale = "" if step.scale is None else f", scale={step.scale:g}"
    return ", ".join(parts) + ("" if step.rule is None else f" on {step.rule}{scale}")


def defence_text(defence: DefenceSpec) -> str:
    """The purifier with its settings, or "none" for the bare classifier."""
    return call_text(defence) if defence.purifies else defence.name


def eps_text(defence: DefenceSpec) -> str:
    """The radius or the rule that chooses it: "0.3", "min-aux"; "none" for the bare classifier."""
    return "none" if defence.eps is None else str(defence.eps)


def gradient_text(defence: DefenceSpec) -> str:
    """', gradient stop' for a purifier by label consistency, an empty text for any other."""
    gradient = defence.settings.get("task", {}).get("gradient")
    return "" if gradient is None else f", gradient {gradient}"


def training_text(training: TrainingSpec | None) -> str:
    """The training of the weights: "200 epochs, seed 0, fp32"; empty where it is not known."""
    if training is None:
        return ""
    parts = [
        f"{training.epochs} epochs" + ("" if training.decay is None else f" by {training.decay}"),
        *([] if training.dropout is None else [f"dropout {training.dropout}"]),
        f"seed {training.seed}",
        training.precision,
        *([] if training.stored is None else [f"stored in {training.stored}"]),
    ]
    prior = training.prior
    behind = "" if prior is None else f"; prior {prior.name}, {prior.epochs} epochs, seed {prior.seed}"
    return ", ".join(parts) + behind


# --- Markdown ---------------------------------------------------------------------------------------------------------


def models_table(rows: Sequence[Row]) -> str:
    """One line a model and defence, one column an attack: accuracy in per cent with its 95 % interval."""
    attacks = list(dict.fromkeys(row.attack.name for row in rows))
    lines = list(dict.fromkeys((row.model, row.defence) for row in rows))
    found = {(row.model, row.defence, row.attack.name): row for row in rows}
    head = ["model", "purified", *(ATTACK_TITLES.get(attack, attack) for attack in attacks)]
    table = []
    for model, defence in lines:
        cells = [found.get((model, defence, attack)) for attack in attacks]
        label = eps_text(defence) + gradient_text(defence) if defence.purifies else "no"
        table.append([f"`{model}`", label, *("" if row is None else percent(row) for row in cells)])
    return markdown_table(head, table)


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table of text cells."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def with_section(document: str, name: str, content: str) -> str:
    """`document` with the text between its markers `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = document.partition(opening)
    _, closed, after = rest.partition(closing)
    if not (found and closed):
        raise InputError(f"the document has no section {opening} ... {closing}; add both markers to it.")
    return f"{before}{opening}\n{content}\n{closing}{after}"
