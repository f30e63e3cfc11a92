"""`twinbus faults proxy` and `advance`: wrong use is one line, before anything is opened."""

from __future__ import annotations

import pytest

from tests.unit.console.commands import run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("proxy", "70000", "--upstream", "sb://contoso"), "PORT is 0 (pick a free one) to 65535"),
        (("proxy", "0", "--upstream", "amqps://contoso"), "--upstream is sb://HOST or sb://HOST:"),
        (("proxy", "0", "--upstream", "Endpoint=sb://x;SharedAccessKey=k9"), "leave out key and"),
        (("advance", "soon", "--namespace", "Endpoint=sb://x"), "TIME"),
    ],
)
def test_wrong_use_is_one_line_without_a_key(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    done = run(capsys, "faults", *arguments)
    assert done.out == ""
    assert done.status in (1, 2)
    assert text in done.err
    assert done.err.count("\n") == 1
    assert "k9" not in done.err
