"""JSON Web Tokens instead of passwords: which are believed, whence the keys come, what groups do."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hedgerow.mqtt.packets import Connack, Connect, Disconnect, Publish, Suback, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config import WebTokenRules
from hedgerow.node.web_tokens import WebTokens
from tests.node.identity import EC_KEY, RSA_KEY, key_set, sign, web_service
from tests.node.peers import connected, port_of, raw_client, running
from tests.waiting import until
from tests.web.api.asking import Asker
from tests.web.browser import showing, with_users

ACL = """
group cowherds
member carol
topic readwrite cows/#
topic deny cows/bull

user anna
topic read farm/#
"""


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(key_set(rsa=RSA_KEY, ec=EC_KEY)))
    return file


def verify(rules: WebTokenRules, token: str, user: str = "anna", now: float | None = None) -> object:
    return WebTokens(rules, time.time if now is None else lambda: now).verify(user, token.encode())


def test_signed_tokens_are_believed(keys: Path) -> None:
    rules = WebTokenRules(keys)
    found = verify(rules, sign(RSA_KEY, "rsa", "RS256", groups=["a", "b"]))
    assert getattr(found, "groups", None) == {"a", "b"}
    found = verify(rules, sign(EC_KEY, "ec", "ES256", groups="a b"))
    assert getattr(found, "groups", None) == {"a", "b"}
    assert verify(rules, sign(RSA_KEY, "rsa", "RS256", lasts_s=-5))  # the clocks may differ by 10 s


FORGED = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm5hIiwiZXhwIjo5OTk5OTk5OTk5fQ."


@pytest.mark.parametrize(
    "token",
    [
        FORGED,
        "eyJ..",
        "eyJhbGciOiJSUzI1NiJ9.e30.AAAA",
        sign(RSA_KEY, "rsa", "RS256", lasts_s=-60),
        sign(RSA_KEY, "rsa", "RS256", exp=None),
        sign(RSA_KEY, "rsa", "RS256", sub=None),
        sign(RSA_KEY, "rsa", "RS256", sub="bert"),
        sign(RSA_KEY, "rsa", "RS256", nbf=time.time() + 3_600),
        sign(RSA_KEY, "ec", "RS256"),
        sign(RSA_KEY, "other", "RS256"),
        sign(RSA_KEY, None, "RS256"),
        sign(EC_KEY, "rsa", "ES256"),
        sign(RSA_KEY, "rsa", "RS384"),
        sign("x" * 64, "rsa", "HS256"),
        sign(RSA_KEY, "rsa", "RS256", pad="x" * 20_000),
        sign(RSA_KEY, "rsa", "RS256", exp=float("inf")),
    ],
)
def test_others_are_not(keys: Path, token: str) -> None:
    assert not verify(WebTokenRules(keys), token)


def test_a_public_key_is_no_secret(keys: Path) -> None:
    """Whoever signs with HS256, and the public key as the secret, is not believed."""
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = _base64({"alg": "HS256", "kid": "rsa", "typ": "JWT"})
    signed = f"{head}.{_base64({'sub': 'anna', 'exp': time.time() + 60})}"
    digest = urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).decode().rstrip("=")
    assert not verify(WebTokenRules(keys, ("RS256", "HS256")), f"{signed}.{digest}")


def _base64(part: object) -> str:
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def test_issuer_and_audience_are_asked_for(keys: Path) -> None:
    rules = WebTokenRules(keys, issuer="farm", audience="brokers")
    assert verify(rules, sign(RSA_KEY, "rsa", "RS256", iss="farm", aud="brokers"))
    wrong: tuple[dict[str, Any], ...] = (
        {"iss": "farm"},
        {"aud": "brokers"},
        {"iss": "x", "aud": "brokers"},
        {"iss": "farm", "aud": "x"},
    )
    for claims in wrong:
        assert not verify(rules, sign(RSA_KEY, "rsa", "RS256", **claims))


async def test_a_token_lets_in_with_the_rights_of_its_groups(keys: Path, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(ACL)
    async with running(jwt=WebTokenRules(keys), anonymous=False, acl=acl) as server:
        token = sign(RSA_KEY, "rsa", "RS256", groups=["cowherds"]).encode()
        async with connected(port_of(server), "a", username="anna", password=token) as anna:
            anna.send(Subscribe(1, [Subscription("#", 1)]))
            assert isinstance(await anna.receive(), Suback)
            anna.send(Publish("cows/bull", b"1", 1, packet_id=1), Publish("cows/7", b"2", 1, packet_id=2))
            packets = [await anna.receive() for _ in range(3)]
            assert [each.topic for each in packets if isinstance(each, Publish)] == ["cows/7"]
        # The newest token counts: without the group the right is gone.
        later = sign(RSA_KEY, "rsa", "RS256").encode()
        async with connected(port_of(server), "b", username="anna", password=later):
            assert not server.broker.access.may_write("anna", "b", "cows/7")
        for user, password in (("anna", b"guess"), ("bert", token), ("anna", token[:-6])):
            async with raw_client(port_of(server)) as client:
                client.send(Connect("c", username=user, password=password))
                answer = await client.receive()
                assert isinstance(answer, Connack)
                assert answer.reason_code == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_client_goes_when_its_token_ends(keys: Path) -> None:
    async with running(jwt=WebTokenRules(keys, leeway_s=0.0), anonymous=False) as server:
        token = sign(RSA_KEY, "rsa", "RS256", lasts_s=1.2).encode()
        async with connected(port_of(server), "a", username="anna", password=token) as anna:
            goodbye = await anna.receive()
            assert isinstance(goodbye, Disconnect)
            assert goodbye.reason_code == Reason.NOT_AUTHORIZED


async def test_a_reload_leaves_those_with_tokens_alone(keys: Path, tmp_path: Path) -> None:
    users = with_users(tmp_path, "bert")
    async with running(jwt=WebTokenRules(keys), anonymous=False, **users) as server:
        token = sign(RSA_KEY, "rsa", "RS256").encode()
        async with connected(port_of(server), "a", username="anna", password=token):
            server.reload()
            assert server.broker.client_count == 1


async def test_keys_are_fetched_without_making_anyone_wait() -> None:
    async with web_service() as service:
        service.answer = lambda body: None  # It does not answer yet.
        async with running(jwt=WebTokenRules(service.url), anonymous=True) as server:
            await until(lambda: bool(service.asked), "the keys to be asked for")
            async with connected(port_of(server), "stranger"):
                pass
        service.answer = lambda body: (200, key_set(rsa=RSA_KEY))
        async with running(jwt=WebTokenRules(service.url, refresh_s=1.0), anonymous=False) as server:
            await until(lambda: len(service.asked) == 2, "the keys to be asked for")
            await _let_in(server, sign(RSA_KEY, "rsa", "RS256"))
            # The key is changed, and the old one withdrawn.
            service.answer = lambda body: (200, key_set(ec=EC_KEY))
            await until(lambda: len(service.asked) >= 4, "the keys to be asked for again")
            await _let_in(server, sign(EC_KEY, "ec", "ES256"))
            service.answer = lambda body: (500, {})
            await until(lambda: len(service.asked) >= 6, "the keys to be asked for in vain")
            await _let_in(server, sign(EC_KEY, "ec", "ES256"))


async def _let_in(server: Any, token: str) -> None:
    async with connected(port_of(server), "a", username="anna", password=token.encode()):
        pass


async def test_a_token_opens_the_api_too(keys: Path) -> None:
    async with showing(jwt=WebTokenRules(keys), anonymous=False) as shown:
        anna = Asker(shown.server, f"Bearer {sign(RSA_KEY, 'rsa', 'RS256')}")
        assert (await anna.ask("POST", "/publish", {"topic": "a"})).status == 200
        assert (await anna.ask("GET", "/users")).status == 403
        assert (await Asker(shown.server, f"Bearer {FORGED}").ask("GET", "/nodes")).status == 401
