"""How evidence names models, radii, rows, and what is lacking."""

from soap.paper.pieces import Piece
from soap.paper.verdicts.parts import Part
from soap.results import Row


def task_of(model: str) -> str:
    """'SOAP-DR' of 'mnist-fcn-dr'."""
    return f"SOAP-{model.rsplit('-', 1)[1].upper()}"


def radius(value: float, attack: float) -> str:
    """A radius in the unit that the attack's own is given in: '0.3' or '8/255'."""
    return f"{value:.3g}" if attack > 0.1 else f"{255 * value:.3g}/255"


def percent(row: Row) -> float:
    """The accuracy in per cent."""
    return 100 * row.accuracy


def images(row: Row) -> str:
    """' (1,000 images)'."""
    return f" ({row.n:,} images)"


def lacking_piece(piece: Piece) -> Part:
    """A part that is undecided since the piece was not made."""
    return Part(held=None, lacks=((piece.need, ""),))
