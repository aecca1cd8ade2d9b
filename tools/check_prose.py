#!/usr/bin/env python3
"""Counts phrases of README, docs, comments, messages and test names at which a reader stops.

    tools/check_prose.py             per folder; exit 1 if a folder has more than 1.0 per 1,000 words, or a page a paragraph
                                     of more than 120 words
    tools/check_prose.py FILE...     each phrase of these files as FILE:LINE, with what to write instead

In Markdown, code is not checked. In C, comments and strings with a space are. In Python and shell, comments and strings are.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 1.0  # phrases per 1,000 words
MOST_WORDS = 120  # of a paragraph
VERBS = r"(is|was|are|were|it|they|has|have|had|a|an|the|its|each|one|no|nobody|comes?|goes|does|did|may|must|can|could|would|will|\w+s)"
PHRASES = [(re.compile(pattern), instead) for pattern, instead in [
    (r"\banew\b", "again"),
    (r"\bfor want of\b", "because ... is missing"),
    (r"\b(is|are|was|were) told (of|that|by|to|in|with)\b", "receives, is notified"),
    (r"\btells? (of|what|who|how|which|apart)\b", "reports, describes"),
    (r"\bin (a|one) sentence\b", "with an error"),
    (r"\b(nobody|somebody|everybody)\b", "no rank, a rank, all ranks"),
    (r"\bknocks?\b|\bat the door\b", "connects, waits for admission"),
    (r"\bnewcomers?\b", "joining worker"),
    (r"\b(go|goes|went|going) on\b", "continue, resume"),
    (r"\bgives? (in|up for lost)\b|\bgiven in\b", "fails, is declared failed"),
    (r"\bso many\b|\bso-many-th\b|\bso long\b", "N, every N-th"),
    (r"\bunlike (workers|links|devices|machines|speed|groups|sizes)\b|\bof unlike\b", "heterogeneous"),
    (r"\balike\b", "identical"),
    (r"\bbesides? (it|them|those|the|each|a)\b", "next to, compared with, in addition to"),
    (r"\bbehind (it|them|a|the|its|each|later|one)\b", "after"),
    (r"\bmend(ed|s)?\b", "fixed"),
    (r"\bcuts? off\b", "residual, truncated, partitioned"),
    (r"\bmeeting\b", "rendezvous"),
    (r"\bhalf as fast\b", "takes twice the time"),
    (r"\bby (its|their) leave\b", "if it allows this"),
    (r"\bas (it|they) (has|have) (it|them)\b", "name the thing"),
    (r"\bof (its|one's|their) own\b(?=[,.;)])", "separate"),
    (r"\bsame bits\b|\bbits of (one|the|a|un|\w+d)\b", "bit-identical"),
    (r"\bthereof\b|\btherein\b|\bwhence\b|\bhence\b", "name the thing"),
    (r"\bunder way\b", "in flight, in progress"),
    (r"\bat a stretch\b", "without a pause"),
    (r"\bstands? (in|at|on|for|beside|behind|before)\b", "is in, is at, means"),
    (r"\blies? (in|at|on|beside|where)\b", "is in, is at"),
    (r"(^|[.:;(|] ?|, )(What|Who|Whoever|Whose|Whom|what|who|whoever) " + VERBS + " ", "start with a concrete noun"),
    (r"\b(of|by|with|from|to|for|in|on|than|and|or) (what|who|whom|whoever) "
     r"(is|was|are|were|it|they|has|have|had|a|an|the|its|each|comes?|goes|may|must|can|\w+s)\b", "name the thing"),
    (r"\b(that|those) of (the|its|a|an|one|each|\w+s)\b", "repeat the noun"),
]]
C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
SCRIPT_TEXT = re.compile(r'#\s(.*)|"""(.*)|"([^"]* [^"]*)"')
CHECKED = re.compile(r"\.md$|^(src|examples|tests|python|bench|tools)/.*\.(c|h|cuh|cu|cpp|py|sh)$")
EXEMPT = ("dreamddp.h", "dreamddp_cuda.cuh", "tools/check_prose.py", "tests/base/test_check_prose.py", "bench/claims_cases.py")  # generated; lists; quotes


def lines_of(path):
    """The text of a file as (number of the line, words)."""
    with open(path, encoding="utf-8", errors="replace") as f:
        text = f.read()
    if path.endswith(".md"):
        code = False
        for number, line in enumerate(text.split("\n"), 1):
            if line.startswith("```"):
                code = not code
            elif not code:
                yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line)
    elif path.endswith((".py", ".sh")):
        for number, line in enumerate(text.split("\n"), 1):
            found = SCRIPT_TEXT.search(line)
            if found:
                yield number, next((group for group in found.groups() if group), "")
    else:
        for found in C_TEXT.finditer(text):
            if found.group().startswith('"') and " " not in found.group():
                continue
            first = text.count("\n", 0, found.start()) + 1
            for k, line in enumerate(found.group().split("\n")):
                yield first + k, line


def phrases_of(path):
    """The phrases of a file as (number of the line, phrase, what to write instead), and the number of its words."""
    found, words = [], 0
    for number, line in lines_of(path):
        words += len(re.findall(r"[A-Za-z]{2,}", line))
        for pattern, instead in PHRASES:
            found += [(number, match.group().strip(), instead) for match in pattern.finditer(line)]
    return found, words


def long_paragraphs(path):
    """The paragraphs of a page that have more than MOST_WORDS words, as (their first words, number of words)."""
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"```.*?```|<!--.*?-->", "", f.read(), flags=re.S)
    for block in re.split(r"\n\s*\n", text):
        words = block.split()
        if not block.lstrip().startswith(("|", "-", "*", "#", "1.")) and len(words) > MOST_WORDS:
            yield " ".join(words[:6]), len(words)


def check_all():
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    counts, bad = {}, False
    for path in tracked:
        if not CHECKED.search(path) or path in EXEMPT or not os.path.exists(path):
            continue
        folder = path.split("/")[0] if "/" in path else "top"
        found, words = phrases_of(path)
        before = counts.get(folder, (0, 0))
        counts[folder] = (before[0] + len(found), before[1] + words)
        for start, n in long_paragraphs(path) if path.startswith("docs/") else ():
            print("check_prose: %s: the paragraph \"%s ...\" has %d words; at most %d" % (path, start, n, MOST_WORDS), file=sys.stderr)
            bad = True
    for folder, (phrases, words) in sorted(counts.items()):
        rate = 1000 * phrases / max(1, words)
        print("%-10s %6d words %5d phrases %5.1f per 1,000" % (folder, words, phrases, rate))
        if rate > LIMIT:
            print("check_prose: %s has %.1f odd phrases per 1,000 words; at most %.1f: run tools/check_prose.py with its files" % (
                folder, rate, LIMIT), file=sys.stderr)
            bad = True
    return bad


def main(paths):
    if paths:
        for path in paths:
            for number, phrase, instead in phrases_of(path)[0]:
                print("%s:%d: \"%s\" -> %s" % (path, number, phrase, instead))
        return 0
    os.chdir(ROOT)
    return 1 if check_all() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
