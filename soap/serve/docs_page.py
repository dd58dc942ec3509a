"""The API description at /docs: a plain HTML page made from the OpenAPI schema, without scripts or external files."""

from html import escape
from typing import Any

BOUNDS = {"minimum": "at least", "maximum": "at most"}


def render(schema: dict[str, Any]) -> str:
    """The page: every route with its parameters, body and responses."""
    routes = [
        f"<section><h2><code>{escape(method.upper())} {escape(path)}</code></h2>{_route(route)}</section>"
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title></head><body><main><h1>{title}</h1>'
        f"<p>{escape(schema['info']['description'])} "
        'The whole schema: <a href="/openapi.json">openapi.json</a>.</p>'
        f"{''.join(routes)}</main></body></html>"
    )


def _route(route: dict[str, Any]) -> str:
    """Description, query parameters, body and responses of one route."""
    body = route.get("requestBody", {"content": {}})
    items = [
        *((p["name"], f"{_type(p['schema'])}. {p.get('description', '')}") for p in route.get("parameters", ())),
        *((kind, body["description"]) for kind in body["content"]),
        *(
            (status, f"{_schema(response)} {response['description']}")
            for status, response in route["responses"].items()
        ),
    ]
    rows = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{escape(text)}</dd>" for name, text in items)
    return f"<p>{escape(route['description'])}</p><dl>{rows}</dl>"


def _schema(response: dict[str, Any]) -> str:
    """Name of the response's JSON schema, or an empty string."""
    content = response.get("content", {}).get("application/json", {})
    return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def _type(schema: dict[str, Any]) -> str:
    choices = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    words = [str(part.get("type", "any")) for part in choices]
    words += [f"{word} {part[key]}" for part in choices for key, word in BOUNDS.items() if key in part]
    words += [f"one of {', '.join(schema['enum'])}"] if "enum" in schema else []
    words += [f"default {schema['default']}"] if schema.get("default") is not None else []
    return ", ".join(words)
