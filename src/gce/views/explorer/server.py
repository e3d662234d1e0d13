"""The server of the explorer: one page, its files and a small interface in JSON, for this machine only.

Who may ask. The server listens on the loopback address alone. A request must name it as its host, so that no other name
can be made to point here; where it says from which page it comes, that must be ours; and the page and the interface
want a token that is drawn anew at every start and stands in the address that is printed. Files are those of a table
read at the start: no path of a request ever reaches the disk.

Work that takes a while is a job: done beside the server one piece at a time, and looked at while it goes on.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from gce.errors import InputError
from gce.files import parsed_json
from gce.views.pages import assets_of

HOST = "127.0.0.1"
LARGEST_REQUEST, THREADS = 2_000_000, 32
KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Stopped(Exception):
    """The job was asked to stop."""


class Job:
    """One piece of work. It tells how far it is, and adds items that are looked at before it is done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._state, self._words = "working", "starting"
        self._share: float | None = None
        self._items: list[dict[str, Any]] = []
        self._result: Any = None
        self._begun = time.monotonic()
        self._stop = threading.Event()

    # ---- the work's side ----

    def tell(self, words: str, share: float | None) -> None:
        """What is being done, and the share of all that is done, if known; here a job that should stop does so."""
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._words, self._share = words, share

    def add(self, item: dict[str, Any]) -> None:
        with self._lock:
            self._items.append(item)

    def run(self, work: Callable[[Job], Any]) -> None:
        """Do the work; whatever goes wrong becomes a sentence."""
        state, result = "done", None
        try:
            result = work(self)
        except Stopped:
            state, result = "stopped", "stopped"
        except InputError as error:
            state, result = "failed", str(error)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            state = "failed"
            result = f"something went wrong inside ({type(error).__name__}: {error}); the terminal says more"
        with self._lock:
            self._state, self._result = state, result

    # ---- the looker's side ----

    def stop(self) -> None:
        self._stop.set()

    def look(self, since: int) -> dict[str, Any]:
        """All there is to know, with the items from number `since` on."""
        with self._lock:
            return {
                "job": self.number,
                "state": self._state,
                "words": self._words,
                "share": self._share,
                "seconds": round(time.monotonic() - self._begun, 1),
                "items": self._items[since:],
                "result": self._result,
            }

    @property
    def working(self) -> bool:
        return self._state == "working"


