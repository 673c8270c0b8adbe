"""A node's listeners, one for each address of the configuration, and the protocol that serves each scheme.

A `Listener` accepts a connection and asks the node's `OpenSockets` whether it may; for MQTT a `Link` serves
it, which opens a `Connection` of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.node.config_keys import LISTENERS
from hedgerow.node.link import Link
from hedgerow.node.listener import Factory, Listener, bind
from hedgerow.node.open_sockets import HTTP_SCHEMES
from hedgerow.node.part import NodeContext, Part
from hedgerow.node.poller import Poller, can_poll

if TYPE_CHECKING:
    import ssl

    from hedgerow.node.config import Config, Tls
    from hedgerow.node.handlers import Handler

MQTT_SCHEMES = ("mqtt", "mqtts")
APPLICATION_PROTOCOLS = {"mqtts": "mqtt", "wss": "http/1.1", "https": "http/1.1"}


class Listeners(Part):
    def __init__(self, node: NodeContext) -> None:
        """Binds. Raises ConfigError."""
        super().__init__(node)
        self._listeners: list[Listener] = []
        self._poller = Poller(node) if node.config.mqtt and can_poll() else None
        try:
            for scheme in LISTENERS:
                self._bind(scheme)
        except BaseException:
            self._close()
            raise

    def _bind(self, scheme: str) -> None:
        config = self.node.config
        addresses = getattr(config, scheme)
        if not addresses:
            return
        factory = self.factory(scheme)
        tls = config.tls if scheme in APPLICATION_PROTOCOLS else None
        context = _tls_context(tls, APPLICATION_PROTOCOLS[scheme]) if tls is not None else None
        for address in addresses:
            self._listeners.append(
                Listener(
                    self.node,
                    scheme,
                    bind(address, scheme),
                    factory,
                    anonymous=config.anonymous,
                    ssl_context=context,
                    use_identity_as_username=tls is not None and tls.use_identity_as_username,
                    poller=self._poller if scheme == "mqtt" else None,
                    use_subject_as_username=tls is not None and tls.use_subject_as_username,
                )
            )

    def reload(self, config: Config) -> Callable[[], None]:
        """Certificates, authorities, and who may connect: for new connections."""
        tls = config.tls
        contexts = {
            each.scheme: _tls_context(tls, APPLICATION_PROTOCOLS[each.scheme])
            for each in self._listeners
            if tls is not None and each.scheme in APPLICATION_PROTOCOLS
        }
        return partial(self._set, config, contexts)

    def _set(self, config: Config, contexts: Mapping[str, ssl.SSLContext]) -> None:
        for listener in self._listeners:
            listener.anonymous = config.anonymous
            if listener.scheme in contexts and config.tls is not None:
                listener.set_tls(contexts[listener.scheme], config.limits.connect_timeout_s)
                listener.use_identity_as_username = config.tls.use_identity_as_username
                listener.use_subject_as_username = config.tls.use_subject_as_username

    def factory(self, scheme: str) -> Factory:
        """What makes the protocol of an accepted connection. Imports only what the listeners need."""
        if scheme in ("ws", "wss"):
            from hedgerow.node.websocket import WebSocketLink

            return partial(WebSocketLink, self.node)
        if scheme in HTTP_SCHEMES:
            from hedgerow.node.http import HttpLink

            return partial(HttpLink, self.node)
        return partial(Link, self.node)

    def routes(self) -> Mapping[str, Handler]:
        if not any(listener.scheme in HTTP_SCHEMES for listener in self._listeners):
            return {}
        from hedgerow.node.handlers import for_programs
        from hedgerow.node.http import health, live
        from hedgerow.node.http_access import for_readers
        from hedgerow.node.metrics import metrics

        told: dict[str, Handler] = {
            "/health": health(self.node),
            "/health/ready": health(self.node),
            "/health/live": live(self.node),
            "/metrics": for_readers(self.node, metrics(self.node)),
        }
        return {path: for_programs(self.node, handler) for path, handler in told.items()}

    @property
    def urls(self) -> list[str]:
        return [url for listener in self._listeners for url in listener.urls]

    @property
    def listening(self) -> list[tuple[str, int]]:
        listeners = [each for each in self._listeners if each.scheme in MQTT_SCHEMES]
        return [each.getsockname()[:2] for listener in listeners for each in listener.sockets]

    async def start(self) -> None:
        for listener in self._listeners:
            listener.start()

    async def stop(self) -> None:
        for listener in self._listeners:
            await listener.stop()

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        await self.node.sockets.close(self.node.shut_down_s)
        self._close()

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._poller is not None:
            self._poller.close()


def _tls_context(tls: Tls, application_protocol: str) -> ssl.SSLContext:
    from hedgerow.node.tls import server_context

    return server_context(tls, application_protocol)
