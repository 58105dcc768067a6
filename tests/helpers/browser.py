"""A headless Chromium driven over its own protocol, through two pipes: no server, no port, no other package."""

import json
import os
import select
import shutil
import subprocess
import sys
import time

# The browser talks through descriptors 3 and 4: ours are moved out of their way first, then there.
LAUNCHER = """
import fcntl, os, sys
for end, place in [(fcntl.fcntl(int(end), fcntl.F_DUPFD, 10), place) for end, place in zip(sys.argv[1:3], (3, 4))]:
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The program that HEADWISE_CHROMIUM names, else whatever is installed; None where nothing is."""
    named = os.environ.get("HEADWISE_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


class Browser:
    """One tab. `console` has whatever the page said or the browser complained about."""

    def __init__(self, program, profile):
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        flags += ["--disable-gpu", "--disable-dev-shm-usage"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            flags += ["--no-sandbox"]  # Chromium refuses to start otherwise
        command = [sys.executable, "-c", LAUNCHER, str(read), str(write), program, *flags]
        self._process = subprocess.Popen(
            command, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        self._waiting, self._number, self._session = b"", 0, None
        self.console, self.requests, self._events = [], [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self._session = None
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)

    def call(self, method, **parameters):
        """What the browser answers; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self, patience=240):
        """The next message; what the page says on its console or asks for over a network is remembered."""
        end = time.monotonic() + patience
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            piece = os.read(self._from, 1 << 16) if ready else b""
            assert piece, "the browser says nothing"
            self._waiting += piece
        text, _, self._waiting = self._waiting.partition(b"\0")
        message = json.loads(text)
        kind = message.get("method")
        if kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(message["params"])
        if kind == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if kind == "Page.loadEventFired":
            self._events.append(kind)
        return message

    def open(self, address):
        self.console.clear()
        self.requests.clear()
        self._events.clear()
        self.call("Page.navigate", url=address)
        while not self._events:
            self._next()

    def look(self, width, height=900, scheme="light"):
        """Another window and another colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def ask(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")
