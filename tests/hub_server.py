"""A server on 127.0.0.1 that plays the API of the Hugging Face Hub, for one repository."""

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPO = "me/model"


class FakeHub(ThreadingHTTPServer):
    """Repositories by name: each a list of (commit, files), the last one is main."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {REPO: []}
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.tokens: dict[str, str | None] = {}
        self.sizes: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.resolves_to: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, files: dict[str, bytes]) -> str:
        history = self.commits[REPO]
        number = hashlib.sha1(repr((len(history), sorted(files))).encode()).hexdigest()
        history.append((number, {**(history[-1][1] if history else {}), **files}))
        return number

    def at(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        history = self.commits.get(repo, [])
        if revision == "main":
            return history[-1] if history else None
        return next((one for one in history if one[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        self.server.requests.append(f"{self.command} {urlsplit(self.path).path}")

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            repo, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
            if repo not in self.server.commits:
                return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            found = self.server.at(repo, revision)
            if found is None:
                return self.answer({"error": "no revision"}, 404, X_Error_Code="RevisionNotFound")
            sizes = {name: self.server.sizes.get(name, len(content)) for name, content in found[1].items()}
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            return self.answer({"id": repo, "sha": self.server.resolves_to or found[0], "siblings": siblings})
        name = "/".join(parts[4:])
        self.server.tokens[f"{self.headers['Host']}{self.path}"] = self.headers["Authorization"]
        if name in self.server.redirects:
            return self.answer(b"", 302, Location=self.server.redirects[name])
        if parts[0] == "moved":
            return self.answer(self.server.at(REPO, "main")[1][parts[1]])
        found = self.server.at("/".join(parts[:2]), parts[3])
        return self.answer(found[1][name] if found else b"", 200 if found else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            return self.answer({"url": f"{self.server.url}/{REPO}"})
        if path == "/api/validate-yaml":
            return self.answer({"warnings": [], "errors": []})
        if path == f"/api/models/{REPO}/preupload/main":
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": one["path"], "uploadMode": modes[one["path"].endswith(".safetensors")], "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if path == f"/{REPO}.git/info/lfs/objects/batch":
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/upload/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        assert path == f"/api/models/{REPO}/commit/main", path
        files = {}
        for line in body.splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": name, "content": content}}:
                    files[name] = base64.b64decode(content)
                case {"key": "lfsFile", "value": {"path": name, "oid": oid}}:
                    files[name] = self.server.stored[oid]
        number = self.server.commit(files)
        return self.answer({"commitUrl": f"{self.server.url}/{REPO}/commit/{number}", "commitOid": number})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.stored[self.path.rsplit("/", 1)[1]] = content
        self.answer(b"")
