"""The part of a page that a script writes."""

from harness.peers import Failure

END = "<!-- end -->"


def write(page, begin, text):
    """Puts the text between the line `begin` and the next end."""
    old = page.read_text()
    if begin not in old or END not in old.split(begin, 1)[1]:
        raise Failure(f"{page.name} has no {begin} and {END} to write between")
    before, rest = old.split(begin, 1)
    page.write_text(f"{before}{begin}\n{text}\n{END}{rest.split(END, 1)[1]}")
