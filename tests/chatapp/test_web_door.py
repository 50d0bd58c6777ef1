import pytest

from chatapp.web.door import NOT_LET_IN, OTHER_HOST, OTHER_ORIGIN, Door, address

PORT = 4321


def refusal(
    door: Door, path: str, *, host: str = f"127.0.0.1:{PORT}", origin: str = "", token: str = "", cookie: str = ""
) -> str | None:
    """Ask the door as a request with one value of each header does."""
    headers = {"Host": [host] if host else [], "Origin": [origin] if origin else []}
    return door.refusal(path, headers, token, cookie)


def test_the_token_opens_the_entrance_as_often_as_it_is_shown() -> None:
    """The printed address may be opened again after a browser's restart."""
    door = Door(PORT)
    assert [refusal(door, "/", token=door.token) for _ in range(2)] == [None, None]


@pytest.mark.parametrize("token", ["", "x", "é\ud800", "0" * 43])
def test_without_the_token_nobody_comes_in(token: str) -> None:
    """Whatever is shown in its place, text that is none included."""
    door = Door(PORT)
    paths = ["/", "/once", "/anything", door.room, f"{door.room}socket", f"{door.room}static/js/textual.js"]
    assert {refusal(door, path, token=token, cookie=token) for path in paths} == {NOT_LET_IN}


def test_a_code_opens_the_entrance_once() -> None:
    """What stood in the browser's command line is worth nothing afterwards."""
    door = Door(PORT)
    code, other = door.code(), door.code()
    assert refusal(door, "/once", token=code) == NOT_LET_IN
    assert [refusal(door, "/", token=given) for given in (code, code, other)] == [None, NOT_LET_IN, None]


def test_the_token_alone_opens_no_room() -> None:
    """Below the entrance only the cookie counts, and it counts nowhere else."""
    door = Door(PORT)
    assert refusal(door, door.room, token=door.token) == NOT_LET_IN
    assert refusal(door, "/other/", cookie=door.token) == NOT_LET_IN
    assert refusal(door, door.room, cookie=door.token) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil"]
)
def test_other_names_of_this_machine_are_refused(host: str) -> None:
    """A name that somebody lets point to 127.0.0.1 is not ours, even with the token."""
    door = Door(PORT)
    assert refusal(door, "/", host=host, token=door.token) == OTHER_HOST


def test_two_names_are_refused() -> None:
    """What one program takes for the name, another may not."""
    door = Door(PORT)
    names = [f"127.0.0.1:{PORT}", "evil.example"]
    assert door.refusal("/", {"Host": names, "Origin": []}, door.token, "") == OTHER_HOST


@pytest.mark.parametrize(
    "origin",
    ["null", "http://evil.example", "http://127.0.0.1:1", f"https://127.0.0.1:{PORT}", f"http://localhost:{PORT}"],
)
def test_other_pages_are_refused(origin: str) -> None:
    """A page of another origin gets nothing, even where the browser sends the cookie along."""
    door = Door(PORT)
    assert refusal(door, f"{door.room}socket", origin=origin, cookie=door.token) == OTHER_ORIGIN


def test_a_websocket_tells_its_origin() -> None:
    """Every browser says which page connects; ours may, by either name."""
    door = Door(PORT)
    socket = f"{door.room}socket"
    assert refusal(door, socket, cookie=door.token) == OTHER_ORIGIN
    for host in (f"127.0.0.1:{PORT}", f"localhost:{PORT}"):
        assert refusal(door, socket, host=host, origin=f"http://{host}", cookie=door.token) is None


def test_the_usual_port_is_not_written() -> None:
    """Browsers leave out port 80."""
    door = Door(80)
    assert refusal(door, "/", host="127.0.0.1", token=door.token) is None


def test_secrets_are_long_and_differ() -> None:
    """Each run has its own; what is printed opens the entrance of this machine."""
    one, other = Door(PORT), Door(PORT)
    assert len({one.token, other.token, one.room, other.room}) == 4
    assert len(one.token) >= 43
    assert one.url == address(PORT, one.token) == f"http://127.0.0.1:{PORT}/?token={one.token}"
