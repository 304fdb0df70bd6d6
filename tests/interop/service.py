"""What the tests in Python share: the binary under test, run on a free port and a database of its own and ended by its own
process id."""

import os
import pathlib
import queue
import re
import secrets
import signal
import subprocess
import tempfile
import threading
import urllib.parse

STARTS_WITHIN_S = 60
BINARY = os.environ.get("TASKHOLD_BINARY")
if not BINARY:
    raise RuntimeError("TASKHOLD_BINARY must name the binary under test (scripts/interop sets it)")

# The child's environment: nothing of ours that configures the service.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TASKHOLD_")}


class Sqlite:
    """An empty SQLite database."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="taskhold-interop-")
        self.url = f"sqlite://{pathlib.Path(self._folder.name, 'taskhold.db')}"

    def remove(self):
        self._folder.cleanup()


class Postgres:
    """A new database of the cluster that TASKHOLD_TEST_POSTGRES_URL names."""

    def __init__(self):
        self._admin = os.environ["TASKHOLD_TEST_POSTGRES_URL"]
        self._name = f"interop_{secrets.token_hex(8)}"
        self._sql(f"CREATE DATABASE {self._name}")
        self.url = urllib.parse.urlsplit(self._admin)._replace(path=f"/{self._name}").geturl()

    def remove(self):
        self._sql(f"DROP DATABASE {self._name} WITH (FORCE)")

    def _sql(self, text):
        options = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--command={text}"]
        subprocess.run(["psql", *options, self._admin], check=True)


def new_token(database, name):
    """A new token of a new context."""
    command = [BINARY, "token", "create", "--name", name, "--database-url", database.url]
    return subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout.strip()


class Server:
    """A running service with the bundled server's test tools behind it. Made once it says that it listens."""

    def __init__(self, database, listen="127.0.0.1:0", settings=None):
        """`settings` are variables by the names that `docs/configuration.md` has for them."""
        upstream = f"test='{BINARY}' demo-server --test-tools"
        command = [BINARY, "serve", "--listen", listen, "--database-url", database.url, "--upstream", upstream]
        self._child = subprocess.Popen(
            command, env=ENVIRONMENT | (settings or {}), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._log = []
        ready = queue.Queue()
        # Reads on until the end, so that the service never waits for its log to be read.
        self._reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self._reader.start()
        try:
            self.url = ready.get(timeout=STARTS_WITHIN_S)
        except queue.Empty:
            self.url = None
        if self.url is None:
            self.end(signal.SIGKILL)
            raise RuntimeError("the server did not start:\n" + "".join(self._log))
        self.listen = urllib.parse.urlsplit(self.url).netloc

    def _read(self, ready):
        for line in self._child.stderr:
            self._log.append(line)
            if found := re.search(r'taskhold is listening on (http://[^\s"]+)', line):
                ready.put(found[1])
        ready.put(None)

    def end(self, how=signal.SIGTERM):
        self._child.send_signal(how)
        self._child.wait()
        self._reader.join()
        self._child.stderr.close()
