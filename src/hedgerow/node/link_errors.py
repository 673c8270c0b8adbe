"""Why a link could not be made or kept, in words for people."""

from __future__ import annotations

import socket
import ssl


def explain(error: BaseException) -> str:
    match error:
        case socket.gaierror():
            return f"no such host ({error.strerror})"
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason or error}".replace("_", " ").lower().replace("tls", "TLS")
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError():
            return "the server reset the link"
        case OSError() if error.strerror:
            return error.strerror.lower()
    return str(error) or type(error).__name__
