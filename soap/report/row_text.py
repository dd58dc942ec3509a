"""Result rows as text, for tables and pages; nothing reads these texts back."""

from soap.specs import AttackSpec, AttackStep, DefenceSpec, TrainingSpec, call_text

WORST = "Worst"
"""Name of the attack step of a suite's worst case; its settings name the protocols and the threat."""


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
