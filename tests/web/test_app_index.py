"""The page of `seqtop serve`: its head, and its script, which node runs without a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import SECONDS

PAGE = Path("seqtop/web/app_index.html").read_text(encoding="utf-8")

BROWSER = """
const log = [];
const has = new Set();
let observer = null, answers = ANSWERS, timers = [];
globalThis.location = {protocol: "https:", host: "h:1", href: "https://h:1/", search: "",
                       reload() { log.push("reload"); }};
globalThis.window = {innerWidth: WIDTH};
const terminal = {dataset: {fontSize: "16"}};
const body = {classList: {contains: name => has.has(name), add: name => has.add(name)}};
globalThis.document = {
  body, getElementById: () => terminal,
  querySelector: () => ({focus() { log.push("focus"); }}),
};
globalThis.MutationObserver = class {
  constructor(call) { observer = call; }
  observe() {}
};
globalThis.setTimeout = (call, delay) => timers.push(call);
globalThis.fetch = async () => {
  log.push("fetch");
  if (!answers.shift()) throw new Error("refused");
  return {ok: true};
};
{ SCRIPT }
(async () => {
  has.add("-first-byte"); observer(); observer();
  has.add("-closed"); observer();
  while (timers.length) await timers.shift()();
  console.log(JSON.stringify({log, terminal: terminal.dataset, gone: has.has("-gone")}));
})();
"""


def run_script(answers: list[bool], width: int = 1200) -> dict[str, Any]:
    """Runs the page's script: the first bytes arrive, then the session ends."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = re.search(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    assert script is not None
    program = BROWSER.replace("ANSWERS", json.dumps(answers)).replace("WIDTH", str(width))
    done = subprocess.run(
        [node, "-e", program.replace("SCRIPT", script[1])],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_keyboard_works_on_load_and_an_app_that_ended_is_not_started_again() -> None:
    result = run_script([True])
    assert result["log"] == ["focus", "fetch"]
    assert result["gone"] is False
    assert result["terminal"] == {"fontSize": "16", "sessionWebsocketUrl": "wss://h:1/ws"}


def test_the_page_is_loaded_again_when_the_server_is_back() -> None:
    result = run_script([False, False, True])
    assert result["log"] == ["focus", "fetch", "fetch", "fetch", "reload"]
    assert result["gone"] is True


def test_a_phone_gets_a_smaller_font() -> None:
    assert "width=device-width" in PAGE
    terminal = run_script([True], width=390)["terminal"]
    assert isinstance(terminal, dict)
    assert terminal["fontSize"] == "11"
