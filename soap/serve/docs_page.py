"""The API description at /docs: a plain HTML page made from the OpenAPI schema, without scripts or external files."""

import json
from html import escape
from typing import Any


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
    """Description, query parameters, content types of the body, and statuses of one route."""
    body = route.get("requestBody", {"content": {}})
    items = [(p["name"], f"{p.get('description', '')} {_type(p['schema'])}") for p in route.get("parameters", ())]
    items += [(f"body: {kind}", body["description"]) for kind in body["content"]]
    items += [(f"status {status}", response["description"]) for status, response in route["responses"].items()]
    rows = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{escape(text)}</dd>" for name, text in items)
    return f"<p>{escape(route['description'])}</p><dl>{rows}</dl>"


def _type(schema: dict[str, Any]) -> str:
    """JSON schema of a parameter without its title and the alternative null."""
    choices = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    shown = {**choices[0], **{key: schema[key] for key in ("enum", "default") if key in schema}}
    return json.dumps({key: value for key, value in shown.items() if key != "title"})
