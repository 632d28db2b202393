"""Addresses of engines: what is taken, and what must not be reached without TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.address import MAX_PATH_BYTES, EngineAddress, TlsFiles
from engine.errors import InvalidRequest
from tests.realtime.certificates import CertificateAuthority


@pytest.mark.parametrize(
    "text", ["unix:/run/engine.sock", "tcp://127.0.0.1:9000", "tcp://gpu-1.example.com:0", "tcp://[::1]:65535"]
)
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(EngineAddress.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    "|unix:engine.sock|tcp://host|tcp://host:65536|tcp://:1|tcp://a b:1|http://host:1|host:1"
    f"|tcp://user@host:1|tcp://host:1/path|unix:/{'x' * MAX_PATH_BYTES}".split("|"),
)
def test_another_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="unix:/"):
        EngineAddress.parse(text)


@pytest.mark.parametrize("text", ["unix:/run/x", "tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"])
def test_local_addresses_need_no_tls(text: str) -> None:
    EngineAddress.parse(text).check_protected(None)


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:1", "tcp://10.0.0.1:1", "tcp://[::]:1", "tcp://engine:1"])
def test_other_machines_are_reached_by_tls_alone(text: str, tmp_path: Path) -> None:
    address = EngineAddress.parse(text)
    with pytest.raises(InvalidRequest, match="needs tls_certificate, tls_key and tls_ca"):
        address.check_protected(None)
    address.check_protected(TlsFiles("certificate", "key", "ca"))


def test_tls_files_are_all_there_or_none(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = map(str, authority.issue("engine"))
    ca = str(authority.certificate)
    assert TlsFiles.from_settings(None, None, None) is None
    assert TlsFiles.from_settings(certificate, key, ca) == TlsFiles(certificate, key, ca)
    with pytest.raises(InvalidRequest, match="tls_ca is missing"):
        TlsFiles.from_settings(certificate, key, None)
    with pytest.raises(InvalidRequest, match="nowhere"):
        TlsFiles.from_settings(certificate, key, str(tmp_path / "nowhere"))
    with pytest.raises(InvalidRequest, match="cannot be used"):
        TlsFiles.from_settings(certificate, ca, ca)
