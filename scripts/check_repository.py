#!/usr/bin/env python3
"""Checks that no file names a path of one machine or the host of a package registry.

Usage: check_repository.py <file>...
       check_repository.py --self-test
"""

import re
import sys
import tempfile
from pathlib import Path

# A bracket in each pattern keeps this file from matching itself.
RULES = {
    "absolute path of one machine": re.compile(
        r"(?<![\w./$}~-])/(?:wor[k]|roo[t]|hom[e])(?:/|\b)(?!\()"
    ),
    "package registry": re.compile(
        r"py[p]i\.(?:org|python)|python[h]osted\.|download\.py[t]orch\.|deb\.de[b]ian\.|"
        r"(?:archive|security|ports)\.ubun[t]u\.|registry\.n[p]mjs\.|anacon[d]a\.(?:org|com)|"
        r"cra[t]es\.io|ghc[r]\.io|doc[k]er\.io|qua[y]\.io|(?:extra-)?index[-]url|find[-]links",
        re.IGNORECASE,
    ),
}
MARKER = re.compile(r"^(?:<{7}|>{7}) ")


def findings(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError):
        return []  # a corpus file, an image
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for name, pattern in RULES.items():
            if match := pattern.search(line):
                found.append(f"{path}:{number}: {name}: {match.group(0)}")
        if MARKER.match(line):
            found.append(f"{path}:{number}: conflict marker")
    return found


def self_test() -> list[str]:
    bad = [
        "cd /wor" + "k/main",
        'path = "/hom' + 'e/me/x"',
        "/roo" + "t",
        "https://py" + "pi.org/simple",
        "pip install --index" + "-url x",
        "<<<<<<" + "< HEAD",
    ]
    good = ["src/work/x", "benchmarks/root", "$HOME/x", "a/home/b", "std::filesystem::path()"]
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "sample.txt"
        for line in bad + good:
            sample.write_text(line + "\n", encoding="utf-8")
            if bool(findings(sample)) != (line in bad):
                errors.append(f"self-test: wrong verdict on {line!r}")
    return errors


def main(arguments: list[str]) -> int:
    if arguments == ["--self-test"]:
        found = self_test()
    else:
        found = [line for name in arguments for line in findings(Path(name))]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
