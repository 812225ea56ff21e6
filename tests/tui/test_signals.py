"""Signals that come to a program of which an app without a terminal is a part."""

import signal
import subprocess
import sys

import pytest

from tests.support.waiting import SECONDS

PROGRAM = """
import asyncio
from seqtop.kv.session import KvSession
from seqtop.live.session import Session
from seqtop.tui.app import SeqtopApp
from seqtop.kv.app import KvApp

async def run():
    with {session}("ipc:///nowhere/e") as session:
        async with {app}(session).run_test():
            print("runs", flush=True)
            await asyncio.Event().wait()

asyncio.run(run())
"""


@pytest.mark.parametrize(
    ("app", "session"), [("SeqtopApp", "Session"), ("KvApp", "KvSession")], ids="{}".format
)
def test_they_end_the_program_as_ever(app: str, session: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(app=app, session=session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == -signal.SIGTERM
        finally:
            process.kill()
