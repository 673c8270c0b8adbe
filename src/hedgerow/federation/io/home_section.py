"""The bridge from a sidecar to the broker that it stands beside."""

from __future__ import annotations

import ssl

from hedgerow.bridges.section import FarAddress, Section
from hedgerow.bridges.values import Backoff
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX, SIDECAR_SUFFIX
from hedgerow.federation.presence import PRESENCE_TOPIC
from hedgerow.federation.tunnel.frames import quote_node_id
from hedgerow.node.broker_urls import BrokerUrl

HOME_NAME = "federation-home"
HOME_RESTART = Backoff(0.2, 2.0)
HOME_KEEP_ALIVE_S = 5  # after which the broker tells others that a federator is gone that fell silent


def home_section(config: FederationConfig, home: BrokerUrl, node_id: str) -> Section:
    return Section(
        name=HOME_NAME,
        addresses=(FarAddress(home.host, home.port),),
        topics=(),
        follows=True,
        remote_clientid=f"{NEIGHBOUR_PREFIX}{node_id}{SIDECAR_SUFFIX}",
        restart_timeout=HOME_RESTART,
        keepalive_interval_s=HOME_KEEP_ALIVE_S,
        notification_topic=PRESENCE_TOPIC + quote_node_id(node_id),
        try_private=False,
        remote_username=home.username,
        remote_password=home.password,
        bridge_cafile=str(config.cafile) if config.cafile is not None and home.is_tls else None,
        bridge_capath=ssl.get_default_verify_paths().capath
        if home.is_tls and config.cafile is None
        else None,
        bridge_certfile=str(config.certfile) if config.certfile is not None else None,
        bridge_keyfile=str(config.keyfile) if config.keyfile is not None else None,
        queue_bytes=config.queue_bytes,
        queue_age_s=config.keep_s,
    )
