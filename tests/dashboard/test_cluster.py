"""The dashboard of an application on a cluster: the counts are on one node, and the bans on all."""

from __future__ import annotations

import re

from sluicegate import Limiter
from sluicegate.dashboard import Dashboard
from sluicegate.plan import Check
from sluicegate.rules.ban import Ban
from tests.cluster import Cluster
from tests.dashboard.applications import Visitor


def test_it_shows_all_nodes(cluster: Cluster) -> None:
    cluster.flush()
    dashboard = Dashboard(cluster.url, authorize=lambda request: True, writable=True)
    ban = Ban(name="strikes", after=3, within=60, duration=600)
    with Limiter(cluster.url, deadline=2, on_decision=dashboard.note) as limiter:
        for number in range(20):
            for _ in range(3):
                limiter.hit("1/minute", f"{number}", action="reply")
            limiter.ban(f"{number}", ban)
        limiter.decide(limiter.runs["peek"][(ban.terms,)], (Check(ban.terms, "s0", 0),))
        dashboard.note.send()
    visitor = Visitor(dashboard, "wsgi")
    assert '<td class="n refusals">40</td>' in visitor.get().body
    found, path = set[str](), "bans"
    while path:
        page = visitor.get(f"/{path}").body
        found.update(re.findall('Unban ([^"]+)', page))
        following = re.search('href="(bans.from=[^"]+)"', page)
        path = following[1] if following else ""
    assert len(found) == 20
    dashboard.close()
