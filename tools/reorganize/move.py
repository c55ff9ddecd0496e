"""Move and merge the files of `src/acorn` as `map.toml` says, and update every reference to them."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src/acorn"
MAP = tomllib.loads((Path(__file__).parent / "map.toml").read_text())
FILES: dict[str, list[str]] = MAP["files"]


def dotted(path: str) -> str:
    return ".".join(["acorn", *path.removesuffix(".py").split("/")]).removesuffix(".__init__")


MOVED = {dotted(old): dotted(new) for new, olds in FILES.items() for old in olds if dotted(old) != dotted(new)}
PACKAGES = {dotted(str(p.parent.relative_to(SRC))) for p in SRC.rglob("__init__.py") if p.parent != SRC} | {"acorn"}


def rename_names(text: str, names: dict[str, str]) -> str:
    """Rename bare names (not attributes, not keywords of calls) in Python source."""
    if not names:
        return text
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    edits = []
    depth = 0
    for at, token in enumerate(tokens):
        if token.type == tokenize.OP:
            depth += token.string in "([{"
            depth -= token.string in ")]}"
        if token.type == tokenize.STRING and re.match(r"[rRbB]?[fF]", token.string):
            new = FIELD.sub(lambda m: rename_in_field(m, names), token.string)
            if new != token.string:
                edits.append((token.start, token.end, new))
        elif token.type == tokenize.STRING and re.fullmatch(r"[\"'][\w\[\], |.]+[\"']", token.string):
            new = re.sub(
                r"[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]) if m[0] != m[0].lower() else m[0], token.string
            )
            if new != token.string:
                edits.append((token.start, token.end, new))
        if token.type != tokenize.NAME or token.string not in names:
            continue
        before = tokens[at - 1].string if at else ""
        after = tokens[at + 1].string if at + 1 < len(tokens) else ""
        if before == "." or (after == "=" and depth > 0):
            continue
        edits.append((token.start, token.end, names[token.string]))
    for (row, start), (last, end), new in reversed(edits):
        head, tail = lines[row - 1][:start], lines[last - 1][end:]
        lines[row - 1 : last] = (head + new + tail).splitlines(keepends=True)
    return "".join(lines)


FIELD = re.compile(r"(?<!\{)\{(?!\{)[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def rename_in_field(match: re.Match[str], names: dict[str, str]) -> str:
    """Rename bare names inside a replacement field of an f-string."""
    pattern = r"(?<![\w.'\"])(" + "|".join(map(re.escape, names)) + r")(?![\w'\"]|=[^=])"
    return re.sub(pattern, lambda m: names[m[1]], match[0])


def rename_symbols(texts: dict[str, str]) -> None:
    """Rename top-level names of old modules where they are defined, and in every file that imports them."""
    table = {dotted(source): names for source, names in MAP.get("symbols", {}).items()}
    for path, text in texts.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        names: dict[str, str] = {}
        here = dotted(path.removeprefix("src/acorn/")) if path.startswith("src/acorn/") else ""
        names |= table.get(here, {})
        attributes: dict[tuple[str, str], str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in table:
                for a in node.names:
                    if a.name in table[node.module]:
                        if a.asname is None:
                            names[a.name] = table[node.module][a.name]
                        else:
                            attributes["import", a.name] = table[node.module][a.name]
            if isinstance(node, ast.ImportFrom) and node.module in PACKAGES:
                for a in node.names:
                    if f"{node.module}.{a.name}" in table:
                        for old, new in table[f"{node.module}.{a.name}"].items():
                            attributes[a.asname or a.name, old] = new
        if names:
            text = rename_names(text, names)
        text = re.sub(
            r"(?ms)^__all__ = [\[(].*?[\])]$",
            lambda m: re.sub(r'"(\w+)"', lambda n: '"' + names.get(n[1], n[1]) + '"', m[0]),
            text,
        )
        for (left, old), new in attributes.items():
            if left == "import":
                text = re.sub(rf"\b{old} as\b", f"{new} as", text)
            else:
                text = re.sub(rf"(?<![\w.]){left}\.{old}\b", f"{left}.{new}", text)
        texts[path] = text


WORDS: dict[str, str] = MAP["words"]
WORD = re.compile(r"\b(" + "|".join(WORDS) + r")\b")


def split_package_imports(text: str) -> str:
    """Rewrite `from acorn.pkg import submodule` for moved submodules, and their uses."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    lines = text.splitlines(keepends=True)
    attribute_renames: dict[str, str] = {}
    edits = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module or node.module not in PACKAGES:
            continue
        hits = [a for a in node.names if f"{node.module}.{a.name}" in MOVED]
        if not hits:
            continue
        rest = [a for a in node.names if a not in hits]
        indent = " " * node.col_offset
        out = []
        if rest:
            out.append(
                f"{indent}from {node.module} import "
                + ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in rest)
                + "\n"
            )
        for a in hits:
            package, _, name = MOVED[f"{node.module}.{a.name}"].rpartition(".")
            package = package.replace("acorn", "NEWACORN", 1)
            if a.asname:
                out.append(f"{indent}from {package} import {name} as {a.asname}\n")
            else:
                out.append(f"{indent}from {package} import {name}\n")
                if name != a.name:
                    attribute_renames[a.name] = name
        edits.append((node.lineno, node.end_lineno, "".join(out)))
    for start, end, new in sorted(edits, reverse=True):
        lines[start - 1 : end] = [new]
    text = "".join(lines)
    for old, new in attribute_renames.items():
        text = rename_names(text, {old: new})
    return text


