"""The API as one plain page, rendered from its OpenAPI schema: no script, no style, nothing loaded from elsewhere."""

from collections.abc import Sequence
from html import escape
from typing import Any


def render(schema: dict[str, Any]) -> str:
    """Every route with its parameters, bodies and answers."""
    parts = [
        f"<section><h2><code>{escape(method.upper())} {escape(path)}</code></h2>{_route(route)}</section>"
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title></head><body><main><h1>{title}</h1>'
        f"<p>{escape(schema['info'].get('description', ''))} "
        'The whole schema: <a href="/openapi.json">openapi.json</a>.</p>'
        f"{''.join(parts)}</main></body></html>"
    )


def _route(route: dict[str, Any]) -> str:
    parts = [f"<p>{escape(route.get('description', route.get('summary', '')))}</p>"]
    if parameters := route.get("parameters"):
        rows = [(p["name"], _kind(p["schema"]), p.get("description", "")) for p in parameters]
        parts.append(_table("Parameters in the query", ("name", "type", "meaning"), rows))
    if body := route.get("requestBody"):
        kinds = ", ".join(f"<code>{escape(kind)}</code>" for kind in body["content"])
        parts.append(f"<p>Body: {escape(body.get('description', ''))} {kinds}</p>")
    answers = [(status, ", ".join(map(_schema_name, _contents(answer)))) for status, answer in _answers(route)]
    parts.append(_table("Answers", ("status", "content"), answers))
    return "".join(parts)


def _answers(route: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(route["responses"].items())


def _contents(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(answer.get("content", {}).items())


def _schema_name(content: tuple[str, dict[str, Any]]) -> str:
    kind, described = content
    name = described.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f"{kind} {name}".strip()


def _kind(schema: dict[str, Any]) -> str:
    choices = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    words = [str(part.get("type", "any")) for part in choices]
    bounds = [f"{sign} {part[key]}" for part in choices for key, sign in _BOUNDS.items() if key in part]
    named = [f"one of {', '.join(schema['enum'])}"] if "enum" in schema else []
    default = [f"default {schema['default']}"] if schema.get("default") is not None else []
    return ", ".join([*words, *bounds, *named, *default])


_BOUNDS = {"minimum": "at least", "maximum": "at most"}


def _table(caption: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{top}</tr>{body}</table>"
