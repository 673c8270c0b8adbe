"""Bridges, at the API."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE
from hedgerow.bridges.io.commanding import command_bridges
from hedgerow.bridges.section import read_section
from hedgerow.node.api import BRIDGES, DONE, LINK, READ, ApiError, ApiRoute, Call, list_of, record, text

if TYPE_CHECKING:
    from hedgerow.bridges.part import BridgesPart

MAX_SECTION = 60_000
BY = "api"
SECTION = text(
    "As `hedgerow bridge` and mosquitto.conf have it.",
    minLength=1,
    maxLength=MAX_SECTION,
    examples=["connection north\naddress north.example\ntopic # both 1"],
)


def bridge_routes(part: BridgesPart) -> Sequence[ApiRoute]:
    def list_bridges(call: Call) -> Any:
        return {"items": list(part.status()["links"])}

    async def create(call: Call) -> Any:
        section = call.body["section"].replace("\r\n", "\n")
        name = read_section(section).name
        return {"done": f"bridge {name}: {await command_bridges(part.node, BY, NEW_BRIDGE, section)}"}

    async def delete(call: Call) -> Any:
        name = call.path["name"]
        if name not in part.bridges:
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no bridge {name}")
        return {"done": f"bridge {name}: {await command_bridges(part.node, BY, DELETE_BRIDGE, name)}"}

    return (
        ApiRoute(
            "GET", "/bridges", READ, "The bridges of this node.", list_bridges,
            record({"items": list_of(LINK)}),
        ),
        ApiRoute(
            "POST", "/bridges", BRIDGES, "Create a bridge.", create, DONE, body=record({"section": SECTION}),
            status=HTTPStatus.CREATED,
        ),
        ApiRoute(
            "DELETE", "/bridges/{name}", BRIDGES, "Delete a bridge.", delete, DONE,
            names={"name": "The bridge's name."},
        ),
    )  # fmt: skip
