"""How every page is filled in: the package's own templates, all text escaped, a name that is missing an error."""

import jinja2


def environment() -> jinja2.Environment:
    """A new one, so that a page may add filters of its own."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("soap.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
