"""Certificates for one test: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """`certificate` is the path of the authority's own; `issue` makes others in the same folder."""

    def __init__(self, folder: Path, name: str = "Test Authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._own = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.certificate = folder / "authority.pem"
        self.certificate.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """The paths of a certificate for `name`, valid for loopback, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed = self._sign(subject, key.public_key(), is_authority=False)
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, key_path

    def revoke(self, file: Path, *names: str) -> None:
        """Write a revocation list, of certificates that were issued."""
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - datetime.timedelta(days=1))
            .next_update(now + datetime.timedelta(days=1))
        )
        for name in names:
            issued = x509.load_pem_x509_certificate((self._folder / f"{name}.pem").read_bytes())
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(issued.serial_number)
                .revocation_date(now - datetime.timedelta(hours=1))
                .build()
            )
        file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def client_context(self, name: str | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority and, with a name, has a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if name is not None:
            context.load_cert_chain(*self.issue(name))
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
