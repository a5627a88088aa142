"""`make pin`: asks a registry for the digest that a base has now, and records it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPResponse

from parts.pins import DIGEST, read_pins, record
from parts.whole import FailedError

HOSTS = {"docker.io": "registry-1.docker.io"}
SECONDS = 30
KINDS = ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"]
KINDS += ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"]
TOOLS = {"crane": ("digest", "{name}"), "skopeo": ("inspect", "--format", "{{{{.Digest}}}}", "docker://{name}")}


def ask(url: str, token: str = "", method: str = "GET") -> HTTPResponse:
    """One request to a registry."""
    headers = {"Accept": ", ".join(KINDS), **({"Authorization": f"Bearer {token}"} if token else {})}
    asked = urllib.request.Request(url, headers=headers, method=method)
    answer: HTTPResponse = urllib.request.urlopen(asked, timeout=SECONDS)
    return answer


def token_for(challenge: str) -> str:
    """An anonymous token from where a registry says that there are some."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    with ask(f"{fields['realm']}?{query}") as answer:
        said = json.load(answer)
    return str(said.get("token") or said["access_token"])


def ask_registry(name: str, scheme: str = "https") -> str:
    """The digest of HOST/REPOSITORY:TAG by the registry's own protocol."""
    host, _, rest = name.partition("/")
    repository, _, tag = rest.partition(":")
    url = f"{scheme}://{HOSTS.get(host, host)}/v2/{repository}/manifests/{tag or 'latest'}"
    try:
        answer = ask(url, method="HEAD")
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        answer = ask(url, token_for(error.headers["WWW-Authenticate"]), method="HEAD")
    with answer:
        return answer.headers["Docker-Content-Digest"] or ""


def digest_of(name: str) -> str:
    """The digest that a registry gives for a name, through crane or skopeo where one is here."""
    for tool, words in TOOLS.items():
        if shutil.which(tool):
            done = subprocess.run([tool, *(word.format(name=name) for word in words)], capture_output=True, text=True)
            found, said = done.stdout.strip(), done.stderr.strip()[-300:]
            break
    else:
        try:
            found, said = ask_registry(name), "no digest in its answer"
        except (OSError, KeyError, ValueError) as error:
            found, said = "", str(error)
    if not DIGEST.fullmatch(found):
        raise FailedError(
            f"{name}: its registry gave no digest: {said}", "  make pin needs a network; nothing was changed"
        )
    return found


def pin_all(flavours: tuple[str, ...]) -> None:
    """Record the digests of bases; one that is as recorded changes nothing."""
    asked: dict[str, str] = {}
    for flavour in flavours:
        pins = read_pins(flavour)
        if pins.base not in asked:
            asked[pins.base] = digest_of(pins.base)
        if pins.digest == asked[pins.base]:
            print(f"{flavour}: {pins.base} is {pins.digest}, as recorded")
        else:
            record(flavour, "digest", asked[pins.base])
            print(f"{flavour}: {pins.base} is {asked[pins.base]}, recorded in containers/pins.toml")
