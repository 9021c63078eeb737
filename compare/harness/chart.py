"""The chart of a comparison: bars on a logarithmic scale, as SVG."""

import math

WIDTH, ROW, LABELS, BAR = 860, 44, 150, 16
INK, PALE, OURS, OURS_PALE = "#7a8594", "#c3cad3", "#0b6e4f", "#7fc4a8"


def chart(results, peers):
    """Two panels: cycles at 64 and 512 tasks; hand-overs at 16 and 128 waiters, each at its best setting."""
    best = lambda peer, waiters: max(
        (rate for rate in (results.rate(peer, (case, waiters)) for case in ("handover", "handover-fast")) if rate), default=None
    )
    panels = [
        ("Uncontended: acquire and release, a second", ("64 tasks", "512 tasks"), lambda p: [results.rate(p, ("cycle", n)) for n in (64, 512)]),
        ("Contended: hand-overs a second, each at its best setting", ("16 waiters", "128 waiters"), lambda p: [best(p, n) for n in (16, 128)]),
    ]
    height = 2 * (len(peers) * ROW + 90) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    top = 0
    for title, kinds, rates in panels:
        parts += panel(top, title, kinds, [(peer.name, rates(peer.name)) for peer in peers])
        top += len(peers) * ROW + 90
    return "\n".join([*parts, "</svg>", ""])


def panel(top, title, kinds, rows):
    found = [rate for _, rates in rows for rate in rates if rate]
    if not found:
        return
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    space = WIDTH - LABELS - 90
    x = lambda rate: LABELS + space * (math.log10(max(rate, 10**low)) - low) / max(1, high - low)
    bottom = top + 60 + len(rows) * ROW
    yield f'<text x="12" y="{top + 26}" font-size="16" font-weight="bold" fill="#1f2933">{title}</text>'
    for index, (kind, colour) in enumerate(zip(kinds, (PALE, INK))):
        left = WIDTH - 220 + index * 105
        yield f'<rect x="{left}" y="{top + 34}" width="12" height="12" fill="{colour}"/><text x="{left + 17}" y="{top + 45}" fill="#1f2933">{kind}</text>'
    for power in range(low, high + 1):
        at = x(10**power)
        yield f'<line x1="{at:.0f}" y1="{top + 54}" x2="{at:.0f}" y2="{bottom}" stroke="#e3e7ec"/>'
        yield f'<text x="{at:.0f}" y="{bottom + 16}" text-anchor="middle" fill="#52606d">{10**power:,}</text>'
    for number, (name, rates) in enumerate(rows):
        y = top + 60 + number * ROW
        ours = name == "tenure"
        weight = ' font-weight="bold"' if ours else ""
        yield f'<text x="{LABELS - 8}" y="{y + 22}" text-anchor="end" fill="#1f2933"{weight}>{name}</text>'
        for index, rate in enumerate(rates):
            at = y + index * (BAR + 1)
            if rate is None:
                yield f'<text x="{LABELS + 4}" y="{at + 13}" fill="#9aa5b1">not run</text>'
                continue
            colour = (OURS_PALE, OURS)[index] if ours else (PALE, INK)[index]
            width = max(1, x(rate) - LABELS)
            yield f'<rect x="{LABELS}" y="{at}" width="{width:.0f}" height="{BAR}" fill="{colour}"/>'
            yield f'<text x="{LABELS + width + 5:.0f}" y="{at + 13}" fill="#1f2933">{rate:,.0f}</text>'
