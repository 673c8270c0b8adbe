"""What the journals of the runs hold: those with one mobile broker, and that of the farm.

On the farm nobody is promised the datagrams of the UDP sensor: they are published and may be delivered, and
no subscriber is due them.
"""

from __future__ import annotations

from hedgerow_workshop.lab.journals import Delivered, Due, Published, RunJournal
from hedgerow_workshop.lab.morales.farm import DATAGRAM_TOPIC
from hedgerow_workshop.lab.morales.record import FarmRecord, Record

PUBLISHER = "publisher"


def journal_of(record: Record) -> RunJournal:
    spec, topics, warm_up = record.spec, record.topics, record.warm_up
    return RunJournal(
        "morales",
        spec.file_name,
        {"uplink": spec.uplink, "traffic": spec.traffic, "algorithm": str(spec.algorithm)},
        [Due(_subscriber(topic), topic) for topic in dict.fromkeys(topics)],
        [
            Published(PUBLISHER, number, topics[number], at, is_warm_up=number < warm_up)
            for number, at in enumerate(record.sent)
        ],
        [
            Delivered(
                _subscriber(topics[number]), PUBLISHER, number, topics[number], at, record.sent[number],
                is_warm_up=number < warm_up,
            )
            for number, at in record.arrived
        ],
    )  # fmt: skip


def _subscriber(topic: str) -> str:
    return f"subscriber-{topic.replace('/', '-')}"


def farm_journal_of(farm: FarmRecord) -> RunJournal:
    sent = farm.sent | farm.datagrams
    return RunJournal(
        "morales",
        "farm",
        {"traffic": "farm"},
        [
            Due(subscriber, _topic(farm, publisher), since)
            for subscriber, since in farm.since.items()
            for publisher in farm.sent
        ],
        [
            Published(publisher, number, _topic(farm, publisher), at, *_carried(farm, publisher))
            for publisher, times in sent.items()
            for number, at in enumerate(times)
        ],
        [
            Delivered(
                subscriber, each.publisher, each.number, _topic(farm, each.publisher), each.at,
                sent[each.publisher][each.number], 1, is_repeated=each.is_repeated,
            )
            for subscriber, arrivals in farm.arrived.items()
            for each in arrivals
        ],
        [(outage.began_at, f"{outage.what} out of coverage") for outage in farm.outages],
    )  # fmt: skip


def _topic(farm: FarmRecord, publisher: str) -> str:
    return DATAGRAM_TOPIC if publisher in farm.datagrams else f"crop/{publisher}"


def _carried(farm: FarmRecord, publisher: str) -> tuple[int, str, str]:
    """QoS, broker, transport."""
    return (0, "", "udp") if publisher in farm.datagrams else (2, "", "mqtt")
