"""Topics and their meshes: which filter has which core, members and parents, and one of them on the map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hedgerow.web.fabric import FabricNode, MeshPlace
from hedgerow.web.map import draw, edges_of, part_in
from hedgerow.web.markup import Html, badge, code, empty, ident, join, link, table, text
from hedgerow.web.pages.common import left_out, no_nodes, nodes_of, search_form, search_of
from hedgerow.web.scan import Scan
from hedgerow.web.view import MAX_ROWS, View

PATH = "/topics"
TITLE = "Topics"

PARTS = {
    "local": ("has subscribers", "good"),
    "member": ("passes it on", "dull"),
    "aware": ("knows the way", "dull"),
}
MAX_NAMES = 8  # of nodes, in one cell


def controls(view: View) -> Html:
    return search_form(view, PATH, "Search filters")


def render(view: View) -> Html:
    nodes = nodes_of(view)
    if not nodes:
        return no_nodes(view)
    seen = {node.node_id for node in nodes}
    return join([_one_topic(view, nodes, seen), _all_topics(view, nodes, seen)], "\n")


def look_for(view: View) -> Scan[str, str]:
    """The filters that are to be shown, among those that all nodes tell: there may be 1,000 of each."""
    words = search_of(view).casefold()
    may_read = view.viewer.may_read

    def find(topic_filter: str) -> Sequence[str]:
        is_found = (not words or words in topic_filter.casefold()) and may_read(topic_filter)
        return (topic_filter,) if is_found else ()

    return Scan(list(view.fabric.meshes), find, MAX_ROWS)


def _all_topics(view: View, nodes: Sequence[FabricNode], seen: set[str]) -> Html:
    words = search_of(view).casefold()
    found = (view.topics or look_for(view)).begun()
    rows: list[tuple[str, Sequence[Html]]] = []
    for topic_filter in sorted(found.first):
        told = view.fabric.meshes.get(topic_filter, {})  # It may have ended meanwhile.
        meshes = (
            told
            if len(seen) == len(view.fabric.nodes)
            else {name: told[name] for name in told if name in seen}
        )
        if meshes:
            rows.append((ident("topic", topic_filter), _cells(topic_filter, meshes, words)))
    if not rows:
        if words:
            return empty("No filter has these words.")
        return empty(
            "No topic has a mesh.",
            "Meshes are made when clients subscribe at nodes that are linked (hedgerow up --join URL).",
        )
    more = sum(node.more_filters for node in nodes)
    return join(
        [
            table(
                "topics",
                "Filters and their meshes",
                ["Filter", "Core", "Subscribers at", "Nodes#", "Furthest#"],
                rows,
            ),
            left_out(len(rows), found.total),
            f'<p class="soft">Nodes have {more:,} more filters that they do not tell.</p>' if more else "",
        ]
    )


def _cells(topic_filter: str, meshes: Mapping[str, MeshPlace], words: str) -> list[Html]:
    cores, local, members, furthest = set(), [], 0, 0
    for name, mesh in meshes.items():  # 200 rows of some 50 nodes: one pass
        cores.add(mesh.core)
        members += mesh.is_member
        if mesh.is_local:
            local.append(name)
        if mesh.distance > furthest:
            furthest = mesh.distance
    return [
        link(text(topic_filter), PATH, topic=topic_filter, search=words),
        _names(sorted(cores)),
        _names(sorted(local)),
        Html(str(members)),
        Html(str(furthest)),
    ]


def _names(names: Sequence[str]) -> Html:
    if not names:
        return Html("–")
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return Html(", ".join([text(name, 24) for name in names[:MAX_NAMES]]) + more)


def _one_topic(view: View, nodes: Sequence[FabricNode], seen: set[str]) -> Html:
    topic_filter = view.query.get("topic", "")
    if not topic_filter:
        return Html("")
    told = view.fabric.meshes.get(topic_filter, {}) if view.viewer.may_read(topic_filter) else {}
    meshes = {name: told[name] for name in sorted(told) if name in seen}
    top = join(
        [
            '<section class="card" id="mesh"><header>',
            f"<h2>{code(topic_filter, 120)}</h2>",
            link(Html("Messages"), "/messages", filter=topic_filter),
            link(Html("Close"), PATH, search=search_of(view)),
            "</header>",
        ]
    )
    if not meshes:
        return join(
            [
                top,
                empty("No mesh of this filter.", "Nobody subscribes to it, or you may not read it."),
                "</section>",
            ]
        )
    return join(
        [
            top,
            '<div class="stage" id="stage">',
            draw(nodes, edges_of(nodes, view.now), view.now, mesh=meshes),
            '<p class="legend" id="legend"><span class="key core">core</span>'
            '<span class="key local">has subscribers</span><span class="key member">passes it on</span>'
            '<span class="key aware">knows the way</span>'
            '<span class="key arrow">to its parent</span></p></div>',
            _mesh_table(meshes),
            "</section>",
        ]
    )


def _mesh_table(meshes: Mapping[str, MeshPlace]) -> Html:
    cores = {mesh.core for mesh in meshes.values()}
    rows = [
        (
            ident("mesh-row", name),
            [
                link(text(name, 40), "/", node=name),
                _role(name, mesh, cores),
                Html(str(mesh.distance)),
                _names(mesh.parents),
                _names(mesh.children),
                text(mesh.core, 40),
            ],
        )
        for name, mesh in list(meshes.items())[:MAX_ROWS]
    ]
    return table("mesh-table", "The mesh", ["Node", "Html", "Distance#", "Parents", "Children", "Core"], rows)


def _role(name: str, mesh: MeshPlace, cores: set[str]) -> Html:
    return badge("core", "fair") if name in cores else badge(*PARTS[part_in(mesh)])
