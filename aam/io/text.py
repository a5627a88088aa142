"""Text files: their rows and headers, the ids in them, and FASTA."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from aam.errors import InputError, reworded
from aam.files.atomic import MAX_BYTES, read_bytes
from aam.io.packed import EXEMPT, MAX_RATIO, ZIP_MAGIC, read_artifact

# Lines that a message lists.
MOST_LINES = 8

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
GZIP_MAGIC = b"\x1f\x8b"
R_MAGIC = (b"X\n\0", b"A\n2\n", b"A\n3\n", b"RDX", b"RDA")
# What begins with these bytes is no UTF-8 text.
OTHER_FORMATS = {
    (b"\xff\xfe", b"\xfe\xff"): "UTF-16 (Excel's 'Unicode text'), expected UTF-8; save as UTF-8",
    (HDF5_MAGIC,): "HDF5, as BIOM tables are, expected text",
    R_MAGIC: "an object of R (.rds or .RData), expected text; in R, save it with "
    "write.table(x, FILE, sep='\\t', quote=FALSE, col.names=NA)",
}

DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas"}

# Rows that are no comments, though they begin with #.
DIRECTIVE = ("#q2:", "#sk:")

# Letters and lines among which the header is looked for, and lines that tell the delimiter.
HEAD, HEADER_WITHIN, SNIFFED = 4 << 20, 1_000, 20

Row = tuple[int, list[str]]
Item = TypeVar("Item")


# --- content -----------------------------------------------------------------------------------


def read_content(
    path: Path, inside: Mapping[str, str], reason: str = "", remedy: str = ""
) -> bytes:
    """Return the content of a file, unpacked where gzip packed it, or of a file in a QIIME 2
    archive.

    `inside` and `reason` are those of `read_artifact`, `remedy` that of `read_bytes`.
    Raises `InputError`: it cannot be read, or is too large.
    """
    if read_bytes(path, head=len(ZIP_MAGIC)) == ZIP_MAGIC:
        return read_artifact(path, inside, reason)
    blob = read_bytes(path, remedy=remedy)
    if not blob.startswith(GZIP_MAGIC):
        return blob
    limit = min(MAX_BYTES, EXEMPT + MAX_RATIO * len(blob))
    with reworded((OSError, EOFError, zlib.error), f"{path}: damaged gzip file"):
        content = gzip.GzipFile(fileobj=io.BytesIO(blob)).read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path}: unpacks to more than {limit} bytes, is it damaged?")
    return content


def read_text(path: Path, inside: Mapping[str, str] = {}, reason: str = "") -> str:
    """Return the text that `read_content` reads."""
    return decoded(read_content(path, inside, reason), path)


def decoded(blob: bytes, where: Path | str) -> str:
    """Return UTF-8 text without byte order mark; `InputError` names the first byte that shows
    another encoding.
    """
    for beginnings, other in OTHER_FORMATS.items():
        if blob.startswith(beginnings):
            raise InputError(f"{where}: is {other}")
    text, position = "", blob.find(b"\0")
    try:
        text = blob.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0:
        line = blob.count(b"\n", 0, position) + 1
        place = f"line {line}: byte 0x{blob[position]:02x} at byte position {position}"
        remedy = "save as UTF-8, or convert Latin-1 with `iconv -f latin1 -t utf-8`"
        raise InputError(f"{where}: {place} is not UTF-8 text; {remedy}")
    return text


def unix(text: str) -> str:
    """Return the text with Unix line ends, whatever it has."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- rows --------------------------------------------------------------------------------------


class Faults:
    """Faults of a file, one message for each cause, with the first lines on which it stands."""

    def __init__(self, where: Path | str) -> None:
        self.where = where
        self.places: dict[str, list[str]] = {}

    def add(self, cause: str, line: int, value: str = "") -> None:
        """Add a fault on a line, with the value that shows it."""
        self.places.setdefault(cause, []).append(f"{line} ({value})" if value else str(line))

    @property
    def messages(self) -> list[str]:
        """One message per cause."""
        messages = []
        for cause, places in self.places.items():
            more = f" and {len(places) - MOST_LINES} more" if len(places) > MOST_LINES else ""
            listed = ", ".join(places[:MOST_LINES])
            messages.append(f"{self.where}: line {listed}{more}: {cause}")
        return messages

    def raise_if_any(self) -> None:
        """Raise `InputError` with the messages, if there are any."""
        if self.places:
            raise InputError(*self.messages)


