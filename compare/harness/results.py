"""What the rounds found, and the tables of COMPARE.md."""

import statistics

from harness.peers import QUORUM

CYCLES = [("cycle", tasks) for tasks in (1, 64, 512)]
HANDOVERS = [("handover", waiters) for waiters in (2, 16, 128)]
FAST = [("handover-fast", waiters) for waiters in (2, 16, 128)]
CASES = CYCLES + HANDOVERS + FAST
# On a majority of five servers, by those that can: see QUORUM in peers.py.
MAJORITY = [("cycle of a majority", tasks) for tasks in (1, 64)]


class Results:
    """The figures of every round, or why there are none."""

    def __init__(self):
        self.rounds = {}
        self.reasons = {}

    def add(self, peer, case, figures):
        if "not_run" in figures:
            self.reasons[peer, case] = figures["not_run"]
            self.rounds.pop((peer, case), None)
        else:
            self.rounds.setdefault((peer, case), []).append(figures)

    def rate(self, peer, case):
        """Operations a second, the median of the rounds; None where it was not run."""
        return self.median(peer, case, lambda one: one["operations"] / one["seconds"])

    def figure(self, peer, case, field):
        return self.median(peer, case, lambda one: one[field])

    def median(self, peer, case, of):
        found = [of(one) for one in self.rounds.get((peer, case), [])]
        found = [one for one in found if one is not None]
        return statistics.median(found) if found else None

    def tables(self, peers):
        """The tables, as Markdown."""
        text = "Cycles a second, and their part of what the raw socket does (uncontended: tasks on names of their own, one connection):\n\n"
        text += self.table(peers, CYCLES, "task", lambda peer, case: shown(self.rate(peer, case)) + self.part(peer, case))
        text += "\nTheir latency, p50 / p99 in us, and the client's CPU, us for each:\n\n"
        text += self.table(peers, CYCLES, "task", self.latency)
        text += "\nWhat the server does for each: commands, with those that scripts call, and CPU in us:\n\n"
        text += self.table(peers, CYCLES, "task", self.server)
        text += "\nHand-overs a second (contended: waiters with a connection each pass one name on), as each waits by itself, and how many times\n"
        text += "as many tenure makes:\n\n"
        text += self.table(peers, HANDOVERS, "waiter", lambda peer, case: shown(self.rate(peer, case)) + self.ours(peer, case))
        text += "\nThe same with the shortest retry that each can be set to:\n\n"
        text += self.table(peers, FAST, "waiter", lambda peer, case: shown(self.rate(peer, case)))
        text += "\nFrom the call of release to the grant of the next waiter, p50 / p99 in us, and the client's CPU, us for each, by itself:\n\n"
        text += self.table(peers, HANDOVERS, "waiter", self.latency)
        text += "\nWhat the server does for each hand-over: commands, with those that scripts call, and CPU in us:\n\n"
        text += self.table(peers, HANDOVERS, "waiter", self.server)
        quorum = [peer for peer in peers if peer.name in QUORUM]
        if not quorum:
            return text
        text += "\nCycles a second on a majority of five servers, and how many times as many tenure makes; p50 / p99 in us; the client's CPU, us for each; the\n"
        text += "servers' commands and CPU, us for each:\n\n"
        cell = lambda peer, case: f"{shown(self.rate(peer, case))}{self.ours(peer, case)}; {self.latency(peer, case)}; {self.server(peer, case)}"
        return text + self.table(quorum, MAJORITY, "task", cell)

    def table(self, peers, cases, unit, cell):
        heads = [f"{count} {unit}{'s' if count > 1 else ''}" for _, count in cases]
        lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(cases)]
        for peer in peers:
            reasons = [self.reasons.get((peer.name, case)) for case in cases]
            if None not in reasons and len(set(reasons)) == 1:
                reasons[1:] = [""] * (len(cases) - 1)
            cells = [cell(peer.name, case) if why is None else why and f"not run: {why}" for case, why in zip(cases, reasons)]
            lines.append(f"| {peer.name} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def part(self, peer, case):
        limit, rate = self.rate("raw", case), self.rate(peer, case)
        return f" ({rate / limit:.2f})" if limit else ""

    def ours(self, peer, case):
        ours, rate = self.rate("tenure", case), self.rate(peer, case)
        return f" ({ours / rate:.2f})" if ours and rate and peer != "tenure" else ""

    def latency(self, peer, case):
        p50, p99, cpu = (self.figure(peer, case, field) for field in ("p50_us", "p99_us", "client_cpu_us_per_operation"))
        return f"{shown(p50)} / {shown(p99)}; {shown(cpu)}"

    def server(self, peer, case):
        commands, cpu = (self.figure(peer, case, f"server_{part}_per_operation") for part in ("commands", "cpu_us"))
        return f"{shown(commands)}; {shown(cpu)}"


def shown(figure):
    """Three digits that matter, with thousands set off."""
    if figure is None:
        return "none"
    if figure < 10:
        return f"{figure:.1f}"
    digits = max(0, len(str(int(figure))) - 3)
    return f"{round(figure, -digits):,.0f}"
