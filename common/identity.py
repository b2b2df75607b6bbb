"""A job's identity: the token that proves membership, and the certificate that encrypts.

Every process of a job has the same one, made at submit; nobody else has it. The certificate is
self-signed and trusted by its bytes: a peer is of this job if and only if it holds exactly this
certificate's key (mutual TLS 1.3), so there is no authority and no expiry to check, and its one
name (for gRPC, which checks one) is that of any job. It travels like the token, in the environment:
EDL_IDENTITY. A job without a certificate stays on loopback.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import hmac
import json
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from .errors import EdlError, UsageError
from .listen import HOST_VARIABLE, is_loopback

TOKEN_VARIABLE = "EDL_TOKEN"
IDENTITY_VARIABLE = "EDL_IDENTITY"
CERTIFIED_NAME = "edl-job"


@dataclass(frozen=True)
class Identity:
    """A job's token, and the certificate and key by which its processes encrypt.

    `certificate_pem` and `key_pem` may be empty: then peers must be on the same host.
    """

    token: str = field(repr=False)
    certificate_pem: str = ""
    key_pem: str = field(default="", repr=False)

    @classmethod
    def create(cls, token: str) -> Identity:
        """Make a new certificate and its key, for the job of this token."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edl job")])
        began = datetime.datetime(2000, 1, 1)  # clocks of hosts may differ
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(began)
            .not_valid_after(datetime.datetime(9999, 12, 31))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(token, certificate.public_bytes(pem).decode(), secret.decode())

    def to_variable(self) -> str:
        """Return the value of EDL_IDENTITY."""
        parts = [self.token, self.certificate_pem, self.key_pem]
        return base64.b64encode(json.dumps(parts).encode()).decode()

    @classmethod
    def from_variable(cls, value: str) -> Identity:
        """Read what `to_variable` wrote. Raises ValueError."""
        try:
            token, certificate_pem, key_pem = json.loads(base64.b64decode(value, validate=True))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{IDENTITY_VARIABLE} holds no identity of a job") from error
        return cls(str(token), str(certificate_pem), str(key_pem))

    @classmethod
    def of_folder(cls, folder: Path) -> Identity:
        """Read the identity of the job in a folder, as `save` left it. Raises FileNotFoundError."""
        token = (folder / "token").read_text().strip()
        try:
            return cls.from_variable((folder / "identity").read_text())
        except FileNotFoundError:
            return cls(token)

    def save(self, folder: Path) -> None:
        """Save the identity for the owner of a new job's folder, and nobody else."""
        contents = {"token": self.token}
        if self.certificate_pem:
            contents["identity"] = self.to_variable()
        for name, text in contents.items():
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(text)

    def variables(self) -> dict[str, str]:
        """Return the environment of a process of the job."""
        certified = self.to_variable() if self.certificate_pem else ""
        return {TOKEN_VARIABLE: self.token, IDENTITY_VARIABLE: certified}

    def encrypts(self, host: str) -> bool:
        """Return whether gRPC at this host is encrypted.

        Raises EdlError where it must be and there is no certificate.
        """
        if self.certificate_pem or is_loopback(host):
            return bool(self.certificate_pem)
        raise EdlError(
            f"{host} is not on loopback, and this process has no certificate of the job, so that "
            f"it neither listens nor calls there: set {IDENTITY_VARIABLE}, or leave "
            f"{HOST_VARIABLE} at 127.0.0.1."
        )

    def proof(self, role: bytes, ours: bytes, theirs: bytes) -> bytes:
        """Return what only a holder of the token can say of these nonces: HMAC-SHA256, 32 bytes."""
        return hmac.digest(
            self.token.encode(), b"edl tensor plane\0" + role + ours + theirs, "sha256"
        )

    @functools.cached_property
    def certificate_der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.certificate_pem)

    @functools.cached_property
    def server_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    @functools.cached_property
    def client_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        """Return a context of mutual TLS 1.3.

        Callers compare the peer's certificate with `certificate_der`.
        """
        if not self.certificate_pem:
            raise ValueError("this identity has no certificate: it is good for one host only")
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate_pem)
        memory = os.memfd_create("identity")  # the ssl module reads keys from paths only
        try:
            os.write(memory, (self.certificate_pem + self.key_pem).encode())
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        return context


def job_id(token: str) -> str:
    """Return a name of the job of this token, which tells nothing of the token."""
    return hashlib.sha256(token.encode()).hexdigest()[:12]


def given_identity() -> Identity | None:
    """Return EDL_IDENTITY; None where that is not set. Raises UsageError."""
    value = os.environ.get(IDENTITY_VARIABLE, "")
    try:
        return Identity.from_variable(value) if value else None
    except ValueError as error:
        raise UsageError(f"{error}: it was cut or changed on its way.") from error


def job_identity(token: str) -> Identity:
    """Return the identity of the job of this token: EDL_IDENTITY, or the token alone.

    Raises UsageError where EDL_IDENTITY is another job's.
    """
    given = given_identity() or Identity(token)
    if not hmac.compare_digest(given.token.encode(), token.encode()):
        raise UsageError(
            f"{IDENTITY_VARIABLE} and {TOKEN_VARIABLE} are of two jobs: set both to the same one's."
        )
    return given
