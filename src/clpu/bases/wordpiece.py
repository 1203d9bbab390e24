"""Turn text into tokens, as BERT's uncased models expect them: words in lower case, cut into known pieces.

The pieces are those of the model's vocabulary, one per line; the longest that fits is taken first, and pieces that
continue a word begin with ##. A text has at most `length` tokens with the two marks around it, padded with zeros.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
MAX_WORD_LENGTH = 100


class WordPiece:
    """Tokens of texts, by a vocabulary.

    >>> pieces = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "for", "##get", "!"])
    >>> pieces(["Forget!"], length=8)
    [[2, 4, 5, 6, 3, 0, 0, 0]]
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self.ends = [self.numbers[mark] for mark in (START, END)]

    def __call__(self, texts: Sequence[str], length: int) -> list[list[int]]:
        rows = []
        for text in texts:
            inner = [number for word in words(text) for number in self.pieces(word)][: length - 2]
            row = [self.ends[0], *inner, self.ends[1]]
            rows.append(row + [self.numbers[PAD]] * (length - len(row)))
        return rows

    def pieces(self, word: str) -> list[int]:
        """The numbers of a word's pieces; of the unknown piece, if it cannot be cut into known ones."""
        unknown, found, start = [self.numbers[UNKNOWN]], [], 0
        if len(word) > MAX_WORD_LENGTH:
            return unknown
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.numbers), None)
            if end is None:
                return unknown
            found.append(self.numbers[mark + word[start:end]])
            start = end
        return found


def words(text: str) -> Iterator[str]:
    """Words and single punctuation marks, in lower case and without accents."""
    spaced = "".join(f" {c} " if _is_chinese(c) else c for c in map(_cleaned, text))
    for word in spaced.split():
        plain = unicodedata.normalize("NFD", "".join(map(str.lower, word)))
        start = 0
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        for i, c in enumerate(plain):
            if _is_punctuation(c):
                if i > start:
                    yield plain[start:i]
                yield c
                start = i + 1
        if start < len(plain):
            yield plain[start:]


def _cleaned(c: str) -> str:
    if c in "\t\n\r" or unicodedata.category(c) == "Zs":
        return " "
    return "" if c in "\0\ufffd" or unicodedata.category(c).startswith("C") else c


def _is_punctuation(c: str) -> bool:
    ascii_marks = 33 <= ord(c) <= 47 or 58 <= ord(c) <= 64 or 91 <= ord(c) <= 96 or 123 <= ord(c) <= 126
    return ascii_marks or unicodedata.category(c).startswith("P")


#: The blocks of CJK ideographs, each of which is a word.
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _is_chinese(c: str) -> bool:
    return any(first <= ord(c) <= last for first, last in _CHINESE) if c else False
