"""Which pages are tried, and what of them is not, with the reason.

Those are README.md, the guides and all of docs/ that is not in `NOT_TRIED`: every fenced block of them says
how it is run. `runner` has the conventions.
"""

from __future__ import annotations

from pathlib import Path

from tests.programs import ROOT

NOT_TRIED = {
    "docs/README.md": "an index",
    "docs/containers.md": "needs Docker, a cluster or root; tests/deploy builds and starts what it is about",
    "docs/architecture.md": "follows the code; test_architecture.py compares them",
}
"""Pages of docs/ whose blocks nobody runs, and why."""

NOT_RUN: dict[tuple[str, str], str] = {
    (
        "docs/federation.md",
        "hedgerow federate --broker mqtt://localhost --id 1 --neighbour mqtt://house --wire document",
    ): "it needs a federator that is not ours; tests/federation/document has one, beside Mosquittos",
    ("README.md", "make demo"): "the demo has tests of its own and no end; `make test` is what runs this",
    (
        "docs/guides/spark.md",
        "from hedgerow.pipeline.session import open_session",
    ): "has no end; tests/pipeline/test_documents.py runs it",
    ("docs/benchmarks.md", "make bench"): "it takes an hour; tests/workshop/bench run parts of it",
    (
        "docs/lab.md",
        "hedgerow lab run spohn --fast --json rows.json --out results/spohn",
    ): "a minute of two cores; tests/workshop/lab run it smaller",
    (
        "docs/documents.md",
        "hedgerow lab run schmitt --fast --json rows.json --out results/schmitt",
    ): "two minutes of two cores; tests/workshop/lab run it smaller",
    (
        "docs/pipeline-jobs.md",
        "from hedgerow.pipeline.jobs.hot import hot_topics, topic_counts",
    ): "has no end; tests/pipeline/test_documents.py runs it",
    (
        "docs/pipeline-jobs.md",
        "hedgerow pipeline sweep --tables tables --set redundancy=1,2,3 --set nodes=10,50,100 --seeds 5",
    ): "Spark, for minutes; tests/pipeline sweep less",
    (
        "docs/pipeline-jobs.md",
        "hedgerow lab run spohn --out results/spohn",
    ): "hours; tests/workshop/lab and tests/pipeline run both smaller",
    (
        "docs/pipeline-jobs.md",
        "from hedgerow.pipeline.jobs.rollup import last_values, rollups",
    ): "needs a stream of readings; tests/pipeline/test_rollup.py calls both",
    ("docs/pipeline.md", "pip install '.[spark]'"): "needs a package index",
    (
        "docs/pipeline.md",
        "hedgerow pipeline run --journal d/journal --tables tables",
    ): "has no end; docs/guides/spark.md runs it with --once",
    (
        "docs/pipeline.md",
        "from hedgerow.pipeline.session import open_session",
    ): "needs the tables of the job; tests/pipeline/test_documents.py runs it",
    ("docs/pipeline.md", "hedgerow pipeline demo --out demo"): "takes minutes; tests/cli run it smaller",
    (
        "docs/pipeline.md",
        "# A stream; and what was received at a time or later.",
    ): "has no end; tests/pipeline/test_documents.py runs it",
    (
        "docs/pipeline.md",
        "# What is added to a Delta table, such as readings.",
    ): "has no end; tests/pipeline/test_documents.py runs it",
    (
        "docs/pipeline.md",
        "hedgerow pipeline run --master spark://mill:7077",
    ): "needs a cluster; tests/pipeline have a small one",
    (
        "docs/pipeline.md",
        "$ hedgerow pipeline cluster --workers 2 --cores 1 --memory 1g",
    ): "two workers of 1 GB; tests/pipeline have a small one",
    ("docs/monitoring.md", "cp deploy/prometheus"): "writes in /etc; tests/deploy check these files",
    ("docs/monitoring.md", "hedgerow passwd -c"): "asks for a password; tests/web log in to /metrics",
    ("docs/service.md", "python3 -m venv /opt/hedgerow"): "writes in /opt and /etc, as root, for systemd",
    ("docs/service.md", "/opt/hedgerow/bin/pip install"): "writes in /opt and /etc, as root, for systemd",
    (
        "docs/service.md",
        "install -m 640",
    ): "writes in /etc, as root, for systemd; tests/deploy check these files",
    ("docs/service.md", "systemctl disable"): "takes away what the blocks above have installed",
}
"""By page and how the first line of a block begins: why no test can run it."""
MAX_NOT_RUN = 24


def pages() -> list[str]:
    paths = (*sorted((ROOT / "docs/guides").glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return ["README.md", *(name for name in names if name not in NOT_TRIED)]


def path_of(page: str) -> Path:
    return ROOT / page