PATTERN = re.compile(
    r"(?<![\w.])(" + "|".join(re.escape(old) for old in sorted(MOVED, key=len, reverse=True)) + r")(?![\w])"
)


def replace_paths(text: str) -> str:
    return PATTERN.sub(lambda match: MOVED[match[1]], text).replace("NEWACORN", "acorn")


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def top_names(tree: ast.Module) -> list[str]:
    names = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [t.id for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names


def merge(target: str, texts: list[tuple[str, str]]) -> str:
    """One file of several, in order: imports together, then the bodies."""
    own = dotted(target)
    renames: dict[str, dict[str, str]] = {}
    seen: dict[str, tuple[str, str]] = {}
    for source, text in texts:
        tree = ast.parse(text)
        for node in tree.body:
            for name in top_names(ast.Module([node], [])):
                segment = ast.get_source_segment(text, node) or ""
                if name in seen and seen[name][0] != source:
                    if seen[name][1] == segment:
                        renames.setdefault(source, {})[name] = ""  # the same definition: drop it here
                        continue
                    given = MAP.get("collisions", {}).get(source, {}).get(name)
                    if given is None:
                        print(f"COLLISION {target}: {source} {name} (also in {seen[name][0]})")
                        given = f"{name}_{Path(source).stem}"
                    renames.setdefault(source, {})[name] = given
                    name = given
                seen[name] = (source, segment)
    header, typing_only, bodies, docs = [], [], [], []
    for source, text in texts:
        drop = {n for n, new in renames.get(source, {}).items() if not new}
        text = rename_names(text, {n: new for n, new in renames.get(source, {}).items() if new})
        tree = ast.parse(text)
        lines = text.splitlines(keepends=True)
        removed: set[int] = set()
        doc = ast.get_docstring(tree, clean=False)
        for at, node in enumerate(tree.body):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if at == 0 and doc is not None:
                docs.append(doc)
                removed.update(span)
            elif is_import(node):
                removed.update(span)
                header += keep_import(node, lines, own)
            elif is_type_checking(node):
                removed.update(span)
                for each in node.body:  # type: ignore[attr-defined]
                    typing_only += keep_import(each, lines, own)
            elif top_names(ast.Module([node], [])) and set(top_names(ast.Module([node], []))) <= drop:
                removed.update(span)
        body = "".join(line for number, line in enumerate(lines, start=1) if number not in removed)
        bodies.append(body.strip("\n"))
    future = "from __future__ import annotations\n"
    header = [line for line in dict.fromkeys(header) if line.strip() != future.strip()]
    typing_only = [line for line in dict.fromkeys(typing_only) if line not in header]
    out = (
        '"""'
        + "\n\n".join(doc.strip() for doc in docs if doc).replace('"""', '"')
        + ('\n"""' if any("\n" in d for d in docs) or len(docs) > 1 else '"""')
        + "\n\n"
        + future
        + "\n"
        + "".join(header)
    )
    if typing_only:
        out += "\nif TYPE_CHECKING:\n" + "".join("    " + line for line in typing_only)
        if "from typing import TYPE_CHECKING" not in out and not re.search(
            r"from typing import .*\bTYPE_CHECKING\b", out
        ):
            out = out.replace(future + "\n", future + "\nfrom typing import TYPE_CHECKING\n", 1)
    return out + "\n\n" + "\n\n\n".join(bodies) + "\n"


def keep_import(node: ast.stmt, lines: list[str], own: str) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        if node.module == own:
            for a in node.names:
                if a.asname and a.asname != a.name:
                    print(f"SELF ALIAS {own}: {a.name} as {a.asname}")
            return []
        package, _, name = own.rpartition(".")
        kept = [a for a in node.names if not (node.module == package and a.name == name)]
        if len(kept) != len(node.names):
            print(f"SELF MODULE {own}")
        level = "." * node.level
        return [
            f"from {level}{node.module or ''} import {a.name}" + (f" as {a.asname}" if a.asname else "") + "\n"
            for a in kept
        ]
    if isinstance(node, ast.Import):
        return ["import " + a.name + (f" as {a.asname}" if a.asname else "") + "\n" for a in node.names]
    print(f"ODD in imports of {own}: {ast.unparse(node)[:60]}")
    return [ast.unparse(node) + "\n"]


def git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    texts: dict[str, str] = {}
    for name in tracked:
        path = ROOT / name
        if name and path.suffix == ".py" and path.is_file() and not name.startswith("tools/reorganize/"):
            texts[name] = path.read_text(encoding="utf-8")
    rename_symbols(texts)
    for name, text in texts.items():
        (ROOT / name).write_text(text, encoding="utf-8")
    for name in tracked:
        path = ROOT / name
        if (
            not name
            or name.startswith("tools/reorganize/")
            or path.suffix not in (".py", ".md", ".toml", ".txt", ".js", ".html", ".sql", "")
        ):
            continue
        if path.is_symlink() or not path.is_file() or name.endswith(".lock"):
            continue
        text = path.read_text(encoding="utf-8")
        new = split_package_imports(text) if path.suffix == ".py" else text
        new = WORD.sub(lambda match: WORDS[match[1]], replace_paths(new))
        if new != text:
            path.write_text(new, encoding="utf-8")
    texts = {old: (SRC / old).read_text(encoding="utf-8") for olds in FILES.values() for old in olds}
    for new, olds in FILES.items():
        target = SRC / new
        target.parent.mkdir(parents=True, exist_ok=True)
        largest = max(olds, key=lambda old: len(texts[old]))
        if largest != new:
            if target.exists() and new not in olds:
                raise SystemExit(f"{new} exists")
            if new in olds:
                pass
            else:
                git("mv", f"src/acorn/{largest}", f"src/acorn/{new}")
    for new, olds in FILES.items():
        text = texts[olds[0]] if len(olds) == 1 else merge(new, [(old, texts[old]) for old in olds])
        (SRC / new).write_text(text, encoding="utf-8")
        for old in olds:
            if old != new and old not in FILES and (SRC / old).exists():
                (SRC / old).unlink()
    for old in MAP["gone"]["files"]:
        (SRC / old).unlink()
    for folder, text in MAP["folders"].items():
        init = SRC / folder / "__init__.py"
        init.write_text(f'"""{text}"""\n', encoding="utf-8")
    for folder in sorted((p for p in SRC.rglob("*") if p.is_dir()), reverse=True):
        left = [p for p in folder.iterdir() if p.name != "__pycache__"]
        if not left:
            for p in folder.rglob("*.pyc"):
                p.unlink()
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    git("add", "-A", "src")


if __name__ == "__main__":
    main()