class Bench:
    """Where jobs are done, one at a time, each in a thread of its own; the last ones can be looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Job | None = None
        self._known: deque[Job] = deque(maxlen=8)
        self._thread = threading.Thread()
        self._passing = False

    def start(self, work: Callable[[Job], Any], passing: bool = False, over: bool = False) -> Job:
        """passing: the job gives way to any other; over: it stops any other."""
        with self._lock:
            if self._last is not None and self._last.working:
                if not (self._passing or over):
                    raise InputError("still at work on the last request; wait, or stop it first")
                self._last.stop()
                self._thread.join()
            job = self._last = Job(0 if self._last is None else self._last.number + 1)
            self._thread = threading.Thread(target=job.run, args=(work,), daemon=True, name=f"job {job.number}")
            self._passing = passing
            self._known.append(job)
            self._thread.start()
        return job

    def job(self, number: int) -> Job:
        found = next((job for job in tuple(self._known) if job.number == number), None)
        if found is None:
            raise InputError(f"there is no job {number}; the page was perhaps opened twice, load it again")
        return found


class Refused(Exception):
    """status: of HTTP; the words go to whoever asked."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Explorer:
    """What the page asks for. There is one system at a time, and one job."""

    def __init__(self, files: Sequence[Path] = (), read: Callable[[Path, int], Any] | None = None) -> None:
        """files: data sets to offer beside the worlds; read: what reads an episode of them (`workshop.Reader`)."""
        self._files, self._read = files, read
        self._bench = Bench()
        self._prepared: Any = None
        self._choices: dict[str, Any] | None = None

    @cached_property
    def _workshop(self) -> Any:
        """Where the work is done, imported when it is first needed, so that the page is there at once."""
        import torch

        from gce.views.explorer import workshop

        torch.set_num_threads(1)
        return workshop

    def choices(self, request: dict[str, Any]) -> dict[str, Any]:
        self._choices = self._choices or self._workshop.choices(self._files)
        return self._choices

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        choice = self._workshop.check(request, self._files)

        def work(job: Job) -> dict[str, Any]:
            self._prepared = None
            self._prepared = self._workshop.prepare(choice, job, self._read)
            return self._workshop.described(self._prepared)

        return {"job": self._bench.start(work, over=True).number}

    def plan(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._towards(request, "pursue")

    def reach(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._towards(request, "reach")

    def _towards(self, request: dict[str, Any], work: str) -> dict[str, Any]:
        prepared = self._prepared
        if prepared is None:
            raise InputError("there is no system yet; pick one first")
        goal, horizon = _goal(request.get("goal"), prepared.goal.shape), request.get("horizon")
        low, high = self._workshop.HORIZONS
        if not isinstance(horizon, int) or not low <= horizon <= high:
            raise InputError(f"the horizon is {horizon!r}, expected {low} to {high} steps")
        way = getattr(self._workshop, work)
        job = self._bench.start(lambda job: way(prepared, goal, horizon, job), passing=work == "reach")
        return {"job": job.number}

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._bench.job(_number(request, "job")).look(_number(request, "since"))

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._bench.job(_number(request, "job")).stop()
        return {}


def _number(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if not isinstance(value, int) or value < 0:
        raise InputError(f"{name} is {value!r}, expected a whole number")
    return value


def _goal(rows: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        goal = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("the goal is not a table of numbers; load the page again") from None
    if goal.shape != shape or not np.isfinite(goal).all():
        raise InputError(f"the goal has shape {goal.shape}, expected finite numbers of shape {shape}")
    return goal


class Server(ThreadingHTTPServer):
    """Listens on the loopback address; `address` is what to open."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, explorer: Explorer) -> None:
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            busy = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror or error})"
            raise InputError(f"port {port} {busy}; give another with --port, or --port 0 for any free one") from None
        except OverflowError:
            raise InputError(f"there is no port {port}; ports go from 1 to 65535, and 0 takes any free one") from None
        self._free = threading.BoundedSemaphore(THREADS)
        self.token = secrets.token_urlsafe(18)
        self.files = {**assets_of("pages"), **assets_of("explorer")}
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            name: getattr(explorer, name) for name in ("choices", "prepare", "reach", "plan", "look", "stop")
        }
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, as soon as there are few enough; others wait in the backlog meanwhile."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that goes away in the middle of an answer is nothing to tell of."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class Handler(BaseHTTPRequestHandler):
    """GET / and its files; POST /api/NAME with JSON in and out."""

    server: Server
    timeout = 20

    def do_GET(self) -> None:
        self._answered(self._file)

    def do_POST(self) -> None:
        self._answered(self._interface)

    def _answered(self, answer: Callable[[], tuple[str, bytes]]) -> None:
        status = 200
        try:
            self._guard()
            kind, body = answer()
        except (Refused, ValueError) as error:  # of an address that is none
            refused = error if isinstance(error, Refused) else Refused(400, "the request cannot be read")
            status, kind, body = refused.status, KINDS["html"], str(refused).encode()
            if self.path.startswith("/api/"):
                kind, body = "application/json", json.dumps({"error": str(refused)}).encode()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _guard(self) -> None:
        """This machine's own page, and nobody else's."""
        if self.headers.get("Host") not in self.server.hosts:
            raise Refused(403, "this server answers on this machine only, under the address that it printed")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.server.hosts}:
            raise Refused(403, "requests from other pages are refused")

    def _token(self, found: str) -> None:
        if not secrets.compare_digest(found.encode(), self.server.token.encode()):
            raise Refused(403, "the token is missing or wrong; open the address that gce explore printed")

    def _file(self) -> tuple[str, bytes]:
        parts = urlsplit(self.path)
        name = parts.path.removeprefix("/")
        if name == "":
            self._token(parse_qs(parts.query).get("token", [""])[0])
            name = "explore.html"
        if name not in self.server.files:
            raise Refused(404, "there is nothing here")
        return KINDS[name.rsplit(".", 1)[-1]], self.server.files[name]

    def _interface(self) -> tuple[str, bytes]:
        self._token(self.headers.get("X-Token", ""))
        name = self.path.removeprefix("/api/")
        if name not in self.server.answers:
            raise Refused(404, "there is nothing here")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > LARGEST_REQUEST:
            raise Refused(413, f"a request needs a length of at most {LARGEST_REQUEST} bytes")
        try:
            request = parsed_json(self.rfile.read(int(length)))
        except ValueError:
            raise Refused(400, "the request is not JSON") from None
        if not isinstance(request, dict):
            raise Refused(400, "the request is not a JSON object")
        try:
            return "application/json", json.dumps(self.server.answers[name](request)).encode()
        except InputError as error:
            raise Refused(400, str(error)) from None
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            raise Refused(
                500, f"something went wrong inside ({type(error).__name__}); the terminal says more"
            ) from None

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the page asks several times a second."""


def serve(port: int, ready: Callable[[str], object], explorer: Explorer | None = None) -> None:
    """Answer until Ctrl-C; `ready` is told the address."""
    server = Server(port, explorer or Explorer())
    print(f"open {server.address}\nCtrl-C stops", file=sys.stderr, flush=True)
    try:
        ready(server.address)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        server.server_close()
