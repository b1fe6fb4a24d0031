"""A real master under real Sentinels, for the tests: servers of tests/servers.py with other flags and a few commands.

Every method waits until the Sentinels agree on the change. The servers listen on 127.0.0.1 only, and end when the
process that started them ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from secrets import token_hex
from typing import Self

from tests.proxies import Wire
from tests.servers import HOST, MAKERS, Server, ask, is_master, redis_server, valkey_server, wait_until

SERVICE = "front"  # the Sentinels' name of their master
SENTINELS = [make for name, make in MAKERS.items() if name != "redis6"]  # redis6 cannot be made faster


class Sentinels:
    """A master, its replica and three Sentinels that watch them.

    The first Sentinel notices within 0.4 seconds that the master is down. It needs no other Sentinel to agree; the
    others only vote. (Three Sentinels that are equally quick may split their votes, and then wait for seconds.) Between
    two failovers that it starts itself, it would wait four seconds.

    If they are `wired`, all connections to a server, of clients, Sentinels and replicas, go through a proxy, whose port
    the Sentinels name. Then `cut_off` separates a server from some of them, and `heal` ends that.
    """

    def __init__(self, make: Callable[..., Server] = valkey_server, *, replicas: int = 1, wired: bool = False) -> None:
        # With these flags a replica synchronises and gets writes at once. Without them both take up to a second.
        flags = ["--repl-diskless-sync", "no", "--repl-diskless-load", "swapdb"]
        if make is not redis_server:  # it is unknown to 6.2
            flags += ["--shutdown-timeout", "0"]  # without it, a master waits for its replicas when it stops
        self.servers = [make(*flags) for _ in range(1 + replicas)]
        self.sentinels = [(valkey_server if make is redis_server else make)("--sentinel") for _ in range(3)]
        self._wires = {server: Wire(server.port) for server in self.servers} if wired else {}
        for number, server in enumerate(self.servers + self.sentinels if wired else (), 21):
            server.comes_from(f"127.0.0.{number}")
        for server, wire in self._wires.items():
            server.arguments += ("--replica-announce-ip", HOST, "--replica-announce-port", str(wire.port))
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

    def name_of(self, server: Server) -> str:
        """Return the address of a master or replica, as the Sentinels name it."""
        return f"{HOST}:{self.port_of(server)}"

    def port_of(self, server: Server) -> int:
        """Return the port of a master or replica, as the Sentinels name it."""
        return self._wires[server].port if server in self._wires else server.port

    def start(self) -> Self:
        """Start all. Returns when every Sentinel knows every server: after about half a second."""
        names = [token_hex(20) for _ in self.sentinels]
        with ExitStack() as running:
            for wire in self._wires.values():
                running.enter_context(wire)
            for server in self.servers:
                running.enter_context(server)
            first, *replicas = self.servers
            for replica in replicas:
                ask(replica, "REPLICAOF", HOST, self.port_of(first))
                wait_until(f"{replica} to follow", self._follows, replica, first)
            for number, sentinel in enumerate(self.sentinels):
                sentinel.config = self._config(number, names)
                running.enter_context(sentinel)
                self._speed_up(sentinel)
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
        """Return the master, as the first running Sentinel names it."""
        return self._master_for(next(sentinel for sentinel in self.sentinels if sentinel.up))

    def failover(self) -> Server:
        """Promote a replica. Returns the new master when all Sentinels agree and the old master replicates it: about
        three seconds.
        """
        old = self.master()
        ask(self.sentinels[0], "SENTINEL", "FAILOVER", SERVICE)
        new = self._await_other_than(old)
        wait_until(f"{old} to follow {new}", self._follows, old, new)
        return new

    def cut_off(self, server: Server, *, clients: bool = True, sentinels: bool = True) -> None:
        """Let nothing pass from clients to a master, or from Sentinels and replicas to it. No connection is closed.
        Until `heal`.
        """
        own = [each for each in self.servers + self.sentinels if each is not server]
        if clients:
            self._wires[server].partition(HOST)
        if sentinels:
            self._wires[server].partition(*[each.source for each in own])

    def heal(self) -> None:
        """End what `cut_off` did."""
        for wire in self._wires.values():
            wire.heal()

    def crash(self) -> Server:
        """Kill the master. Returns the new one when the Sentinels have promoted it: about two seconds."""
        old = self.master()
        old.kill()
        return self._await_other_than(old)

    def revive(self) -> None:
        """Start killed servers, empty, and resume paused ones. Wait until they replicate the master."""
        for server in self.servers:
            if not server.up:
                if server.process is None:
                    server.start()
                server.resume()
                wait_until(f"{server} to follow", self._follows, server, self.master())

    def _await_other_than(self, old: Server) -> Server:
        def agreed() -> bool:
            named = [self._master_for(sentinel) for sentinel in self.sentinels if sentinel.up]
            return all([master is named[0] and master is not old for master in named]) and is_master(named[0])

        wait_until(f"another master than {old}", agreed)
        return self.master()

    def _master_for(self, sentinel: Server) -> Server:
        _, port = ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if self.port_of(server) == int(port))

    def _config(self, number: int, names: list[str]) -> str:
        master, *replicas = self.servers
        others = [(s.port, name) for s, name in zip(self.sentinels, names, strict=True) if name != names[number]]
        quick = number == 0
        lines = [
            f"myid {names[number]}",
            f"announce-ip {HOST}",  # else the address from which its connections come
            f"monitor {SERVICE} {HOST} {self.port_of(master)} {1 if quick else 2}",
            f"down-after-milliseconds {SERVICE} {400 if quick else 4000}",
            f"failover-timeout {SERVICE} 2000",
            *[f"known-replica {SERVICE} {HOST} {self.port_of(replica)}" for replica in replicas],
            *[f"known-sentinel {SERVICE} {HOST} {port} {name}" for port, name in others],
        ]
        return "".join(f"sentinel {line}\n" for line in lines)

    def _speed_up(self, sentinel: Server) -> None:
        """Make every period ten times shorter, except the period of INFO during a failover, which is one second.

        Five pings must last longer than that second. Otherwise no replica has reported recently enough to be promoted.
        Four publications must last longer too. Otherwise the other Sentinels demote a replica that was promoted before
        the leader knows of the promotion.
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

    def _follows(self, server: Server, master: Server) -> bool:
        role, *place = ask(server, "ROLE")
        return role == "slave" and place[:3] == [HOST, self.port_of(master), "connected"]
