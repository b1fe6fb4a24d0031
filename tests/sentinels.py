"""A real master under real Sentinels, for the tests: servers of tests/servers.py with other flags and a few commands.

What they agree on among themselves is waited for, never assumed. They listen on 127.0.0.1 alone, and end with whoever
started them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from secrets import token_hex
from typing import Self

from tests.servers import HOST, MAKERS, Server, ask, is_master, valkey_server, wait_until

SERVICE = "front"  # the name that the Sentinels know their master by
SENTINELS = [make for name, make in MAKERS.items() if name != "redis6"]  # which cannot be hastened


class Sentinels:
    """A master, its replica and three Sentinels that watch them.

    The first Sentinel sees within 0.4 seconds that the master is gone, and needs no other to agree; the rest only vote.
    (Three that are equally quick may split their votes, and then wait for seconds.) For two failovers of its own
    accord in a row it would wait four seconds.
    """

    def __init__(self, make: Callable[..., Server] = valkey_server, *, replicas: int = 1) -> None:
        # So a replica has synchronised at once, and gets what is written at once: else either takes up to a second.
        flags = ["--repl-diskless-sync", "no", "--repl-diskless-load", "swapdb"]
        flags += ["--shutdown-timeout", "0"]  # else a master that stops waits for its replicas
        self.servers = [make(*flags) for _ in range(1 + replicas)]
        self.sentinels = [make("--sentinel") for _ in range(3)]
        self._running = ExitStack()

    def __repr__(self) -> str:
        return f"<{SERVICE} on {self.servers} under {self.sentinels}>"

    @property
    def service(self) -> str:
        return SERVICE

    @property
    def url(self) -> str:
        places = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}/0"

    def start(self) -> Self:
        """Start all, and return once every Sentinel knows every server: after about half a second."""
        names = [token_hex(20) for _ in self.sentinels]
        with ExitStack() as running:
            for server in self.servers:
                running.enter_context(server)
            first, *replicas = self.servers
            for replica in replicas:
                ask(replica, "REPLICAOF", HOST, first.port)
                wait_until(f"{replica} to follow", _follows, replica, first)
            for number, sentinel in enumerate(self.sentinels):
                sentinel.config = self._config(number, names)
                running.enter_context(sentinel)
                self._hasten(sentinel)
            wait_until("the Sentinels to know all", self._all_known)
            self._running = running.pop_all()
        return self

    def stop(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def master(self) -> Server:
        """The master, as the first Sentinel that runs tells it."""
        return self._master_for(next(sentinel for sentinel in self.sentinels if sentinel.up))

    def failover(self) -> Server:
        """Promote a replica; return the new master once all agree and the old one follows it. About three seconds."""
        old = self.master()
        ask(self.sentinels[0], "SENTINEL", "FAILOVER", SERVICE)
        new = self._await_other_than(old)
        wait_until(f"{old} to follow {new}", _follows, old, new)
        return new

    def crash(self) -> Server:
        """Kill the master; return the new one once the Sentinels have promoted it. About two seconds."""
        old = self.master()
        old.kill()
        return self._await_other_than(old)

    def revive(self) -> None:
        """Start what was killed, wake what was paused, and wait until it follows the master. A start is empty."""
        for server in self.servers:
            if not server.up:
                if server.process is None:
                    server.start()
                server.resume()
                wait_until(f"{server} to follow", _follows, server, self.master())

    def _await_other_than(self, old: Server) -> Server:
        def agreed() -> bool:
            told = [self._master_for(sentinel) for sentinel in self.sentinels if sentinel.up]
            return all([master is told[0] and master is not old for master in told]) and is_master(told[0])

        wait_until(f"another master than {old}", agreed)
        return self.master()

    def _master_for(self, sentinel: Server) -> Server:
        _, port = ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def _config(self, number: int, names: list[str]) -> str:
        master, *replicas = self.servers
        others = [(s.port, name) for s, name in zip(self.sentinels, names, strict=True) if name != names[number]]
        quick = number == 0
        lines = [
            f"myid {names[number]}",
            f"monitor {SERVICE} {HOST} {master.port} {1 if quick else 2}",
            f"down-after-milliseconds {SERVICE} {400 if quick else 4000}",
            f"failover-timeout {SERVICE} 2000",
            *[f"known-replica {SERVICE} {HOST} {replica.port}" for replica in replicas],
            *[f"known-sentinel {SERVICE} {HOST} {port} {name}" for port, name in others],
        ]
        return "".join(f"sentinel {line}\n" for line in lines)

    def _hasten(self, sentinel: Server) -> None:
        """Let everything happen ten times as often, as far as one second allows, the period of INFO in a failover.

        Five pings must last longer, or no replica's word is fresh enough to promote it; and four publications, or the
        other Sentinels turn a replica back that was promoted and of which the leader does not know yet.
        """
        ask(sentinel, "SENTINEL", "DEBUG", "info-period", 100, "ask-period", 50, "tilt-period", 500)
        ask(sentinel, "SENTINEL", "DEBUG", "ping-period", 250, "publish-period", 400)

    def _all_known(self) -> bool:
        for sentinel in self.sentinels:
            state = ask(sentinel, "SENTINEL MASTER", SERVICE)
            if (state["num-slaves"], state["num-other-sentinels"]) != (len(self.servers) - 1, 2):
                return False
            replicas = ask(sentinel, "SENTINEL SLAVES", SERVICE)
            if state["flags"] != "master" or any(r["master-link-status"] != "ok" for r in replicas):
                return False
        return True


def _follows(server: Server, master: Server) -> bool:
    role, *place = ask(server, "ROLE")
    return role == "slave" and place[:3] == [HOST, master.port, "connected"]