def _cells(line: str, mark: str) -> list[str]:
    """Return the cells of one line, whose quotes may not close; the line itself if it is no csv."""
    try:
        return next(csv.reader([line], delimiter=mark), [""])
    except csv.Error:
        return [line]


def _delimiter(text: str, where: Path | str) -> str:
    """Find the separator of a table: the mark that gives its first rows the same number of cells,
    two or more.

    These rows begin with the header, or with the first line that is no comment (#). `InputError`
    where blanks separate the cells.
    """
    lines = [line for line in unix(text[:HEAD]).split("\n")[:HEADER_WITHIN] if line.strip()]
    headers = [x for x in lines if any(is_id_header(_cells(x, mark)) for mark in DELIMITERS)]
    header = [*headers, *(line for line in lines if not line.startswith("#")), *lines, ""][0]
    start = lines.index(header) if lines else 0
    rows = [line for line in lines[start : start + SNIFFED] if line == header or line[0] != "#"]

    def fit(mark: str) -> tuple[bool, float, int]:
        widths = [len(_cells(line, mark)) for line in rows] or [1]
        width = max(widths[0], 1)
        return width > 1, sum(found in (width, width + 1) for found in widths), width

    best = max(DELIMITERS, key=fit)
    width, *below = [len(row.split()) for row in rows] or [0]
    if not fit(best)[0] and width > 1 and set(below) in ({width}, {width + 1}):
        found = f"the cells of {rows[0][:60]!r} are separated by blanks, as write.table of R does"
        raise InputError(f"{where}: {found} by default; separate them by tabs (sep='\\t')")
    return best


