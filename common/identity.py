"""A job's identity: the token that proves membership, and the certificate that encrypts.

Every process of a job has the same one, made at submit; nobody else has it. The certificate is
self-signed and trusted by its bytes: a peer is of this job if and only if it holds exactly this
certificate's key (mutual TLS 1.3), so there is no authority, no name and no expiry to check.
It travels like the token, in the environment: EDL_IDENTITY.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hmac
import json
import os
import ssl
from dataclasses import dataclass, field

IDENTITY_VARIABLE = "EDL_IDENTITY"


@dataclass(frozen=True)
class Identity:
    """`certificate_pem` and `key_pem` may be empty: then peers must be on the same host."""

    token: str = field(repr=False)
    certificate_pem: str = ""
    key_pem: str = field(default="", repr=False)

    @classmethod
    def create(cls, token: str) -> Identity:
        """A new certificate and its key, for the job of this token."""
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
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(token, certificate.public_bytes(pem).decode(), secret.decode())

    def to_variable(self) -> str:
        """The value of EDL_IDENTITY."""
        parts = [self.token, self.certificate_pem, self.key_pem]
        return base64.b64encode(json.dumps(parts).encode()).decode()

    @classmethod
    def from_variable(cls, value: str) -> Identity:
        """What `to_variable` wrote. Raises ValueError."""
        try:
            token, certificate_pem, key_pem = json.loads(base64.b64decode(value, validate=True))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{IDENTITY_VARIABLE} holds no identity of a job") from error
        return cls(str(token), str(certificate_pem), str(key_pem))

    def proof(self, role: bytes, ours: bytes, theirs: bytes) -> bytes:
        """What only a holder of the token can say of these nonces: HMAC-SHA256, 32 bytes."""
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
        """Mutual TLS 1.3; callers compare the peer's certificate with `certificate_der`."""
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


def job_identity(token: str) -> Identity:
    """The identity of the job that this process belongs to: EDL_IDENTITY, or the token alone."""
    value = os.environ.get(IDENTITY_VARIABLE, "")
    return Identity.from_variable(value) if value else Identity(token)
