"""The TLS settings of users."""

from __future__ import annotations

from typing import Any

from .certificates import Certificates

__all__ = ["Settings"]


class Settings:
    """The value for ``ssl=``: the library's own TLS, or a context of the standard library."""

    def __init__(self, kind: str, certificates: Certificates) -> None:
        self.kind = kind
        self.certificates = certificates

    def trusting(self) -> Any:
        if self.kind == "context":
            return self.certificates.client_context()
        return self._native(ca=self.certificates.ca_file)

    def trusting_system_only(self) -> Any:
        return self.certificates.client_context(trusted=False) if self.kind == "context" else self._native()

    def with_certificate(self) -> Any:
        if self.kind == "context":
            return self.certificates.client_context(certificate=True)
        files = self.certificates
        return self._native(ca=files.ca_file, cert=files.client_cert, key=files.client_key)

    def with_strange_certificate(self) -> Any:
        files = self.certificates
        if self.kind == "context":
            context = files.client_context()
            context.load_cert_chain(files.stranger_cert, files.stranger_key)
            return context
        return self._native(ca=files.ca_file, cert=files.stranger_cert, key=files.stranger_key)

    @staticmethod
    def _native(**options: Any) -> Any:
        import wirespeed

        return wirespeed.TLS(**options)