def _rows(text: str, where: Path | str, delimiter: str) -> Iterator[Row]:
    """Yield line number and cells of each row, quoted as csv has them; any line ends, no blank
    lines or rows of empty cells, which spreadsheets write.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 0
    try:
        for cells in reader:
            line = reader.line_num
            if any(map(str.strip, cells)):
                yield line, cells
    except csv.Error as error:
        found = f"the row that begins on line {line + 1} cannot be read ({error})"
        remedy = 'a double quote is open or inside a cell: write it twice (""), or remove it'
        raise InputError(f"{where}: {found}; {remedy}") from error


def read_header(
    text: str, where: Path | str, expected: str, counts_below: bool = False
) -> tuple[list[str], Iterator[Row]]:
    """Return the cells of the header of a table, and the rows below it.

    The header is the first row that is no comment, and its first cell a name of ids. R names the
    column of row names by nothing, or leaves it out of the header: such a header begins with an
    empty cell. With `counts_below` any first cell will do where text stands above numbers. Empty
    cells at the end are left out where the row below holds nothing there either.

    Raises `InputError`: no such header; `expected` is said in the message.
    """
    delimiter = _delimiter(text, where)
    rows = _rows(text, where, delimiter)
    line, cells = next(rows, (0, []))
    while cells:
        below = next(rows, (0, []))
        body = itertools.chain([below] if below[1] else [], rows)
        cells = [cell.strip() for cell in cells]
        while len(cells) > 1 and not cells[-1] and not "".join(below[1][len(cells) - 1 :]).strip():
            cells.pop()
        first = cells[0]
        if is_id_header(cells) or (not first and any(cells)):
            return cells, body
        if counts_below and (are_names_of_r(cells) or _stands_above_counts(cells, below[1])):
            return cells, body
        if not first or (first.startswith("#") and not first.startswith(DIRECTIVE)):
            line, cells = below
            continue
        if len(below[1]) == len(cells) + 1:
            return ["", *cells], body
        begins = f"line {line} begins with {first[:60]!r}"
        cells_are = f"(cells separated by {DELIMITERS[delimiter]})"
        raise InputError(f"{where}: {begins} {cells_are}, expected {expected}")
    raise InputError(f"{where}: empty or nothing but comments, expected {expected}")


def is_real(cell: str) -> bool:
    """Return whether Python reads a cell as a number."""
    with contextlib.suppress(ValueError):
        float(cell)
        return True
    return False


def are_names_of_r(cells: list[str]) -> bool:
    """Return whether cells are V1, V2 and so on, as R calls the columns of a table without names;
    the first may be empty.
    """
    names = cells if cells[0] else cells[1:]
    return len(names) > 1 and names == [f"V{number}" for number in range(1, len(names) + 1)]


def _stands_above_counts(cells: list[str], below: list[str]) -> bool:
    """Return whether a row names columns of the row below, at least half of which hold numbers, and
    is text itself or begins with a `TABLE_HEADER`.
    """
    numbers = sum(map(is_real, below[1:]))
    if len(below) != len(cells) or numbers == 0 or 2 * numbers < len(cells) - 1:
        return False
    return has_name(cells[0], TABLE_HEADER) or not all(map(is_real, cells[1:]))


def read_rows(
    path: Path, inside: Mapping[str, str], expected: str
) -> tuple[list[str], Iterator[Row]]:
    """Return header and rows of a file, as `read_header` and `read_text` read them."""
    return read_header(read_text(path, inside), path, expected)


# --- ids ---------------------------------------------------------------------------------------

# Names of the first column, without case, blanks and punctuation.
SAMPLE_HEADER = re.compile(
    "ids?|samples?|sample(ids?|names?|identifier)|participantid|runaccession|biosample"
)
SAMPLE_ID = re.compile("samples?(ids?|names?|identifiers?)")
FEATURE_HEADER = re.compile(
    "x?otuids?|z?otus?|zotuid|asvs?|asvids?|features?|featureids?|sequences?|seqs?|seq(uence)?id|"
    "hash|rownames?|unnamed0"
)
# What else the column of features is called in tables of reads.
TABLE_HEADER = re.compile(
    "genes?|geneids?|cladenames?|names?|species|genus|esvs?|tax(a|on|onomy|id)|lineage|clusters?|"
    "mags?|bins?|organisms?|representativesequence"
)
LINEAGE_HEADER = re.compile("taxon|taxonomy|lineage|consensuslineage|classification")

INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))

# Changes that leave ids recognizable, by the words that describe them in a message.
CHANGES: dict[str, Callable[[str], str]] = {
    "blanks around them": str.strip,
    "quotes around them": lambda name: name.strip("'\"` "),
    "case": str.casefold,
    "their Unicode form": lambda name: unicodedata.normalize("NFKC", name).translate(INVISIBLE),
    "a leading X, which R adds": lambda name: re.sub(r"^[Xx](?=[\d._])", "", name),
    "a .0 at the end": lambda name: re.sub(r"(?<=\d)\.0+$", "", name),
    "zeros before numbers": lambda name: re.sub(r"(?<![\d.])0+(?=\d)", "", name),
    # The last, because "1.0" would lose its point.
    "- . _ and blanks": lambda name: re.sub(r"[\s._-]+", "", name),
}

# Where a suffix begins or a prefix ends.
BOUNDARY = re.compile(r"[._\-;:|/ ]")

# Ids that are looked at: enough to tell the reason.
MOST_WANTED, MOST_PRESENT = 1_000, 100_000

Pairs = dict[str, str]


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once; empty ones are no names."""
    return [name for name, times in Counter(names).items() if times > 1 and name]


def md5(sequence: str) -> str:
    """Return the feature id that QIIME 2 gives to a sequence."""
    return hashlib.md5(sequence.encode(), usedforsecurity=False).hexdigest()


def known_of(
    of_name: Mapping[str, Item], feature_ids: Sequence[str], sequences: Sequence[str] = ()
) -> Iterator[Item | None]:
    """Yield what is known of each feature by its id, or else by its sequence or the MD5 of that."""
    for feature, sequence in zip(feature_ids, sequences or feature_ids, strict=True):
        keys = (feature, sequence, md5(sequence))
        yield next((of_name[key] for key in keys if key in of_name), None)


