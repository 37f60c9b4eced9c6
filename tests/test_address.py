import pytest

from extproc.address import Address, TcpAddress, UnixAddress, parse


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9002", TcpAddress("127.0.0.1", 9002)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("router.svc.cluster.local:65535", TcpAddress("router.svc.cluster.local", 65535)),
        ("[::1]:80", TcpAddress("::1", 80)),
        ("unix:/run/extproc.sock", UnixAddress("/run/extproc.sock")),
        ("unix:/" + "a" * 106, UnixAddress("/" + "a" * 106)),
    ],
)
def test_an_address_reads_as_it_is_written(text: str, address: Address) -> None:
    assert parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:80x",
        "127.0.0.1:٣",
        "::1:80",
        "[::1]",
        "[::1:80",
        "[x]:80",
        "[127.0.0.1]:80",
        "http://a:80",
        "a b:80",
        "-a:80",
        "a" * 254 + ":80",
        "unix:",
        "unix:run/x",
        "unix:/" + "a" * 107,
        "unix:/a\0b",
    ],
)
def test_what_is_no_address_says_what_is_wanted(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|unix: and an absolute path of at most 107 bytes"):
        parse(text)