def has_name(cell: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a cell is such a header: ``#OTU ID`` and ``otu_id`` are ``otuid``."""
    return bool(pattern.fullmatch(re.sub(r"[\W_]+", "", cell.lower())))


def is_id_header(cells: list[str]) -> bool:
    """Return whether a row is a header whose first cell names the column of ids."""
    is_remark = cells[0].startswith("# ") and len(cells) == 1
    return not is_remark and any(has_name(cells[0], p) for p in (SAMPLE_HEADER, FEATURE_HEADER))


def is_sample_header(cell: str) -> bool:
    """Return whether a cell says that ids are those of samples."""
    return has_name(cell, SAMPLE_HEADER) and not has_name(cell, re.compile("ids?"))


DELETE_INDEX = "delete the first column (in pandas, to_csv(..., index=False))"


def check_row_numbers(
    header: Sequence[str], ids: Sequence[str], where: Path | str, remedy: str = DELETE_INDEX
) -> None:
    """Raise `InputError` where the first column numbers the rows and a column of ids follows, as
    pandas writes a DataFrame with its index.
    """
    is_index = not header[0] or has_name(header[0], re.compile("unnamed0|rownames?|index"))
    first = [cell for cell in header[1:2] if has_name(cell, SAMPLE_HEADER)]
    others = [cell for cell in header[2:] if has_name(cell, SAMPLE_ID)]
    column = next(iter(first + others), "")
    numbers = [[str(number + start) for number in range(len(ids))] for start in (0, 1)]
    if is_index and column and [*ids] in numbers:
        found = f"the first column numbers the rows, and the ids are in column {column!r}"
        raise InputError(f"{where}: {found}; {remedy}")


def nameless_columns(header: Sequence[str], widths: Collection[int], rows: int) -> str:
    """Describe columns without a name: of empty cells of the header, or right of it, where all
    `rows` of the file have the same number of cells (`widths` of those that have more); "" if none.
    """
    places = [place for place, name in enumerate(header, 1) if place > 1 and not name]
    if len(widths) == rows and len(set(widths)) == 1:
        places += range(len(header) + 1, next(iter(widths)) + 1)
    listed = ", ".join(map(str, places[:MOST_LINES]))
    has = f"column {listed} has" if len(places) == 1 else f"columns {listed} have"
    return f"header: {has} values and no name; name each column, or delete it" if places else ""


def is_lineage_header(cell: str) -> bool:
    """Return whether a cell names a column of taxonomy."""
    return has_name(cell, LINEAGE_HEADER)


def _equal_without(words: Collection[str], wanted: list[str], present: list[str]) -> Pairs:
    """Return the id of `present` that equals each of `wanted` without these changes, where only
    one does.
    """
    folded: tuple[dict[str, list[str]], ...] = ({}, {})
    for names, by_key in zip((wanted, present), folded, strict=True):
        for name in names:
            key = name
            for change in CHANGES:
                key = CHANGES[change](key) if change in words else key
            by_key.setdefault(key, []).append(name)
    ours, theirs = folded
    keys = [key for key in ours.keys() & theirs.keys() if key]
    return {ours[k][0]: theirs[k][0] for k in keys if len(ours[k]) == len(theirs[k]) == 1}


def _with_more(long: list[str], short: list[str], suffix: bool) -> Pairs:
    """Return the id of `short` that each of `long` begins with, or ends with without `suffix`."""
    names, found = set(short), dict[str, list[str]]()
    for name in long:
        for match in BOUNDARY.finditer(name):
            part = name[: match.start()] if suffix else name[match.end() :]
            if part in names:
                found.setdefault(part, []).append(name)
    return {longer[0]: part for part, longer in found.items() if len(longer) == 1}


def difference(wanted: Iterable[str], present: Iterable[str]) -> str:
    """Describe how the wanted ids differ from the present ids.

    Parameters
    ----------
    wanted : iterable of str
        Ids that are looked for.
    present : iterable of str
        Ids among which they are looked for; ids of both sides are left out.

    Returns
    -------
    str
        For example ``"; 10 of 12 match when you ignore case ('s1' and 'S1')"``, to be appended to a
        message; empty where no change explains the mismatch.
    """
    here, there = set(wanted), set(present)
    missing, others = sorted(here - there)[:MOST_WANTED], sorted(there - here)[:MOST_PRESENT]
    reasons = {words: _equal_without({words}, missing, others) for words in CHANGES}
    together, needed = _equal_without(CHANGES, missing, others), list(CHANGES)
    for words in CHANGES:
        fewer = [change for change in needed if change != words]
        if len(_equal_without(fewer, missing, others)) == len(together):
            needed = fewer
    reasons.setdefault(" and ".join(needed[:4]), together)
    for words, suffix in (("a suffix", True), ("a prefix", False)):
        longer = _with_more(missing, others, suffix)
        shorter = {part: name for name, part in _with_more(others, missing, suffix).items()}
        reasons[words] = max(longer, shorter, key=len)
    reason, pairs = max(reasons.items(), key=lambda item: len(item[1]))
    if not pairs:
        return ""
    ours, theirs = min(pairs.items())
    counts = f"{len(pairs)} of {len(missing)}"
    return f"; {counts} match when you ignore {reason} ({ours!r} and {theirs!r})"


# --- sequences ---------------------------------------------------------------------------------

LETTERS = "ACGTUNRYSWKMBDHVacgtunryswkmbdhv"
NOT_DNA = re.compile(f"[^{LETTERS}]")
CLEAN = str.maketrans("URYSWKMBDHV", "TNNNNNNNNNN")

# Nucleotides that no name of a sample has, as a pair of barcodes of ten each.
LEAST_DNA = 30


def first_not_dna(sequence: str) -> str:
    """Return the first character that is no nucleotide letter, for a message; empty when there is
    none.
    """
    match = NOT_DNA.search(sequence)
    return match.group() if match else ""


def without_accents(text: str) -> str:
    """Return text in lower case without accents."""
    letters = unicodedata.normalize("NFKD", text).lower()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def is_sequence(name: str) -> bool:
    """Return whether a name is DNA, longer than what a sample is called by."""
    return len(name) >= LEAST_DNA and not first_not_dna(name)


def clean(sequences: Sequence[str]) -> list[str]:
    """Return upper-case DNA of valid sequences: U becomes T, IUPAC letters other than ACGTU become
    N.

    Sequences that are clean already are returned as the objects that they are, so that a large
    table holds them once.
    """
    cleaned = (sequence.upper().translate(CLEAN) for sequence in sequences)
    return [old if old == new else new for old, new in zip(sequences, cleaned, strict=True)]


def _records(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, id and sequence of each record of FASTA text or a QIIME 2 archive."""
    text = unix(read_text(path, {"FeatureData[Sequence]": "dna-sequences.fasta"}))
    before, *records = f"\n{text}".split("\n>")
    number = before.count("\n") + 1
    if begin := before.strip():
        line = text[: text.index(begin)].count("\n") + 1
        found = begin.split("\n")[0][:40]
        raise InputError(f"{path}: line {line} is {found!r}, expected FASTA that begins with '>'")
    for record in records:
        title, *parts = record.split("\n")
        yield number, (title.split() or [""])[0], "".join(part.strip() for part in parts)
        number += 1 + len(parts)


def fasta_ids(path: Path) -> list[str]:
    """Return the ids of all records of a file that `read_fasta` reads."""
    return [name for _, name, _ in _records(path)]


def read_fasta(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Return clean sequences of the `wanted` ids from FASTA (plain or gzip) or
    ``FeatureData[Sequence]`` (.qza).

    Raises `InputError`: no FASTA, a duplicate id, or a wanted sequence that is empty or holds a gap
    or another letter.
    """
    keep, faults, sequences = frozenset(wanted), Faults(path), dict[str, str]()
    for line, name, sequence in _records(path):
        if name not in keep:
            continue
        letter = first_not_dna(sequence)
        if name in sequences:
            faults.add("an id that occurs a second time", line, repr(name))
        elif not sequence:
            faults.add("no sequence", line, repr(name))
        elif letter:
            hint = "; pass sequences that are not aligned" if letter in "-." else ""
            faults.add(f"holds {letter!r}, expected nucleotides{hint}", line, repr(name))
        sequences[name] = sequence
    faults.raise_if_any()
    return dict(zip(sequences, clean(list(sequences.values())), strict=True))
